//! The frames that carry bytes of blocks between nodes, on a connection of their own: a *lane*.
//!
//! A lane starts with one [`Hello`] from each side. Then the client sends [`Request`]s, any number at a time, and the
//! server answers each `Read` exactly once, in any order, identified by its tag: with the range or a refusal. A range
//! may arrive in pieces with other answers in between, and may be refused partway. All numbers are little-endian.
//!
//! ```text
//! Hello       magic "larderbk" 8 · protocol u32 · 0 u32                                                   16 bytes
//! Read        1 u8 · forwarded u8 · token length u16 · tag u32 · block u32 · start u32 · length u32
//!             · deadline ms u31 · cached only u1 · snapshot 32                            56 bytes, then the token
//! Cancel      2 u8 · 0 u8 · 0 u16 · tag u32                                                                8 bytes
//! Ping        3 u8 · 0 u8 · 0 u16 · 0 u32                                                                  8 bytes
//!
//! Bytes       1 u8 · 0 u8 · 0 u16 · tag u32 · length u32            12 bytes, then the range's next piece of that length,
//!                                                                    then, after the last piece, the range's sum (u32)
//! Refusal     2 u8 · code u8 · 0 u16 · tag u32 · length u32                    12 bytes, then the reason as text
//! Pong        3 u8 · 0 u8 · 0 u16 · 0 u32 · 0 u32                                                         12 bytes
//! Goodbye     4 u8 · 0 u8 · 0 u16 · 0 u32 · 0 u32                                                         12 bytes
//! ```
//!
//! The sum is the CRC32C of the range XORed with the CRC32C of the request ([`WireRange::encode`]). The bytes of
//! another block therefore fail the check, and a server that stored the range's CRC32C need not compute it again. The
//! sum comes last, so that a server without a stored CRC32C computes it while it sends. Every piece but the last has at
//! least [`PIECE_BYTES_LEAST`] bytes.
//!
//! `cached only` is the highest bit of the deadline. Nodes of version 0.1.0 do not know the bit: they see a long
//! deadline and answer like any other read.
//!
//! Invariants: a decoded frame is within the limits below; no decoder panics; nothing here does I/O.

/// The first bytes of each hello. Neither HTTP/2 nor TLS can start with them.
pub const MAGIC: [u8; 8] = *b"larderbk";

/// The size of a hello.
pub const HELLO_BYTES: usize = 16;

/// The size of the shortest request, and of the first part of every request.
pub const REQUEST_BYTES: usize = 8;

/// The size of a `Read` without its token.
pub const READ_BYTES: usize = 56;

/// The longest deadline of a read. The bit above it requests only cached bytes.
const DEADLINE_MS_MOST: u32 = u32::MAX >> 1;

/// The size of an answer without its body.
pub const ANSWER_BYTES: usize = 12;

/// The size of the sum that follows a range.
pub const SUM_BYTES: usize = 4;

/// The length of the longest range, in bytes.
pub const RANGE_BYTES_MOST: u32 = 4 << 20;

/// The length of the shortest piece of a range, in bytes. Only the last piece may be shorter.
pub const PIECE_BYTES_LEAST: u32 = 64 << 10;

/// The length of the longest token, in bytes.
pub const TOKEN_BYTES_MOST: usize = 4096;

/// The length of the longest refusal reason, in bytes.
pub const REASON_BYTES_MOST: usize = 1024;

/// Why a frame cannot be decoded. No later frame on the lane can be decoded either.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Malformed(pub &'static str);

impl std::fmt::Display for Malformed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.0)
    }
}

impl std::error::Error for Malformed {}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    let mut number = [0; 4];
    number.copy_from_slice(&bytes[at..at + 4]);
    u32::from_le_bytes(number)
}

fn unless(wrong: bool, what: &'static str) -> Result<(), Malformed> {
    if wrong { Err(Malformed(what)) } else { Ok(()) }
}

