//! Reads bytes as frames of a lane between nodes: as its server receives them, and as its client does.
//!
//! Invariant under test: no panic; a decoded frame keeps within its limits and encodes to the same bytes.
#![no_main]
#![expect(dead_code, reason = "the target calls a part of what it includes")]

// Included rather than linked: the API's crate would compile tonic, with the fuzzer's flags.
#[path = "../../../cachenode/api/src/frame.rs"]
mod frame;

use frame::{
    ANSWER_BYTES, Answer, HELLO_BYTES, Hello, RANGE_BYTES_MOST, READ_BYTES, REASON_BYTES_MOST, REQUEST_BYTES, Request,
    SUM_BYTES, TOKEN_BYTES_MOST,
};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    asked(data);
    answered(data);
});

/// The rest of a lane's bytes after its hello, if it has one.
fn after_hello(data: &[u8]) -> Option<&[u8]> {
    let (hello, rest) = data.split_first_chunk::<HELLO_BYTES>()?;
    let decoded = Hello::decode(hello).ok()?;
    assert_eq!(Hello::decode(&decoded.encode()), Ok(decoded));
    Some(rest)
}

fn asked(data: &[u8]) -> Option<()> {
    let mut rest = after_hello(data)?;
    loop {
        let len = Request::len_of(rest.first_chunk::<REQUEST_BYTES>()?);
        assert!(len == REQUEST_BYTES || len == READ_BYTES);
        let (frame, after) = rest.split_at_checked(len)?;
        let request = Request::decode(frame).ok()?;
        let mut again = Vec::new();
        request.encode(&mut again);
        assert_eq!(again, frame);
        rest = after;
        if let Request::Read { range, token_len, .. } = request {
            assert!(usize::from(token_len) <= TOKEN_BYTES_MOST);
            assert!(!range.is_possible() || range.start + range.len <= RANGE_BYTES_MOST);
            rest = after.get(token_len.into()..)?;
        }
    }
}

fn answered(data: &[u8]) -> Option<()> {
    let mut rest = after_hello(data)?;
    loop {
        let (head, after) = rest.split_first_chunk::<ANSWER_BYTES>()?;
        let answer = Answer::decode(head).ok()?;
        assert_eq!(Answer::decode(&answer.encode()), Ok(answer));
        let behind = match answer {
            Answer::Bytes { len, .. } => {
                assert!((1..=RANGE_BYTES_MOST).contains(&len));
                len as usize + SUM_BYTES
            }
            Answer::Refusal { len, .. } => {
                assert!(len as usize <= REASON_BYTES_MOST);
                len as usize
            }
            Answer::Pong | Answer::Goodbye => 0,
        };
        rest = after.get(behind..)?;
    }
}
