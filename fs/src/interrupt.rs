//! Ends a thread's wait in a system call, which then fails with EINTR.
//!
//! The signal for that is SIGURG: nothing else here uses it, and a process that does not handle it ignores it.
#![expect(unsafe_code, reason = "handles a signal, and sends it to a thread")]

use std::io;
use std::os::unix::thread::JoinHandleExt;
use std::thread::JoinHandle;

/// Handles the signal in this process, so that [`interrupt`] has an effect. Idempotent.
pub(crate) fn prepare() -> io::Result<()> {
    // SAFETY: all zeros is a valid sigaction; without SA_RESTART, system calls are not restarted. The pointers are to
    // values of this function, and the handler does nothing.
    let outcome = unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = on_signal as *const () as libc::sighandler_t;
        libc::sigemptyset(&mut action.sa_mask);
        libc::sigaction(libc::SIGURG, &action, std::ptr::null_mut())
    };
    if outcome == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

extern "C" fn on_signal(_signal: libc::c_int) {}

/// Interrupts the system call in which a thread waits. No effect on a thread that is just about to enter it.
pub(crate) fn interrupt(thread: &JoinHandle<()>) {
    // SAFETY: the thread was neither joined nor detached, because its handle exists, so its identifier is valid.
    unsafe { libc::pthread_kill(thread.as_pthread_t(), libc::SIGURG) };
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use rustix::io::Errno;

    use super::*;

    #[test]
    fn a_thread_that_waits_in_a_read_is_interrupted() {
        prepare().unwrap();
        let (reader, _writer) = rustix::pipe::pipe().unwrap();
        let (report, outcome) = channel();
        let thread = std::thread::spawn(move || {
            let mut byte = [0u8; 1];
            report.send(rustix::io::read(&reader, &mut byte)).unwrap();
        });
        while !thread.is_finished() {
            interrupt(&thread);
            std::thread::yield_now();
        }
        assert_eq!(outcome.recv().unwrap(), Err(Errno::INTR));
    }
}
