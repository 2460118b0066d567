//! Signals to this process, as something to wait for.

use std::io::{self, Read};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::event::PollFlags;
use rustix::process::Signal;

use crate::readiness::Interest;

/// The signals that `rsh` passes on to its command.
pub(crate) const FORWARDED: [Signal; 6] =
    [Signal::HUP, Signal::INT, Signal::QUIT, Signal::TERM, Signal::USR1, Signal::USR2];

/// Tells a session to make room for others. Only one whose peer has not shown the key obeys.
pub(crate) const ROOM: Signal = Signal::ALARM;

/// From when it is made, these signals end the process no more.
pub(crate) struct Signals {
    wake: UnixStream,
    arrived: Vec<(Signal, Arc<AtomicBool>)>,
}

impl Signals {
    pub(crate) fn catch(signals: &[Signal]) -> io::Result<Self> {
        let (wake, waker) = UnixStream::pair()?;
        wake.set_nonblocking(true)?;
        let mut arrived = Vec::new();
        for signal in signals {
            let flag = Arc::new(AtomicBool::new(false));
            // The flag is registered first, so that it is set once the reader wakes.
            signal_hook::flag::register(signal.as_raw(), Arc::clone(&flag))?;
            signal_hook::low_level::pipe::register(signal.as_raw(), waker.try_clone()?)?;
            arrived.push((*signal, flag));
        }
        Ok(Self { wake, arrived })
    }

    pub(crate) fn interest(&self) -> Interest<'_> {
        (self.wake.as_fd(), PollFlags::IN)
    }

    /// The signals that have arrived since it was last asked.
    pub(crate) fn take(&mut self) -> Vec<Signal> {
        // More bytes than this wake the reader again.
        let _ = self.wake.read(&mut [0; 64]);
        let taken = self.arrived.iter().filter(|(_, flag)| flag.swap(false, Ordering::SeqCst));
        taken.map(|(signal, _)| *signal).collect()
    }
}
