//! What the server keeps for its watches, and the type of its answers.

use std::io;

use bytes::Bytes;
use http::Response;
use http_body_util::combinators::UnsyncBoxBody;
use serde_json::Value;

/// An answer; the body of a watch that is cut ends with an error.
pub(super) type Answer = Response<UnsyncBoxBody<Bytes, io::Error>>;

/// A change of an object.
#[derive(Clone)]
pub(super) struct Entry {
    pub(super) version: u64,
    pub(super) plural: String,
    pub(super) kind: &'static str,
    pub(super) object: Value,
    /// Watches that were opened before this one are not told.
    pub(super) seen_by: u64,
}

/// What a test says to the open watches of a kind.
#[derive(Clone)]
pub(super) enum Signal {
    /// A line.
    Line(Value),
    /// The connection breaks in the middle of a line.
    Cut,
    /// The watch ends.
    End,
}
