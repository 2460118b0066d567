//! Signals as a file descriptor to wait for.

use std::io::{self, Read};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::event::PollFlags;
use rustix::process::Signal;

use crate::readiness::Interest;

/// The signals that `rsh` forwards to its command.
pub(crate) const FORWARDED: [Signal; 6] =
    [Signal::HUP, Signal::INT, Signal::QUIT, Signal::TERM, Signal::USR1, Signal::USR2];

/// Asks a session to make room for others. Only a session whose peer has not proved that it has the key obeys.
pub(crate) const ROOM: Signal = Signal::ALARM;

/// Catches signals. From its creation on, these signals no longer end the process.
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
            // The flag is registered first, so it is already set when the pipe wakes the reader.
            signal_hook::flag::register(signal.as_raw(), Arc::clone(&flag))?;
            signal_hook::low_level::pipe::register(signal.as_raw(), waker.try_clone()?)?;
            arrived.push((*signal, flag));
        }
        Ok(Self { wake, arrived })
    }

    pub(crate) fn interest(&self) -> Interest<'_> {
        (self.wake.as_fd(), PollFlags::IN)
    }

    /// Returns the signals that have arrived since the last call.
    pub(crate) fn take(&mut self) -> Vec<Signal> {
        // If more bytes are pending, the descriptor stays readable.
        let _ = self.wake.read(&mut [0; 64]);
        let taken = self.arrived.iter().filter(|(_, flag)| flag.swap(false, Ordering::SeqCst));
        taken.map(|(signal, _)| *signal).collect()
    }
}
