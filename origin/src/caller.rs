//! The reader for whom a task works. Where requests must wait, readers take turns (`turns`), so the queue must know
//! whose each request is. The reader is a task-local, because many functions of several crates are between the two.

tokio::task_local! {
    static CALLER: Caller;
}

/// A reader: a thread that reads a mount, or the whole mount where the kernel does not say which thread it is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Caller {
    mount: u64,
    thread: u32,
}

impl Caller {
    /// The readers of other nodes, together.
    pub const PEERS: Self = Self { mount: 0, thread: 1 };

    /// The thread with this number, 0 if that is not known, as a reader of the mount with this number, which is not 0.
    pub fn new(mount: u64, thread: u32) -> Self {
        Self { mount, thread }
    }

    /// The reader for whom this task works. Work for no reader, such as warming, is one caller's.
    pub fn current() -> Self {
        CALLER.try_with(|caller| *caller).unwrap_or_default()
    }

    /// Runs `work` for this reader. Tasks that it starts are not part of it.
    pub fn run<F: Future>(self, work: F) -> impl Future<Output = F::Output> {
        CALLER.scope(self, work)
    }

    /// The same for a function.
    pub fn run_now<T>(self, work: impl FnOnce() -> T) -> T {
        CALLER.sync_scope(self, work)
    }
}
