//! A fake `libnvidia-ml.so.1`: programs load it like NVIDIA's, and it answers from a file.
//!
//! The file is a [`Machine`] as JSON. The environment variable [`FILE_VARIABLE`] names it; the default is [`FILE_NAME`]
//! in the library's directory. A process can therefore load several machines, each a copy of the library beside its
//! file. Every call checks whether the file has changed.
//!
//! Invariant: it behaves as NVIDIA's documentation says, including the traps: a session belongs to the driver that was
//! loaded when the session was opened, and a hanging driver blocks every call. It is more lenient in one respect: it
//! keeps an Xid that arrives between the opening of the session and the registration of the GPU for events.

mod abi;
mod changes;
mod library;
mod machine;
mod session;

pub use machine::{FILE_NAME, FILE_VARIABLE, Gpu, Link, Machine, Slice, Xid, code};
