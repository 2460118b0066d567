//! The entries that watches read, and the type of the server's answers.

use std::io;
use std::sync::Arc;

use bytes::Bytes;
use http::Response;
use http_body_util::combinators::UnsyncBoxBody;
use serde_json::Value;

/// An answer. The body of a watch that was cut ends with an error.
pub(super) type Answer = Response<UnsyncBoxBody<Bytes, io::Error>>;

/// A change of an object.
#[derive(Clone)]
pub(super) struct Entry {
    pub(super) version: u64,
    pub(super) plural: String,
    pub(super) kind: &'static str,
    pub(super) object: Arc<Value>,
    /// Only watches with a higher number than this get the entry.
    pub(super) seen_by: u64,
}

/// A test's signal to the open watches of a kind.
#[derive(Clone)]
pub(super) enum Signal {
    /// Sends a line.
    Line(Value),
    /// The connection breaks in the middle of a line.
    Cut,
    /// The watch ends.
    End,
}
