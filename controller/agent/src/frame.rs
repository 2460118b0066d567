//! The messages between a launcher and an agent, inside TLS.
//!
//! ```text
//!  0        1              5
//!  ┌────────┬──────────────┬─────────────────┐
//!  │ kind u8│ length u32 LE│ length bytes    │   length ≤ PAYLOAD_BYTES_MOST
//!  └────────┴──────────────┴─────────────────┘
//! ```
//! The agent sends `Welcome` first. A launcher that only checks whether the agent answers then disconnects; any other
//! launcher sends `Run`, once. The agent ends the conversation with `Exit` or `Failed`.

/// The version of this protocol, which `Welcome` carries.
pub(crate) const VERSION: u8 = 1;
/// The size of the header of a frame.
pub(crate) const HEADER_BYTES: usize = 5;
/// The largest payload, which is a command's.
pub(crate) const PAYLOAD_BYTES_MOST: usize = 128 * 1024;
/// The largest number of bytes of a stream that may be in flight, sent and not consumed. Both ends enforce it.
pub(crate) const WINDOW_BYTES: u32 = 256 * 1024;

/// One of the three standard streams of a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stream {
    /// Flows to the command.
    Stdin,
    /// Flows from the command.
    Stdout,
    /// Flows from the command.
    Stderr,
}

