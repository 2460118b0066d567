//! An S3 server of this process that accepts connections and answers nothing for a while.

use std::sync::mpsc::{Sender, channel};

use tokio::runtime::Handle;

/// Ends when it is dropped. Until then the server must not be dropped.
pub(crate) struct Silence {
    _ends_when_dropped: Vec<Sender<()>>,
}

impl Silence {
    /// Occupies all `threads` of the server's runtime, and returns once it has.
    pub(crate) fn of(runtime: &Handle, threads: usize) -> Self {
        let (started, has_started) = channel();
        let occupy = |_| {
            let (held, until) = channel::<()>();
            let started = started.clone();
            runtime.spawn(async move {
                let _ = started.send(());
                // Returns once the other end is dropped.
                let _ = until.recv();
            });
            held
        };
        let silence = Self { _ends_when_dropped: (0..threads).map(occupy).collect() };
        has_started.iter().take(threads).for_each(drop);
        silence
    }
}
