//! A made-up `libnvidia-ml.so.1`: programs load it as they would NVIDIA's, and it answers what a file says.
//!
//! The file is a [`Machine`] as JSON. It is named by the environment variable [`FILE_VARIABLE`], else it is [`FILE_NAME`] in the
//! folder of the library. So a process can load several machines, each a copy of the library beside its file. The file is looked
//! at anew in every call.
//!
//! Invariant: it answers as NVIDIA's library is documented to, with the traps: a session belongs to the driver that it was begun
//! with, and a hanging driver holds up every call. It is kinder in one thing: an Xid that comes after the session has begun and
//! before its GPU is registered for events is kept until it is.

mod abi;
mod changes;
mod library;
mod machine;
mod session;

pub use machine::{FILE_NAME, FILE_VARIABLE, Gpu, Link, Machine, Slice, Xid, code};
