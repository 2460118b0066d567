//! A fake `libnvidia-ml.so.1`: programs load it like NVIDIA's, and it answers from a file.
//!
//! The file is a [`Machine`] as JSON. The environment variable [`FILE_VARIABLE`] names it; the default is [`FILE_NAME`] in the
//! library's directory. A process can therefore load several machines, each a copy of the library beside its file. Every call
//! looks at the file again.
//!
//! Invariant: it behaves as NVIDIA's library is documented to, traps included: a session belongs to the driver that it was
//! opened with, and a hanging driver blocks every call. It is more lenient in one respect: an Xid that arrives after the session
//! was opened and before its GPU is registered for events is kept until the registration.

mod abi;
mod changes;
mod library;
mod machine;
mod session;

pub use machine::{FILE_NAME, FILE_VARIABLE, Gpu, Link, Machine, Slice, Xid, code};
