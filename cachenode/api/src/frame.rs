//! How bytes of blocks go from node to node: small frames of a fixed layout on a connection of their own, a *lane*.
//!
//! A lane begins with a [`Hello`] of each side. Then the asker sends [`Request`]s, as many at a time as it likes, and the
//! answerer answers each `Read` exactly once, in any order, by its tag: with the range or a refusal. A range may come in
//! pieces with other answers between them, and be refused in the middle. All numbers are little-endian.
//!
//! ```text
//! Hello       magic "larderbk" 8 · protocol u32 · 0 u32                                                   16 bytes
//! Read        1 u8 · forwarded u8 · token length u16 · tag u32 · block u32 · start u32 · length u32
//!             · deadline ms u32 · snapshot 32                                             56 bytes, then the token
//! Cancel      2 u8 · 0 u8 · 0 u16 · tag u32                                                                8 bytes
//! Ping        3 u8 · 0 u8 · 0 u16 · 0 u32                                                                  8 bytes
//!
//! Bytes       1 u8 · 0 u8 · 0 u16 · tag u32 · length u32            12 bytes, then the range's next piece of that length,
//!                                                                    then, behind the last, the range's sum (u32)
//! Refusal     2 u8 · code u8 · 0 u16 · tag u32 · length u32                    12 bytes, then words for people
//! Pong        3 u8 · 0 u8 · 0 u16 · 0 u32 · 0 u32                                                         12 bytes
//! Goodbye     4 u8 · 0 u8 · 0 u16 · 0 u32 · 0 u32                                                         12 bytes
//! ```
//!
//! The sum is the CRC32C of the range, xor that of what was asked for ([`Wanted::encode`]), so that the bytes of another block
//! do not pass for those that were asked for, and who knows the first from when it was stored need not make it again. It comes
//! last: who has to make it does so as the bytes go by. All pieces but the last have [`PIECE_BYTES_LEAST`] at least.
//!
//! Invariants: what is decoded is within the limits below, and no decoder panics; nothing here does I/O.

/// First in each hello. It cannot be mistaken for the beginning of HTTP/2 or of TLS.
pub const MAGIC: [u8; 8] = *b"larderbk";

/// Bytes of a hello.
pub const HELLO_BYTES: usize = 16;

/// Bytes of the shortest request, and of the first part of all.
pub const REQUEST_BYTES: usize = 8;

/// Bytes of a `Read`, before its token.
pub const READ_BYTES: usize = 56;

/// Bytes of an answer, before what it carries.
pub const ANSWER_BYTES: usize = 12;

/// Bytes of the sum behind a range.
pub const SUM_BYTES: usize = 4;

/// The longest range.
pub const RANGE_BYTES_MOST: u32 = 4 << 20;

/// The shortest piece of a range that is not its last.
pub const PIECE_BYTES_LEAST: u32 = 64 << 10;

/// The longest token.
pub const TOKEN_BYTES_MOST: usize = 4096;

/// The longest words of a refusal.
pub const WORDS_BYTES_MOST: usize = 1024;

/// Why a frame cannot be understood. After it nothing on the lane can be.
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

/// What each side says first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hello {
    /// The protocol it speaks. One that meets another number says its own, and closes.
    pub protocol: u32,
}

impl Hello {
    /// As it is sent.
    pub fn encode(self) -> [u8; HELLO_BYTES] {
        let mut bytes = [0; HELLO_BYTES];
        bytes[..8].copy_from_slice(&MAGIC);
        bytes[8..12].copy_from_slice(&self.protocol.to_le_bytes());
        bytes
    }

    /// Of whatever version, which is told by its number.
    pub fn decode(bytes: &[u8; HELLO_BYTES]) -> Result<Self, Malformed> {
        unless(bytes[..8] != MAGIC, "it does not begin as a lane does")?;
        Ok(Self { protocol: u32_at(bytes, 8) })
    }
}

/// A range of a block of a snapshot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wanted {
    /// Of which snapshot.
    pub snapshot: [u8; 32],
    /// The block's number in it.
    pub block: u32,
    /// First byte, counted from the start of the block.
    pub start: u32,
    /// Bytes: 1 to [`RANGE_BYTES_MOST`], and the range ends within that.
    pub len: u32,
}

impl Wanted {
    /// What a sum covers beside the range: block, start, length, snapshot.
    pub fn encode(&self) -> [u8; 44] {
        let mut bytes = [0; 44];
        for (at, number) in [(0, self.block), (4, self.start), (8, self.len)] {
            bytes[at..at + 4].copy_from_slice(&number.to_le_bytes());
        }
        bytes[12..].copy_from_slice(&self.snapshot);
        bytes
    }

