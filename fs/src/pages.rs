//! Asks the kernel which pages its page cache has. It is asked for a page itself, and answers with those bytes that it
//! has, in a request of its own.
//!
//! Invariants: no call waits. A question without an answer, as after the end of the mount, is dropped by whoever asked.

use std::collections::HashMap;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::UNIX_EPOCH;

use larder_cachenode::PageCache;
use larder_dataset::{Entry, FileIndex};
use tokio::sync::oneshot;

use crate::inode::{Inodes, Node};
use crate::wire::{self, Request};

/// Questions whose askers have left are forgotten once there are this many.
const WAITING_MOST: usize = 1024;

/// The page cache of a mount.
#[derive(Debug)]
pub(crate) struct Pages {
    fuse: Arc<OwnedFd>,
    inodes: Inodes,
    /// The number of the next question.
    next: AtomicU64,
    waiting: Mutex<HashMap<u64, oneshot::Sender<bool>>>,
}

impl Pages {
    /// The page cache of the mount with this connection.
    pub(crate) fn new(fuse: Arc<OwnedFd>, inodes: Inodes) -> Self {
        // No number of an earlier process, whose answers may still come; in a container, that process had the same id.
        // 0 is no number.
        let next = UNIX_EPOCH.elapsed().map_or(1, |since| since.as_nanos() as u64);
        Self { fuse, inodes, next: AtomicU64::new(next), waiting: Mutex::default() }
    }

    /// Takes the kernel's answer to a question.
    pub(crate) fn retrieved(&self, request: &Request<'_>) {
        let asker = self.waiting().remove(&request.unique);
        if let (Some(asker), Some(bytes)) = (asker, request.retrieved()) {
            let _ = asker.send(!bytes.is_empty());
        }
    }

    fn waiting(&self) -> MutexGuard<'_, HashMap<u64, oneshot::Sender<bool>>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl PageCache for Pages {
    fn ask(&self, file: FileIndex, offset: u64) -> oneshot::Receiver<bool> {
        let (asker, answer) = oneshot::channel();
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let mut waiting = self.waiting();
        if waiting.len() >= WAITING_MOST {
            waiting.retain(|_, asker| !asker.is_closed());
        }
        waiting.insert(number, asker);
        drop(waiting);
        let node = self.inodes.number(Node::Row(Entry::File(file)));
        // ENOENT: the kernel does not know the file, and so has nothing of it. The asker learns that nothing is known.
        if wire::retrieve(self.fuse.as_fd(), number, node, offset).is_err() {
            self.waiting().remove(&number);
        }
        answer
    }
}

#[cfg(test)]
mod tests {
    use larder_dataset::Totals;
    use larder_testkit::kernel::{Kernel, longs, request};

    use super::*;
    use crate::wire::operation;

    fn reply(number: u64, page: &[u8]) -> Vec<u8> {
        request(operation::NOTIFY_REPLY, number, 0, &[&[0; 40][..], page].concat())
    }

    #[test]
    fn the_kernel_is_asked_for_a_page_and_its_answer_reaches_the_asker() {
        let (kernel, fuse) = Kernel::connect();
        let totals = Totals { dirs: 3, files: 9, blocks: 9, packs: 0, links: 0, bytes: 0 };
        let pages = Pages::new(Arc::new(fuse), Inodes::new(totals));
        let mut answers = [(5, 0), (6, 8192), (7, 0)].map(|(file, offset)| pages.ask(FileIndex(file), offset));
        let asked = [(); 3].map(|()| kernel.answer());
        let numbers = asked.clone().map(|(_, _, body)| u64::from_ne_bytes(body[..8].try_into().unwrap()));
        for ((unique, kind, body), (node, offset)) in asked.iter().zip([(9, 0), (10, 8192), (11, 0)]) {
            assert_eq!((*unique, *kind), (0, 5), "a notification");
            assert_eq!(body[8..24], longs(&[node, offset])[..]);
            assert_eq!(body[24..28], 4096_u32.to_ne_bytes());
        }
        let other = reply(7, b"x");
        pages.retrieved(&Request::parse(&other).unwrap());
        pages.retrieved(&Request::parse(&reply(numbers[1], b"page")).unwrap());
        pages.retrieved(&Request::parse(&reply(numbers[0], b"")).unwrap());
        assert_eq!([answers[0].try_recv(), answers[1].try_recv()], [Ok(false), Ok(true)]);
        assert!(answers[2].try_recv().is_err(), "not answered yet");
        drop(kernel);
        assert!(pages.ask(FileIndex(1), 0).try_recv().is_err(), "the mount has ended");
        assert_eq!(pages.waiting().len(), 1, "the one that may still be answered");
    }

    #[test]
    fn the_answer_to_an_earlier_process_is_not_taken() {
        let (kernel, fuse) = Kernel::connect();
        let fuse = Arc::new(fuse);
        let totals = Totals { dirs: 3, files: 9, blocks: 9, packs: 0, links: 0, bytes: 0 };
        let [earlier, later] = [(); 2].map(|()| Pages::new(Arc::clone(&fuse), Inodes::new(totals)));
        let _unanswered = earlier.ask(FileIndex(5), 0);
        let (_, _, question) = kernel.answer();
        let mut answer = later.ask(FileIndex(6), 0);
        let number = u64::from_ne_bytes(question[..8].try_into().unwrap());
        later.retrieved(&Request::parse(&reply(number, b"page")).unwrap());
        assert!(answer.try_recv().is_err());
    }
}