/// The first frame that each side sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hello {
    /// The protocol number of the sender. A side that receives another number sends its own and closes.
    pub protocol: u32,
}

impl Hello {
    /// Encodes the frame.
    pub fn encode(self) -> [u8; HELLO_BYTES] {
        let mut bytes = [0; HELLO_BYTES];
        bytes[..8].copy_from_slice(&MAGIC);
        bytes[8..12].copy_from_slice(&self.protocol.to_le_bytes());
        bytes
    }

    /// Decodes a hello of any protocol version; the caller checks the number.
    pub fn decode(bytes: &[u8; HELLO_BYTES]) -> Result<Self, Malformed> {
        unless(bytes[..8] != MAGIC, "the hello has the wrong magic bytes")?;
        Ok(Self { protocol: u32_at(bytes, 8) })
    }
}

/// A range of a block of a snapshot, as a frame carries it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WireRange {
    /// The id of the cache.
    pub snapshot: [u8; 32],
    /// The block's number within the snapshot.
    pub block: u32,
    /// The first byte of the range, counted from the start of the block.
    pub start: u32,
    /// The length in bytes, at least 1. `start` + `len` is at most [`RANGE_BYTES_MOST`].
    pub len: u32,
}

impl WireRange {
    /// Encodes the fields that the sum covers besides the bytes: block, start, length, snapshot.
    pub fn encode(&self) -> [u8; 44] {
        let mut bytes = [0; 44];
        for (at, number) in [(0, self.block), (4, self.start), (8, self.len)] {
            bytes[at..at + 4].copy_from_slice(&number.to_le_bytes());
        }
        bytes[12..].copy_from_slice(&self.snapshot);
        bytes
    }

    /// True if the range is not empty and a block can contain it.
    pub fn is_possible(&self) -> bool {
        self.len > 0 && u64::from(self.start) + u64::from(self.len) <= u64::from(RANGE_BYTES_MOST)
    }
}

/// A frame from the client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Request {
    /// Requests a range. The token follows the frame.
    Read {
        /// Identifies the answer. No two reads in flight may share a tag.
        tag: u32,
        /// The requested range. The server refuses a range that no block can contain.
        range: WireRange,
        /// The length of the token in bytes; 0 for no token.
        token_len: u16,
        /// True if the server must not ask another node for the range.
        forwarded: bool,
        /// True if the server must ask neither another node nor the origin. It refuses bytes that it has not cached.
        cached_only: bool,
        /// How long the client waits, in milliseconds, at most 2^31 - 1. The server caps it, and applies its cap to 0
        /// too.
        deadline_ms: u32,
    },
    /// The client no longer waits for this read. The server still answers it, with the range or a refusal.
    Cancel {
        /// The tag of the read to cancel.
        tag: u32,
    },
    /// Requests a [`Pong`](Answer::Pong).
    Ping,
}

impl Request {
    /// Appends the frame to `out`. The caller appends the token of a read.
    pub fn encode(&self, out: &mut Vec<u8>) {
        let head = |kind: u8, flag: bool, token_len: u16, tag: u32| {
            let [low, high] = token_len.to_le_bytes();
            let [a, b, c, d] = tag.to_le_bytes();
            [kind, u8::from(flag), low, high, a, b, c, d]
        };
        match self {
            Self::Read { tag, range, token_len, forwarded, cached_only, deadline_ms } => {
                let range = range.encode();
                let deadline_ms = (*deadline_ms).min(DEADLINE_MS_MOST) | u32::from(*cached_only) << 31;
                out.extend_from_slice(&head(1, *forwarded, *token_len, *tag));
                out.extend_from_slice(&range[..12]);
                out.extend_from_slice(&deadline_ms.to_le_bytes());
                out.extend_from_slice(&range[12..]);
            }
            Self::Cancel { tag } => out.extend_from_slice(&head(2, false, 0, *tag)),
            Self::Ping => out.extend_from_slice(&head(3, false, 0, 0)),
        }
    }

