//! Receives the answers of a lane, each range directly into the buffer that its reader gets.

use std::io;
use std::sync::Arc;

use bytes::{BufMut, Bytes};
use larder_cachenode_api::frame::{ANSWER_BYTES, Answer, PIECE_BYTES_LEAST, SUM_BYTES};
use larder_dataset::crc32c_append;
use tokio::io::{AsyncReadExt, BufReader, ReadHalf};

use super::pending::{PendingRead, PendingReads};
use crate::buffers::Buffers;
use crate::client::error::{Failure, RequestError, shortened};
use crate::convert;
use crate::counters::Cause;
use crate::wire::{Fault, Wire};

/// The most bytes of a range that are read before they are summed, while they are still in the CPU's cache.
const SUMMED_BYTES: usize = 256 << 10;

/// Receives answers.
pub(super) struct Receiver {
    pub(super) reader: BufReader<ReadHalf<Wire>>,
    pub(super) pending: Arc<PendingReads>,
    pub(super) fault: Fault,
    pub(super) buffers: Arc<Buffers>,
}

impl Receiver {
    /// Receives answers until the lane ends. Returns why it ended.
    pub(super) async fn receive(&mut self) -> Failure {
        loop {
            if let Err(failure) = self.receive_one().await {
                return failure;
            }
            if self.pending.has_left() {
                return Failure::new(Cause::Broken, "the peer closed the connection");
            }
        }
    }

    async fn receive_one(&mut self) -> Result<(), Failure> {
        let mut head = [0; ANSWER_BYTES];
        self.fill(&mut head).await?;
        match Answer::decode(&head)? {
            Answer::Bytes { tag, len } => {
                let mut read = self.pending.take(tag)?;
                if let Some(progress) = &read.progress {
                    progress.arrives();
                }
                let Some(outcome) = self.receive_piece(&mut read, len as usize).await.transpose() else {
                    self.pending.put_back(tag, read);
                    return Ok(());
                };
                let failure = outcome.as_ref().err().cloned();
                // The reader may have been dropped.
                let _ = read.answer.send(outcome.map_err(RequestError::Failed));
                failure.map_or(Ok(()), Err)
            }
            Answer::Refusal { tag, code, len } => {
                let read = self.pending.take(tag)?;
                let mut reason = vec![0; len as usize];
                self.fill(&mut reason).await?;
                let reason = shortened(&String::from_utf8_lossy(&reason));
                let error = convert::read_error(code, reason).map_or_else(RequestError::Invalid, RequestError::Refused);
                let _ = read.answer.send(Err(error));
                Ok(())
            }
            Answer::Pong => Ok(()),
            Answer::Goodbye => {
                self.pending.leave();
                Ok(())
            }
        }
    }

    async fn fill(&mut self, into: &mut [u8]) -> Result<(), Failure> {
        let outcome = self.reader.read_exact(into).await;
        self.pending.arrived();
        outcome.map(drop).map_err(|error| self.broken(&error))
    }

    fn broken(&self, error: &io::Error) -> Failure {
        Failure::new(Cause::Broken, self.fault.reason().map_or_else(|| error.to_string(), str::to_owned))
    }

    /// Receives a piece of a range. After the last piece, returns the range if its sum is right. A range is received in
    /// full even if its reader was dropped, because the bytes after it belong to other answers.
    async fn receive_piece(&mut self, read: &mut PendingRead, len: usize) -> Result<Option<Bytes>, Failure> {
        let wanted = read.range.len as usize;
        let fresh = || (self.buffers.take(wanted), 0);
        let (mut bytes, mut crc) = read.received.take().unwrap_or_else(fresh);
        let end = bytes.len() + len;
        if end > wanted || (end < wanted && len < PIECE_BYTES_LEAST as usize) {
            return Err(Failure::new(Cause::WrongBlock, "the peer sent a range of another length than requested"));
        }
        while bytes.len() < end {
            let begin = bytes.len();
            let most = (end - begin).min(SUMMED_BYTES);
            let received = self.reader.read_buf(&mut (&mut bytes).limit(most)).await;
            self.pending.arrived();
            if received.map_err(|error| self.broken(&error))? == 0 {
                return Err(Failure::new(Cause::Truncated, "the connection ended within a range"));
            }
            crc = crc32c_append(crc, &bytes[begin..]);
        }
        if end < wanted {
            read.received = Some((bytes, crc));
            return Ok(None);
        }
        let mut theirs = [0; SUM_BYTES];
        self.fill(&mut theirs).await?;
        if u32::from_le_bytes(theirs) != convert::sum(&read.range, crc) {
            return Err(Failure::new(Cause::WrongBytes, "the checksum of the received range is wrong"));
        }
        Ok(Some(self.buffers.lend(bytes)))
    }
}
