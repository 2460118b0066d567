//! The answers of a lane that are ready to be written, and the loop that writes them.

use std::io::{self, IoSlice};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use bytes::Bytes;
use larder_cachenode_api::frame::{ANSWER_BYTES, Answer, RefusalCode, SUM_BYTES};
use tokio::io::{AsyncWrite, AsyncWriteExt};
use tokio::sync::mpsc;

use crate::convert;
use crate::counters::PeerCounters;
use crate::read::{ReadError, ReadRequest};
use crate::server::limits::{BytesPermit, RequestPermit};

/// The capacity of the queue of answers to write. A read that finds the queue full waits.
pub(super) const QUEUE: usize = 64;

/// Ready answers are written together: answers are added while the batch has fewer bytes than this. One system call
/// then sends them all, and the peer wakes once.
const BATCH_BYTES: usize = 512 << 10;

/// The permits of a read. They are released when the kernel has taken the last of its bytes.
pub(super) struct ReadPermits {
    pub(super) _bytes: BytesPermit,
    pub(super) _request: RequestPermit,
}

/// An answer that is ready to be written.
pub(super) enum QueuedAnswer {
    /// A range, or its next piece.
    Bytes {
        tag: u32,
        bytes: Bytes,
        /// Present only with the last piece.
        end: Option<RangeEnd>,
        _permits: Arc<ReadPermits>,
    },
    Refusal {
        tag: u32,
        code: RefusalCode,
        reason: String,
    },
    Pong,
    Goodbye,
}

/// The data that accompanies the last bytes of a range.
pub(super) struct RangeEnd {
    /// The sum, written after the bytes.
    sum: [u8; SUM_BYTES],
    /// After this time the client no longer waits for the range.
    deadline: Instant,
}

impl RangeEnd {
    /// The end of a range whose CRC32C is `crc`.
    pub(super) fn new(request: &ReadRequest, crc: u32, deadline: Instant) -> Self {
        let range = convert::range_to_wire(request.cache, request.range);
        Self { sum: convert::sum(&range, crc).to_le_bytes(), deadline }
    }
}

impl QueuedAnswer {
    /// Builds the refusal of a read, and counts it.
    pub(super) fn refuse(counters: &PeerCounters, tag: u32, error: &ReadError) -> Self {
        counters.refused.add(error);
        let (code, reason) = convert::refusal(error);
        Self::Refusal { tag, code, reason }
    }

    /// Returns this answer, or a refusal if its deadline has passed.
    fn in_time(self, counters: &PeerCounters) -> Self {
        match &self {
            Self::Bytes { tag, end: Some(end), .. } if Instant::now() > end.deadline => {
                Self::refuse(counters, *tag, &ReadError::TimedOut)
            }
            _ => self,
        }
    }

    fn head(&self) -> [u8; ANSWER_BYTES] {
        let head = match self {
            Self::Bytes { tag, bytes, .. } => Answer::Bytes { tag: *tag, len: bytes.len() as u32 },
            Self::Refusal { tag, code, reason } => Answer::Refusal { tag: *tag, code: *code, len: reason.len() as u32 },
            Self::Pong => Answer::Pong,
            Self::Goodbye => Answer::Goodbye,
        };
        head.encode()
    }

    fn body(&self) -> &[u8] {
        match self {
            Self::Bytes { bytes, .. } => bytes,
            Self::Refusal { reason, .. } => reason.as_bytes(),
            Self::Pong | Self::Goodbye => &[],
        }
    }

    fn sum(&self) -> &[u8] {
        match self {
            Self::Bytes { end: Some(end), .. } => &end.sum,
            Self::Bytes { end: None, .. } | Self::Refusal { .. } | Self::Pong | Self::Goodbye => &[],
        }
    }
}

/// Queues an answer. Does nothing once the lane is ending.
pub(super) async fn send(answers: &mpsc::Sender<QueuedAnswer>, answer: QueuedAnswer) {
    let _ = answers.send(answer).await;
}

/// Writes answers until the queue is closed. Error: `TimedOut` if the peer takes nothing for as long as `patience`.
pub(super) async fn write_answers(
    mut queue: mpsc::Receiver<QueuedAnswer>,
    mut writer: impl AsyncWrite + Unpin,
    patience: Duration,
    counters: &PeerCounters,
) -> io::Result<()> {
    let mut ready = Vec::with_capacity(QUEUE);
    while let Some(next) = queue.recv().await {
        ready.push(next.in_time(counters));
        let mut bytes = ready[0].body().len();
        while bytes < BATCH_BYTES
            && let Ok(next) = queue.try_recv()
        {
            let next = next.in_time(counters);
            bytes += next.body().len();
            ready.push(next);
        }
        let heads: Vec<_> = ready.iter().map(QueuedAnswer::head).collect();
        let mut slices: Vec<_> = (heads.iter().zip(&ready))
            .flat_map(|(head, answer)| [&head[..], answer.body(), answer.sum()].map(IoSlice::new))
            .collect();
        write_all(&mut writer, &mut slices, patience).await?;
        in_time(patience, writer.flush()).await?;
        for answer in ready.drain(..) {
            if let QueuedAnswer::Bytes { bytes, end, .. } = answer {
                counters.served_reads.fetch_add(end.is_some().into(), Ordering::Relaxed);
                counters.served_bytes.fetch_add(bytes.len() as u64, Ordering::Relaxed);
            }
        }
    }
    Ok(())
}

async fn write_all(
    writer: &mut (impl AsyncWrite + Unpin),
    mut slices: &mut [IoSlice<'_>],
    patience: Duration,
) -> io::Result<()> {
    // Skips leading empty slices, so that a batch of only empty slices does not count as unwritten.
    IoSlice::advance_slices(&mut slices, 0);
    while !slices.is_empty() {
        let written = in_time(patience, writer.write_vectored(slices)).await?;
        if written == 0 {
            return Err(io::ErrorKind::WriteZero.into());
        }
        IoSlice::advance_slices(&mut slices, written);
    }
    Ok(())
}

async fn in_time<T>(patience: Duration, write: impl Future<Output = io::Result<T>>) -> io::Result<T> {
    let late = |_| io::Error::new(io::ErrorKind::TimedOut, "the peer does not read its answers");
    tokio::time::timeout(patience, write).await.map_err(late)?
}