    /// The length of the request that starts with `begin`, without its token.
    pub fn len_of(begin: &[u8; REQUEST_BYTES]) -> usize {
        if begin[0] == 1 { READ_BYTES } else { REQUEST_BYTES }
    }

    /// Decodes a request of exactly [`len_of`](Self::len_of) bytes.
    pub fn decode(bytes: &[u8]) -> Result<Self, Malformed> {
        unless(bytes.len() < REQUEST_BYTES, "the request is too short")?;
        let (kind, flag, token_len, tag) =
            (bytes[0], bytes[1], u16::from_le_bytes([bytes[2], bytes[3]]), u32_at(bytes, 4));
        if kind == 1 {
            unless(bytes.len() != READ_BYTES, "the read request has the wrong length")?;
            unless(flag > 1, "the request has an unknown flag")?;
            unless(usize::from(token_len) > TOKEN_BYTES_MOST, "the token is too long")?;
            let mut snapshot = [0; 32];
            snapshot.copy_from_slice(&bytes[24..READ_BYTES]);
            let [block, start, len, deadline] = [8, 12, 16, 20].map(|at| u32_at(bytes, at));
            let range = WireRange { snapshot, block, start, len };
            let (cached_only, deadline_ms) = (deadline > DEADLINE_MS_MOST, deadline & DEADLINE_MS_MOST);
            return Ok(Self::Read { tag, range, token_len, forwarded: flag == 1, cached_only, deadline_ms });
        }
        unless(
            bytes.len() != REQUEST_BYTES || flag != 0 || token_len != 0,
            "a reserved field of the request is not 0",
        )?;
        match kind {
            2 => Ok(Self::Cancel { tag }),
            3 if tag == 0 => Ok(Self::Ping),
            _ => Err(Malformed("the request has an unknown kind")),
        }
    }
}

/// Why the server refuses a range. The numbers are 1 to 9 in this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RefusalCode {
    /// The node does not serve this snapshot, or not to this token. A peer must not find out which of the two.
    UnknownDataset = 1,
    /// The token is missing or wrong. Nodes of version 0.1.0 send it; others send `UnknownDataset`.
    Denied,
    /// The snapshot has no such block, or the block has no such range.
    NoSuchRange,
    /// The object no longer exists at the origin.
    Gone,
    /// The object at the origin has another version than the snapshot records.
    Stale,
    /// The node could not provide the range before the request's deadline.
    TimedOut,
    /// The range is currently unavailable. A client treats unknown codes as this one.
    Unavailable,
    /// The node is stopping. The client should ask another node.
    Stopping,
    /// No block can contain the range, or no dataset can have the token. This is a bug in the client.
    Invalid,
}

impl RefusalCode {
    /// All codes, in the order of their numbers.
    pub const ALL: [Self; 9] = [
        Self::UnknownDataset,
        Self::Denied,
        Self::NoSuchRange,
        Self::Gone,
        Self::Stale,
        Self::TimedOut,
        Self::Unavailable,
        Self::Stopping,
        Self::Invalid,
    ];

    fn of(number: u8) -> Self {
        Self::ALL.into_iter().find(|code| *code as u8 == number).unwrap_or(Self::Unavailable)
    }
}

/// A frame from the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// The next piece of a range. Its bytes follow the frame; after the last piece, the sum follows too.
    Bytes {
        /// The tag of the read that is answered.
        tag: u32,
        /// The length of the piece in bytes, without the sum.
        len: u32,
    },
    /// The server does not send the range, or not the rest of it. The reason follows the frame as text.
    Refusal {
        /// The tag of the read that is answered.
        tag: u32,
        /// The kind of refusal.
        code: RefusalCode,
        /// The length of the reason in bytes.
        len: u32,
    },
    /// Answers a [`Ping`](Request::Ping).
    Pong,
    /// Requests that the client send new requests on another lane, and close this one once every read is answered.
    Goodbye,
}

