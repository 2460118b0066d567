//! Where the blocks of a flight come down.
//!
//! The origin's bytes go, as they arrive, into the record that the first block still to come will be on the disk; with the
//! last of them it has landed: its checksum is looked at and it is handed to who waits for it, while the blocks behind it
//! are still on their way. Who passes it on to another node has it piece by piece before that. The invariant: each ticket lands exactly once, at the latest in [`Landing::end`].

use std::collections::VecDeque;

use bytes::Bytes;
use larder_store::{AdmissionPermit, Draft, Record};

use super::flight::{Landed, Seat};
use super::{FetchError, Fetcher, Purpose, Tier};
use crate::counters::add;
use crate::sharing::Asker;

/// A seat, and room in the store if the block is to be kept.
pub(super) struct Ticket {
    pub(super) seat: Seat,
    pub(super) reservation: Option<AdmissionPermit>,
}

/// The blocks of a flight: to come, landed, and come with the wrong bytes.
pub(super) struct Landing<'a> {
    fetcher: &'a Fetcher,
    purpose: Purpose,
    /// To come, in the order of their bytes.
    coming: VecDeque<Ticket>,
    /// What is there of the first of them.
    draft: Option<Draft>,
    kept: Vec<Kept>,
    wrong: Vec<Ticket>,
}

/// A block that landed and has room in the store.
pub(super) struct Kept {
    pub(super) reservation: AdmissionPermit,
    pub(super) bytes: Bytes,
    /// None: the bytes came from another node, and lie where no record can be written from.
    pub(super) record: Option<Record>,
}

impl<'a> Landing<'a> {
    pub(super) fn new(fetcher: &'a Fetcher, purpose: Purpose, coming: Vec<Ticket>) -> Self {
        let kept = Vec::with_capacity(coming.len());
        Self { fetcher, purpose, coming: coming.into(), draft: None, kept, wrong: Vec::new() }
    }

    /// The seat of a flight of one block.
    pub(super) fn only(&self) -> Option<&Seat> {
        let first = self.coming.front()?;
        (self.coming.len() == 1).then_some(&first.seat)
    }

    /// The first and the last of those to come.
    pub(super) fn ends(&self) -> Option<(&Seat, &Seat)> {
        Some((&self.coming.front()?.seat, &self.coming.back()?.seat))
    }

    /// Those that came with the wrong bytes.
    pub(super) fn take_wrong(&mut self) -> Vec<Ticket> {
        std::mem::take(&mut self.wrong)
    }

    /// The only one to come is now this one.
    pub(super) fn await_again(&mut self, ticket: Ticket) {
        self.draft = None;
        self.coming.push_back(ticket);
    }

    /// The next bytes of the origin. Those beyond the last block mean nothing.
    pub(super) fn take(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            let Some(next) = self.coming.front() else { return };
            let part = &next.seat.part;
            let draft = self.draft.get_or_insert_with(|| self.fetcher.cache.draft(part.block, part.block_len));
            bytes = draft.push(bytes);
            if draft.missing() > 0 {
                next.seat.tell(draft.so_far());
                return;
            }
            let whole = self.draft.take().and_then(Draft::seal);
            if let Some((ticket, record)) = self.coming.pop_front().zip(whole) {
                self.check(ticket, record);
            }
        }
    }

    /// The first block's bytes, from another node, which were checked.
    pub(super) fn has_all_of_first(&mut self, bytes: Bytes) {
        if let Some(ticket) = self.coming.pop_front() {
            self.land(ticket, bytes, None, Tier::Peer);
        }
    }

    fn check(&mut self, ticket: Ticket, record: Record) {
        match self.fetcher.manifest.block_crc(ticket.seat.part.block) {
            Ok(Some(crc)) if larder_dataset::crc32c(&record.data()) != crc => {
                ticket.seat.begins_again();
                self.wrong.push(ticket);
            }
            Ok(_) => self.land(ticket, record.data(), Some(record), Tier::Origin),
            Err(error) => self.fail(&ticket.seat, FetchError::Manifest(error)),
        }
    }

    fn land(&mut self, Ticket { seat, reservation }: Ticket, bytes: Bytes, record: Option<Record>, tier: Tier) {
        let block = seat.part.block;
        match reservation {
            Some(reservation) => self.kept.push(Kept { reservation, bytes: bytes.clone(), record }),
            // Into the window before anybody is told, so that their next read finds it there. What only another node waits
            // for is held there.
            None if self.purpose.asker() == Asker::Here || seat.riders() > 1 => {
                self.fetcher.window.insert(block, bytes.clone());
            }
            None => {}
        }
        seat.land(Landed::Bytes(bytes, tier));
    }

    fn fail(&self, seat: &Seat, error: FetchError) {
        add(&self.fetcher.counters.origin_errors, 1);
        self.fetcher.log_failure(seat.part.block, &error);
        seat.land(Landed::Failed(error));
    }

    /// What the store is to keep. Whatever has not landed never will: for this reason, or for its bytes being wrong.
    pub(super) fn end(mut self, error: Option<&FetchError>) -> Vec<Kept> {
        for Ticket { seat, .. } in self.take_wrong() {
            let corrupt = FetchError::Corrupt { block: seat.part.block };
            self.fail(&seat, error.cloned().unwrap_or(corrupt));
        }
        let left: Vec<_> = self.coming.drain(..).collect();
        if let (Some(error), Some(first)) = (error, left.first()) {
            add(&self.fetcher.counters.origin_errors, 1);
            self.fetcher.log_failure(first.seat.part.block, error);
        }
        for Ticket { seat, .. } in left {
            seat.land(Landed::Failed(error.cloned().unwrap_or(FetchError::Stopped)));
        }
        self.kept
    }
}
