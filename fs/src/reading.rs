//! Answers reads: immediately from the store, or later from the runtime.
//!
//! Invariant: no thread that serves the kernel waits for the network, and none takes the next request before a read
//! that is answered later is kept in `requests`. There is one exception: if a read cannot be kept because the table is
//! full, its thread waits and answers it.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use larder_cachenode::Caller;
use larder_cachenode::counters::{StatsCounters, add};
use larder_cachenode::fetch::FetchError;
use tracing::warn;

use crate::errno::Errno;
use crate::filesystem::{Filesystem, FsError, Readable};
use crate::requests::{Kept, Requests};
use crate::wire::{ReadRequest, Reply};

/// Answers the reads of one mount.
#[derive(Clone, Debug)]
pub(crate) struct Reader {
    filesystem: Arc<Filesystem>,
    /// Where reads of a handed-over connection are kept so that they outlive this process. None for a mount of our own.
    requests: Option<Arc<Requests>>,
}

impl Reader {
    /// Creates a reader. Reads that are answered later are kept in `requests`, if given.
    pub(crate) fn new(filesystem: Arc<Filesystem>, requests: Option<Arc<Requests>>) -> Self {
        Self { filesystem, requests }
    }

    /// The file system that the reads belong to.
    pub(crate) fn filesystem(&self) -> &Arc<Filesystem> {
        &self.filesystem
    }

    /// The dataset's counters.
    pub(crate) fn counters(&self) -> &Arc<StatsCounters> {
        self.filesystem.dataset().counters()
    }

    /// Runs a callback. A panic in it fails one request and not the mount, because dropping a reply answers it with
    /// EIO.
    pub(crate) fn guard(&self, callback: impl FnOnce()) {
        if catch_unwind(AssertUnwindSafe(callback)).is_err() {
            add(&self.counters().panics, 1);
        }
    }

    /// Answers a read, now or later. `thread` is the kernel's number of the thread that reads; 0 if it has none in the
    /// PID namespace of the process that mounted. `kept` is set if the read is already in the table.
    pub(crate) fn read(&self, read: ReadRequest, thread: u32, kept: Option<Kept>, reply: Reply) {
        // While a mount exists, no other has its file system's address.
        let caller = Caller::new(Arc::as_ptr(&self.filesystem).addr() as u64, thread);
        let dataset = self.filesystem.dataset();
        let ReadRequest { ino, offset, size, .. } = read;
        let file = match self.filesystem.readable(ino) {
            Ok(Readable::File(file)) => file,
            Ok(Readable::Text(text)) => {
                let start = usize::try_from(offset).unwrap_or(usize::MAX).min(text.len());
                let end = start.saturating_add(size as usize).min(text.len());
                return reply.data(&text[start..end]);
            }
            Err(error) => return self.fail(reply, &error),
        };
        let mut reply = Some(reply);
        let answered = caller.run_now(|| {
            dataset.read_now(file, offset, size, |bytes| {
                if let Some(reply) = reply.take() {
                    reply.data(bytes);
                }
            })
        });
        let Some(reply) = reply.filter(|_| !answered) else { return };
        let runtime = dataset.runtime().clone();
        let dataset = Arc::clone(dataset);
        let answer = move |kept: Option<Kept>| {
            caller.run(async move {
                // In this order, so that `kept` is dropped after the reply, even in a panic: until then, the next
                // process may have to answer the read.
                let _kept = kept;
                let reply = reply;
                let _counted = CountPanic(dataset.counters());
                match dataset.read_later(file, offset, size).await {
                    Ok(bytes) => reply.data(&bytes),
                    Err(error) => {
                        let errno = Errno::from(&error);
                        dataset.counters().failed(errno.name());
                        if matches!(error, FetchError::Stale { .. }) {
                            add(&dataset.counters().stale, 1);
                        }
                        reply.error(errno);
                    }
                }
            })
        };
        let kept = match (&self.requests, kept) {
            (Some(requests), None) => requests.keep(read).map(Some),
            (_, kept) => Ok(kept),
        };
        match kept {
            Ok(kept) => {
                runtime.spawn(answer(kept));
            }
            Err(error) => {
                warn!(%error, "a read cannot be kept for the next larderd: its thread waits for the answer");
                runtime.block_on(answer(None));
            }
        }
    }

    fn fail(&self, reply: Reply, error: &FsError) {
        let errno = Errno::from(error);
        self.counters().failed(errno.name());
        reply.error(errno);
    }
}

/// Counts a panic of the task that owns this value.
struct CountPanic<'a>(&'a StatsCounters);

impl Drop for CountPanic<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            add(&self.0.panics, 1);
        }
    }
}