    /// True if a block can have such a range.
    pub fn is_possible(&self) -> bool {
        self.len > 0 && u64::from(self.start) + u64::from(self.len) <= u64::from(RANGE_BYTES_MOST)
    }
}

/// What the asker says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Request {
    /// Give me this range. Its token follows.
    Read {
        /// By which it is answered. No two under way have the same.
        tag: u32,
        /// What is wanted; it may be impossible, which is refused.
        wanted: Wanted,
        /// Bytes of the token; 0: none.
        token_len: u16,
        /// Ask no other node for it.
        forwarded: bool,
        /// How long the asker waits; 0, or more than the answerer's own limit: that limit.
        deadline_ms: u32,
    },
    /// Nobody waits for this read any more. It is answered all the same, by whatever is at hand.
    Cancel {
        /// Which.
        tag: u32,
    },
    /// Say that you are there.
    Ping,
}

impl Request {
    /// As it is sent, appended to `out`. The token of a read goes behind it.
    pub fn encode(&self, out: &mut Vec<u8>) {
        let head = |kind: u8, flag: bool, token_len: u16, tag: u32| {
            let [low, high] = token_len.to_le_bytes();
            let [a, b, c, d] = tag.to_le_bytes();
            [kind, u8::from(flag), low, high, a, b, c, d]
        };
        match self {
            Self::Read { tag, wanted, token_len, forwarded, deadline_ms } => {
                let what = wanted.encode();
                out.extend_from_slice(&head(1, *forwarded, *token_len, *tag));
                out.extend_from_slice(&what[..12]);
                out.extend_from_slice(&deadline_ms.to_le_bytes());
                out.extend_from_slice(&what[12..]);
            }
            Self::Cancel { tag } => out.extend_from_slice(&head(2, false, 0, *tag)),
            Self::Ping => out.extend_from_slice(&head(3, false, 0, 0)),
        }
    }

    /// How long the request is that begins so, without a token.
    pub fn len_of(begin: &[u8; REQUEST_BYTES]) -> usize {
        if begin[0] == 1 { READ_BYTES } else { REQUEST_BYTES }
    }

    /// From as many bytes as [`len_of`](Self::len_of) says.
    pub fn decode(bytes: &[u8]) -> Result<Self, Malformed> {
        unless(bytes.len() < REQUEST_BYTES, "it is too short")?;
        let (kind, flag, token_len, tag) =
            (bytes[0], bytes[1], u16::from_le_bytes([bytes[2], bytes[3]]), u32_at(bytes, 4));
        if kind == 1 {
            unless(bytes.len() != READ_BYTES, "it is too short")?;
            unless(flag > 1, "it has an unknown flag")?;
            unless(usize::from(token_len) > TOKEN_BYTES_MOST, "its token is too long")?;
            let mut snapshot = [0; 32];
            snapshot.copy_from_slice(&bytes[24..READ_BYTES]);
            let [block, start, len, deadline_ms] = [8, 12, 16, 20].map(|at| u32_at(bytes, at));
            let wanted = Wanted { snapshot, block, start, len };
            return Ok(Self::Read { tag, wanted, token_len, forwarded: flag == 1, deadline_ms });
        }
        unless(bytes.len() != REQUEST_BYTES || flag != 0 || token_len != 0, "it says more than it can")?;
        match kind {
            2 => Ok(Self::Cancel { tag }),
            3 if tag == 0 => Ok(Self::Ping),
            _ => Err(Malformed("it asks for something unknown")),
        }
    }
}

/// Why a range is not given. As numbers: 1 to 9 in this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RefusalCode {
    /// The node does not serve this snapshot.
    UnknownDataset = 1,
    /// The token is missing or wrong.
    Denied,
    /// The snapshot has no such block, or the block no such range.
    NoSuchRange,
    /// The object is gone from the origin.
    Gone,
    /// The object in the origin is not the one of the snapshot.
    Stale,
    /// Not within the deadline.
    TimedOut,
    /// It cannot be had at present. Codes that the asker does not know mean the same.
    Unavailable,
    /// The node is stopping: ask another.
    Stopping,
    /// No block can have such a range, or no dataset such a token: a mistake of the asker.
    Invalid,
}

