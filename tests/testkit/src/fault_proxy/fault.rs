//! The faults that a hook can choose, and the requests that it sees.

use std::time::Duration;

/// A fault of the proxy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Fault {
    /// Forwards the request and the response unchanged.
    None,
    /// Answers with this status and an S3 error of this code, such as `SlowDown`, without contacting the server.
    Status {
        /// The HTTP status.
        status: u16,
        /// The code in the XML.
        code: &'static str,
    },
    /// Closes the connection after this many bytes of the body, although `Content-Length` announces more.
    Truncate {
        /// Bytes of the body that the client gets.
        after: u64,
    },
    /// Sends a wrong `Content-Length` with the whole body, then closes the connection.
    WrongLength {
        /// Added to the true length.
        delta: i64,
    },
    /// Forwards the request with one bit of its body flipped.
    FlipBody,
    /// Sends the head and half of the body, then nothing until the client hangs up.
    Stall,
    /// Sends nothing at all until the client hangs up.
    StallBeforeHead,
    /// Resets the connection once the request is read.
    Reset,
    /// Forwards the request after this long.
    Delay(Duration),
    /// Answers with these bytes without contacting the server, then closes the connection.
    Answer(Vec<u8>),
}

/// The head of a request.
#[derive(Debug, Clone)]
pub struct RequestHead {
    pub method: String,
    /// The path with its query, as sent.
    pub path: String,
    /// The headers, with their names as sent.
    pub headers: Vec<(String, String)>,
    /// The request's number among all requests of this proxy, from 0.
    pub seq: u64,
}

impl RequestHead {
    /// A header's value; the name's case does not matter.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(header, _)| header.eq_ignore_ascii_case(name)).map(|(_, value)| value.as_str())
    }

    /// Whether this is a GET of an object rather than a listing.
    pub fn is_get_object(&self) -> bool {
        self.method == "GET" && !self.path.contains("list-type=2")
    }
}