/// One message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Frame<'a> {
    /// From the agent: the launcher has proved that it has the key. Carries the agent's version of the protocol.
    Welcome(u8),
    /// From the launcher: run this command with the shell.
    Run(&'a [u8]),
    /// Bytes of a stream: at least one, and no more than the receiver has granted.
    Data(Stream, &'a [u8]),
    /// The stream has ended.
    End(Stream),
    /// The receiver of a stream has consumed this many bytes.
    Granted(Stream, u32),
    /// From the launcher: send a signal to the processes of the command.
    Signal(u8),
    /// Keeps the connection alive.
    Alive,
    /// From the agent: the command has exited with this status, and its output streams have ended.
    Exit(u8),
    /// From the agent: the command could not be started, for this reason.
    Failed(&'a [u8]),
}

/// Why bytes are not a valid frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum FrameError {
    /// The kind of the frame is unknown.
    #[error("a message of the unknown kind {0}")]
    Kind(u8),
    /// The payload is longer than [`PAYLOAD_BYTES_MOST`].
    #[error("a message of {0} bytes")]
    Length(u32),
    /// The payload does not match the kind.
    #[error("a malformed message of the kind {0}")]
    Payload(u8),
}

const WELCOME: u8 = 1;
const RUN: u8 = 2;
const DATA: u8 = 3;
const END: u8 = 4;
const GRANTED: u8 = 5;
const SIGNAL: u8 = 6;
const ALIVE: u8 = 7;
const EXIT: u8 = 8;
const FAILED: u8 = 9;

impl Stream {
    fn code(self) -> u8 {
        match self {
            Self::Stdin => 0,
            Self::Stdout => 1,
            Self::Stderr => 2,
        }
    }

    fn of(code: u8) -> Option<Self> {
        [Self::Stdin, Self::Stdout, Self::Stderr].into_iter().find(|stream| stream.code() == code)
    }
}

impl<'a> Frame<'a> {
    /// Decodes the first frame of `bytes`. Returns it with its length including the header, or `None` if more bytes are
    /// needed.
    pub(crate) fn decode(bytes: &'a [u8]) -> Result<Option<(Self, usize)>, FrameError> {
        let Some((header, rest)) = bytes.split_first_chunk::<HEADER_BYTES>() else { return Ok(None) };
        let [kind, length @ ..] = *header;
        let length = u32::from_le_bytes(length);
        if length as usize > PAYLOAD_BYTES_MOST {
            return Err(FrameError::Length(length));
        }
        if !(WELCOME..=FAILED).contains(&kind) {
            return Err(FrameError::Kind(kind));
        }
        let Some(payload) = rest.get(..length as usize) else { return Ok(None) };
        let frame = Self::of(kind, payload).ok_or(FrameError::Payload(kind))?;
        Ok(Some((frame, HEADER_BYTES + payload.len())))
    }

    fn of(kind: u8, payload: &'a [u8]) -> Option<Self> {
        Some(match (kind, payload) {
            (WELCOME, [version]) => Self::Welcome(*version),
            (RUN, command @ [_, ..]) if !command.contains(&0) => Self::Run(command),
            (DATA, [stream, bytes @ ..]) if !bytes.is_empty() => Self::Data(Stream::of(*stream)?, bytes),
            (END, [stream]) => Self::End(Stream::of(*stream)?),
            (GRANTED, [stream, bytes @ ..]) => {
                Self::Granted(Stream::of(*stream)?, u32::from_le_bytes(bytes.try_into().ok()?))
            }
            (SIGNAL, [signal]) => Self::Signal(*signal),
            (ALIVE, []) => Self::Alive,
            (EXIT, [status]) => Self::Exit(*status),
            (FAILED, reason) => Self::Failed(reason),
            _ => return None,
        })
    }

    /// Appends the encoded frame. Callers keep payloads within [`PAYLOAD_BYTES_MOST`].
    pub(crate) fn encode(&self, out: &mut Vec<u8>) {
        let mut put = |kind: u8, parts: &[&[u8]]| {
            let length: usize = parts.iter().map(|part| part.len()).sum();
            debug_assert!(length <= PAYLOAD_BYTES_MOST, "{length}");
            out.push(kind);
            out.extend((length as u32).to_le_bytes());
            parts.iter().for_each(|part| out.extend_from_slice(part));
        };
        match *self {
            Self::Welcome(version) => put(WELCOME, &[&[version]]),
            Self::Run(command) => put(RUN, &[command]),
            Self::Data(stream, bytes) => put(DATA, &[&[stream.code()], bytes]),
            Self::End(stream) => put(END, &[&[stream.code()]]),
            Self::Granted(stream, bytes) => put(GRANTED, &[&[stream.code()], &bytes.to_le_bytes()]),
            Self::Signal(signal) => put(SIGNAL, &[&[signal]]),
            Self::Alive => put(ALIVE, &[]),
            Self::Exit(status) => put(EXIT, &[&[status]]),
            Self::Failed(reason) => put(FAILED, &[reason]),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: &[Frame<'_>] = &[
        Frame::Welcome(VERSION),
        Frame::Run(b"true"),
        Frame::Data(Stream::Stdin, b"in"),
        Frame::Data(Stream::Stdout, b"out"),
        Frame::End(Stream::Stderr),
        Frame::Granted(Stream::Stdin, WINDOW_BYTES),
        Frame::Signal(15),
        Frame::Alive,
        Frame::Exit(143),
        Frame::Failed(b"no shell"),
    ];

    #[test]
    fn every_frame_is_read_as_it_was_written_once_it_is_complete() {
        for frame in ALL {
            let mut bytes = Vec::new();
            frame.encode(&mut bytes);
            for part in 0..bytes.len() {
                assert_eq!(Frame::decode(&bytes[..part]), Ok(None), "{frame:?} of {part} bytes");
            }
            bytes.push(1);
            assert_eq!(Frame::decode(&bytes), Ok(Some((*frame, bytes.len() - 1))));
        }
    }

    #[test]
    fn an_invalid_frame_is_rejected_before_its_payload_arrives() {
        assert_eq!(Frame::decode(&[DATA, 1, 0, 2, 0]), Err(FrameError::Length(0x2_0001)));
        assert_eq!(Frame::decode(&[0, 0, 0, 0, 0]), Err(FrameError::Kind(0)));
        assert_eq!(Frame::decode(&[FAILED + 1, 9, 0, 0, 0]), Err(FrameError::Kind(FAILED + 1)));
        for (kind, payload) in
            [(DATA, &[0][..]), (DATA, &[3, 1]), (RUN, &[]), (RUN, b"a\0b"), (ALIVE, &[1]), (END, &[])]
        {
            let mut bytes = vec![kind, payload.len() as u8, 0, 0, 0];
            bytes.extend(payload);
            assert_eq!(Frame::decode(&bytes), Err(FrameError::Payload(kind)), "{bytes:?}");
        }
    }

    /// Agents and launchers of different versions talk to each other, so the bytes of a version never change.
    #[test]
    fn the_bytes_of_version_1_stay() {
        let mut bytes = Vec::new();
        ALL.iter().for_each(|frame| frame.encode(&mut bytes));
        assert_eq!(bytes, include_bytes!("../golden/v1-frames.agent"));
    }
}