impl RefusalCode {
    /// All there are, in the order of their numbers.
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

/// What the answerer says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// The next piece of the range, which follows; behind the last one, the sum.
    Bytes {
        /// Of which read.
        tag: u32,
        /// Bytes of the piece, without the sum.
        len: u32,
    },
    /// It is not given, or no more of it. Words for people follow.
    Refusal {
        /// Of which read.
        tag: u32,
        /// Why.
        code: RefusalCode,
        /// Bytes of the words.
        len: u32,
    },
    /// I am there.
    Pong,
    /// Ask on another lane from now on; close this one when all that was asked is answered.
    Goodbye,
}

impl Answer {
    /// As it is sent.
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

    /// The head of an answer.
    pub fn decode(bytes: &[u8; ANSWER_BYTES]) -> Result<Self, Malformed> {
        let (kind, code, tag, len) = (bytes[0], bytes[1], u32_at(bytes, 4), u32_at(bytes, 8));
        unless(bytes[2..4] != [0, 0] || (code != 0 && kind != 2), "it says more than it can")?;
        match kind {
            1 => {
                unless(!(1..=RANGE_BYTES_MOST).contains(&len), "it sends a range that no block can have")?;
                Ok(Self::Bytes { tag, len })
            }
            2 => {
                unless(len as usize > WORDS_BYTES_MOST, "it refuses with too many words")?;
                Ok(Self::Refusal { tag, code: RefusalCode::of(code), len })
            }
            3 | 4 => {
                unless((tag, len) != (0, 0), "it says more than it can")?;
                Ok(if kind == 3 { Self::Pong } else { Self::Goodbye })
            }
            _ => Err(Malformed("it answers something unknown")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WANTED: Wanted = Wanted { snapshot: [7; 32], block: 0x0102_0304, start: 5, len: 6 };
    const READ: Request =
        Request::Read { tag: 0x0a0b_0c0d, wanted: WANTED, token_len: 6, forwarded: true, deadline_ms: 1500 };

    fn encoded(request: &Request) -> Vec<u8> {
        let mut bytes = Vec::new();
        request.encode(&mut bytes);
        bytes
    }

    /// What the asker sends, in the order of the drawing, and what the answerer does: the layout of version 1 for good.
    fn asked() -> Vec<u8> {
        let requests = [READ, Request::Cancel { tag: 3 }, Request::Ping].map(|request| encoded(&request));
        let [read, cancel, ping] = &requests;
        [&Hello { protocol: 1 }.encode()[..], read, b"sesame", cancel, ping].concat()
    }

    fn answered() -> Vec<u8> {
        let refusal = Answer::Refusal { tag: 2, code: RefusalCode::Gone, len: 4 };
        let [bytes, refusal, pong, goodbye] =
            [Answer::Bytes { tag: 1, len: 3 }, refusal, Answer::Pong, Answer::Goodbye].map(Answer::encode);
        [&Hello { protocol: 1 }.encode()[..], &bytes, b"abc\x01\x02\x03\x04", &refusal, b"gone", &pong, &goodbye]
            .concat()
    }

    #[test]
    fn the_layout_is_that_of_the_golden_files() {
        // At run time: a test binary may have been built in another clone.
        let golden = std::path::PathBuf::from(std::env::var("CARGO_MANIFEST_DIR").unwrap()).join("golden");
        for (name, made) in [("v1-asked.frames", asked()), ("v1-answered.frames", answered())] {
            let path = golden.join(name);
            if std::env::var_os("LARDER_WRITE_GOLDEN").is_some() {
                std::fs::write(&path, &made).unwrap();
            }
            assert!(std::fs::read(&path).is_ok_and(|kept| kept == made), "{name} has another layout");
        }
    }

    #[test]
    fn frames_survive_the_wire() {
        for request in [READ, Request::Cancel { tag: u32::MAX }, Request::Ping] {
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

    #[test]
    fn what_is_out_of_bounds_is_malformed() {
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
        // A code from the future.
        assert_eq!(answer(2, 99, 0), Ok(Answer::Refusal { tag: 0, code: RefusalCode::Unavailable, len: 0 }));
        assert!(Hello::decode(b"PRI * HTTP/2.0\r\n").is_err());
    }

    #[test]
    fn a_range_is_possible_if_a_block_can_have_it() {
        let possible = |start, len| Wanted { start, len, ..WANTED }.is_possible();
        assert!(possible(0, RANGE_BYTES_MOST) && possible(RANGE_BYTES_MOST - 1, 1));
        assert!(!possible(0, 0) && !possible(1, RANGE_BYTES_MOST) && !possible(u32::MAX, u32::MAX));
    }
}