impl Answer {
    /// Encodes the frame's head; the body follows it.
    pub fn encode(self) -> [u8; ANSWER_BYTES] {
        let (kind, code, tag, len) = match self {
            Self::Bytes { tag, len } => (1, 0, tag, len),
            Self::Refusal { tag, code, len } => (2, code as u8, tag, len),
            Self::Pong => (3, 0, 0, 0),
            Self::Goodbye => (4, 0, 0, 0),
        };
        let mut bytes = [0; ANSWER_BYTES];
        (bytes[0], bytes[1]) = (kind, code);
        bytes[4..8].copy_from_slice(&tag.to_le_bytes());
        bytes[8..].copy_from_slice(&len.to_le_bytes());
        bytes
    }

    /// Decodes the head of an answer, without its body.
    pub fn decode(bytes: &[u8; ANSWER_BYTES]) -> Result<Self, Malformed> {
        let (kind, code, tag, len) = (bytes[0], bytes[1], u32_at(bytes, 4), u32_at(bytes, 8));
        unless(bytes[2..4] != [0, 0] || (code != 0 && kind != 2), "a reserved field of the answer is not 0")?;
        match kind {
            1 => {
                unless(!(1..=RANGE_BYTES_MOST).contains(&len), "no block can contain a piece of this length")?;
                Ok(Self::Bytes { tag, len })
            }
            2 => {
                unless(len as usize > REASON_BYTES_MOST, "the reason of the refusal is too long")?;
                Ok(Self::Refusal { tag, code: RefusalCode::of(code), len })
            }
            3 | 4 => {
                unless((tag, len) != (0, 0), "a reserved field of the answer is not 0")?;
                Ok(if kind == 3 { Self::Pong } else { Self::Goodbye })
            }
            _ => Err(Malformed("the answer has an unknown kind")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RANGE: WireRange = WireRange { snapshot: [7; 32], block: 0x0102_0304, start: 5, len: 6 };
    const READ: Request = Request::Read {
        tag: 0x0a0b_0c0d,
        range: RANGE,
        token_len: 6,
        forwarded: true,
        cached_only: false,
        deadline_ms: 1500,
    };
    /// The same request for cached bytes only.
    const READ_CACHED: Request = Request::Read {
        tag: 0x0a0b_0c0d,
        range: RANGE,
        token_len: 6,
        forwarded: true,
        cached_only: true,
        deadline_ms: 1500,
    };

    fn encoded(request: &Request) -> Vec<u8> {
        let mut bytes = Vec::new();
        request.encode(&mut bytes);
        bytes
    }

    /// One of each frame from the client, in the order of the drawing. Together with those of [`answered`], they fix
    /// the layout of version 1 permanently.
    fn asked() -> Vec<u8> {
        let requests = [READ, Request::Cancel { tag: 3 }, Request::Ping].map(|request| encoded(&request));
        let [read, cancel, ping] = &requests;
        [&Hello { protocol: 1 }.encode()[..], read, b"sesame", cancel, ping].concat()
    }

    /// One of each frame from the server.
    fn answered() -> Vec<u8> {
        let refusal = Answer::Refusal { tag: 2, code: RefusalCode::Gone, len: 4 };
        let [bytes, refusal, pong, goodbye] =
            [Answer::Bytes { tag: 1, len: 3 }, refusal, Answer::Pong, Answer::Goodbye].map(Answer::encode);
        [&Hello { protocol: 1 }.encode()[..], &bytes, b"abc\x01\x02\x03\x04", &refusal, b"gone", &pong, &goodbye]
            .concat()
    }

    #[test]
    fn the_layout_is_that_of_the_golden_files() {
        // Read at run time: the test binary may have been built in another clone.
        let golden = std::path::PathBuf::from(std::env::var("CARGO_MANIFEST_DIR").unwrap()).join("golden");
        for (name, made) in [("v1-asked.frames", asked()), ("v1-answered.frames", answered())] {
            let path = golden.join(name);
            if std::env::var_os("LARDER_WRITE_GOLDEN").is_some() {
                std::fs::write(&path, &made).unwrap();
            }
            assert!(std::fs::read(&path).is_ok_and(|kept| kept == made), "{name}: the layout changed");
        }
    }

    #[test]
    fn frames_survive_the_wire() {
        for request in [READ, READ_CACHED, Request::Cancel { tag: u32::MAX }, Request::Ping] {
            let bytes = encoded(&request);
            assert_eq!(bytes.len(), Request::len_of(bytes[..REQUEST_BYTES].try_into().unwrap()));
            assert_eq!(Request::decode(&bytes), Ok(request));
        }
        let refusals = RefusalCode::ALL.map(|code| Answer::Refusal { tag: 9, code, len: 0 });
        let others = [Answer::Bytes { tag: 1, len: RANGE_BYTES_MOST }, Answer::Pong, Answer::Goodbye];
        for answer in others.into_iter().chain(refusals) {
            assert_eq!(Answer::decode(&answer.encode()), Ok(answer));
        }
        assert_eq!(Hello::decode(&Hello { protocol: 7 }.encode()), Ok(Hello { protocol: 7 }));
    }

    /// A node that does not know the bit sees a read whose deadline exceeds its limit.
    #[test]
    fn a_read_of_what_is_cached_differs_in_the_highest_bit_of_the_deadline() {
        let mut bytes = encoded(&READ);
        assert_eq!(bytes[23], 0);
        bytes[23] = 0x80;
        assert_eq!(encoded(&READ_CACHED), bytes);
        let Request::Read { tag, range, token_len, forwarded, cached_only, .. } = READ else { unreachable!() };
        let longest = Request::Read { tag, range, token_len, forwarded, cached_only, deadline_ms: u32::MAX };
        let decoded = Request::decode(&encoded(&longest)).unwrap();
        assert!(matches!(decoded, Request::Read { cached_only: false, deadline_ms: DEADLINE_MS_MOST, .. }));
    }

    #[test]
    fn values_out_of_bounds_are_malformed() {
        let changed = |at: usize, to: u8| {
            let mut bytes = encoded(&READ);
            bytes[at] = to;
            Request::decode(&bytes)
        };
        for outcome in [changed(1, 2), changed(3, 0x11), changed(0, 4), Request::decode(&encoded(&READ)[..55])] {
            assert!(outcome.is_err(), "{outcome:?}");
        }
        assert!(Request::decode(&[9, 0, 0, 0, 0, 0, 0, 0]).is_err());
        assert!(Request::decode(&[3, 0, 0, 0, 1, 0, 0, 0]).is_err());
        let answer = |kind, code, len: u32| {
            let mut bytes = [0; ANSWER_BYTES];
            (bytes[0], bytes[1]) = (kind, code);
            bytes[8..].copy_from_slice(&len.to_le_bytes());
            Answer::decode(&bytes)
        };
        let too_long = RANGE_BYTES_MOST + 1;
        for (kind, code, len) in [(1, 0, 0), (1, 0, too_long), (1, 1, 5), (2, 1, 1025), (3, 0, 1), (4, 1, 0), (5, 0, 0)]
        {
            assert!(answer(kind, code, len).is_err(), "{kind} {code} {len}");
        }
        // A code of a later version.
        assert_eq!(answer(2, 99, 0), Ok(Answer::Refusal { tag: 0, code: RefusalCode::Unavailable, len: 0 }));
        assert!(Hello::decode(b"PRI * HTTP/2.0\r\n").is_err());
    }

    #[test]
    fn a_range_is_possible_if_a_block_can_have_it() {
        let possible = |start, len| WireRange { start, len, ..RANGE }.is_possible();
        assert!(possible(0, RANGE_BYTES_MOST) && possible(RANGE_BYTES_MOST - 1, 1));
        assert!(!possible(0, 0) && !possible(1, RANGE_BYTES_MOST) && !possible(u32::MAX, u32::MAX));
    }
}
