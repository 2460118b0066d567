//! Receives the blocks of a fetch.
//!
//! The origin's bytes are written, as they arrive, into the store record of the first block that is not complete. When
//! the last of its bytes is there, the block's checksum is checked and its waiters get it, while the blocks after it
//! are still in flight. Subscribers get the bytes piece by piece before that.
//!
//! Invariant: each expected block is completed exactly once, or returned by [`BlockReceiver::end`] as failed.

use std::collections::VecDeque;

use bytes::Bytes;
use larder_dataset::BlockPart;
use larder_store::{AdmissionPermit, Draft, Record};

use super::context::FetchContext;
use super::error::FetchError;
use super::in_flight::PendingBlock;
use super::outcome::{Outcome, Tier};
use super::purpose::Purpose;
use crate::memory::Permit;
use crate::sharing::Asker;
use crate::window::WindowRoom;

/// Whether the store keeps a block.
#[derive(Debug)]
pub(super) enum Admission {
    /// It does.
    Granted(AdmissionPermit),
    /// It decides later.
    Later,
    /// It does not; the window holds the block.
    Window(WindowRoom),
    /// Neither does.
    Refused,
}

/// A block that a fetch is to receive.
#[derive(Debug)]
pub(super) struct ExpectedBlock {
    pub(super) pending: PendingBlock,
    pub(super) admission: Admission,
}

/// A complete block that the store is to keep.
#[derive(Debug)]
pub(super) struct BlockToKeep {
    /// The whole block.
    pub(super) part: BlockPart,
    /// None: the store decides when the block is written.
    pub(super) permit: Option<AdmissionPermit>,
    pub(super) bytes: Bytes,
    /// None: the bytes came from a peer, and a record must be made of them.
    pub(super) record: Option<Record>,
    /// Held until it is written. None: a fetch that fills the store holds memory for it.
    pub(super) memory: Option<Permit>,
}

/// The blocks of a fetch: expected, complete, and received with the wrong checksum.
#[derive(Debug)]
pub(super) struct BlockReceiver<'a> {
    context: &'a FetchContext,
    purpose: Purpose,
    /// In the order of their bytes.
    expected: VecDeque<ExpectedBlock>,
    /// The bytes that have arrived of the first of them.
    draft: Option<Draft>,
    to_keep: Vec<BlockToKeep>,
    corrupt: Vec<ExpectedBlock>,
}

impl<'a> BlockReceiver<'a> {
    pub(super) fn new(context: &'a FetchContext, purpose: Purpose, expected: Vec<ExpectedBlock>) -> Self {
        let to_keep = Vec::with_capacity(expected.len());
        Self { context, purpose, expected: expected.into(), draft: None, to_keep, corrupt: Vec::new() }
    }

    /// The expected block, if there is only one.
    pub(super) fn only(&self) -> Option<&PendingBlock> {
        let first = self.expected.front()?;
        (self.expected.len() == 1).then_some(&first.pending)
    }

    /// The first and the last expected block.
    pub(super) fn ends(&self) -> Option<(&PendingBlock, &PendingBlock)> {
        Some((&self.expected.front()?.pending, &self.expected.back()?.pending))
    }

    /// The blocks that were received with the wrong checksum since the last call.
    pub(super) fn take_corrupt(&mut self) -> Vec<ExpectedBlock> {
        std::mem::take(&mut self.corrupt)
    }

    /// Expects a block again after all others were received.
    pub(super) fn expect_again(&mut self, block: ExpectedBlock) {
        self.draft = None;
        self.expected.push_back(block);
    }

    /// Takes the origin's next bytes. Ignores those after the last block.
    pub(super) fn receive(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            let Some(next) = self.expected.front() else { return };
            let part = &next.pending.part;
            let draft = self.draft.get_or_insert_with(|| self.context.cache.draft(part.block, part.block_len));
            bytes = draft.push(bytes);
            if draft.missing() > 0 {
                next.pending.arrived(draft.so_far());
                return;
            }
            let whole = self.draft.take().and_then(Draft::seal);
            if let Some((block, record)) = self.expected.pop_front().zip(whole) {
                self.check(block, record);
            }
        }
    }

    /// Takes the first block from a peer. Its checksum was checked.
    pub(super) fn receive_from_peer(&mut self, bytes: Bytes) {
        if let Some(block) = self.expected.pop_front() {
            self.complete(block, bytes, None, Tier::Peer);
        }
    }

    fn check(&mut self, block: ExpectedBlock, record: Record) {
        match self.context.manifest.block_crc(block.pending.part.block) {
            Ok(Some(crc)) if larder_dataset::crc32c(&record.data()) != crc => {
                block.pending.restart();
                self.corrupt.push(block);
            }
            Ok(_) => self.complete(block, record.data(), Some(record), Tier::Origin),
            Err(error) => self.fail(block.pending, FetchError::Manifest(error)),
        }
    }

    fn complete(&mut self, block: ExpectedBlock, bytes: Bytes, record: Option<Record>, tier: Tier) {
        let ExpectedBlock { pending, admission } = block;
        let part = pending.part;
        // The block has its place before its waiters get it, so that their next read finds it there.
        // `None`: it is not kept. `Some(None)`: the store decides when the block is written.
        let permit = match admission {
            Admission::Granted(permit) => Some(Some(permit)),
            Admission::Later => Some(None),
            Admission::Refused => None,
            Admission::Window(room) => {
                room.fill(bytes.clone());
                return pending.complete(Outcome::Fetched(bytes, tier));
            }
        };
        match permit.and_then(|permit| Some((permit, self.memory_until_written(&part)?))) {
            Some((permit, memory)) => {
                self.to_keep.push(BlockToKeep { part, permit, bytes: bytes.clone(), record, memory });
            }
            // A block that only a peer waits for is cached at the peer.
            None if self.purpose.asker() == Asker::Here || pending.waiters() > 1 => {
                self.context.window.insert(part.block, bytes.clone());
            }
            None => {}
        }
        pending.complete(Outcome::Fetched(bytes, tier));
    }

    /// Memory for a complete block that the store is to keep. `None`: there is none, so the block is not kept.
    /// `Some(None)`: a fetch that fills the store has had it from its start.
    fn memory_until_written(&self, part: &BlockPart) -> Option<Option<Permit>> {
        if self.purpose.is_warm() {
            return Some(None);
        }
        self.context.memory_until_written((part.block_len >> 10) + 1).map(Some)
    }

    fn fail(&self, pending: PendingBlock, error: FetchError) {
        self.context.fetch_failed(pending.part.block, &error);
        pending.complete(Outcome::Failed(error));
    }

    /// Ends the fetch. Returns the blocks to keep, and those that are not complete with the reason: `error`, or their
    /// checksum.
    pub(super) fn end(mut self, error: Option<&FetchError>) -> (Vec<BlockToKeep>, Vec<(PendingBlock, FetchError)>) {
        let mut failed = Vec::new();
        for ExpectedBlock { pending, .. } in self.take_corrupt() {
            let block = pending.part.block;
            let error = error.cloned().unwrap_or(FetchError::Corrupt { block });
            self.context.fetch_failed(block, &error);
            failed.push((pending, error));
        }
        let missing: Vec<_> = self.expected.drain(..).collect();
        if let (Some(error), Some(first)) = (error, missing.first()) {
            self.context.fetch_failed(first.pending.part.block, error);
        }
        for ExpectedBlock { pending, .. } in missing {
            failed.push((pending, error.cloned().unwrap_or(FetchError::Stopped)));
        }
        (self.to_keep, failed)
    }
}
