//! Makes the kubelet's requests acceptable to our gRPC server. The kubelet dials the registration socket by its path,
//! and its gRPC library sends that path as `:authority`, percent-encoded. HTTP/2 does not allow such an authority: `h2`
//! resets the stream, while servers in Go ignore the violation. On that socket, every authority is therefore replaced
//! by `localhost` before the server reads it.
//!
//! Only header frames from the client are changed. A connection that violates HTTP/2 (RFC 9113) in any other way is
//! closed.

use std::io;

use loona_hpack::Decoder;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, DuplexStream};
use tracing::debug;

const PREFACE_BYTES: usize = 24;
const FRAME_HEADER_BYTES: usize = 9;

/// The largest frame that a client may send by default; our server does not raise the limit.
const FRAME_MAX_BYTES: usize = 16 << 10;

/// The largest size of one set of headers, summed over its frames.
const HEADERS_MAX_BYTES: usize = 64 << 10;

const HEADERS: u8 = 0x1;
const CONTINUATION: u8 = 0x9;
const END_STREAM: u8 = 0x1;
const END_HEADERS: u8 = 0x4;
const PADDED: u8 = 0x8;
const PRIORITY: u8 = 0x20;

/// Wraps a client's connection, and returns the stream for the server, with replaced authorities. A task copies the
/// data until either end closes. Must be called within a tokio runtime.
pub(crate) fn replaced(client: impl AsyncRead + AsyncWrite + Send + 'static) -> DuplexStream {
    let (server, ours) = tokio::io::duplex(64 << 10);
    tokio::spawn(async move {
        let (mut from_client, mut to_client) = tokio::io::split(client);
        let (mut from_server, mut to_server) = tokio::io::split(ours);
        let outcome = tokio::select! {
            outcome = forward(&mut from_client, &mut to_server) => outcome,
            outcome = tokio::io::copy(&mut from_server, &mut to_client) => outcome.map(|_| ()),
        };
        if let Err(error) = outcome {
            debug!(%error, "close a connection to the registration socket");
        }
    });
    server
}

struct Frame {
    kind: u8,
    flags: u8,
    stream: [u8; 4],
    payload: Vec<u8>,
}

impl Frame {
    async fn read(from: &mut (impl AsyncRead + Unpin)) -> io::Result<Self> {
        let mut header = [0; FRAME_HEADER_BYTES];
        from.read_exact(&mut header).await?;
        let [a, b, c, kind, flags, stream @ ..] = header;
        let len = u32::from_be_bytes([0, a, b, c]) as usize;
        if len > FRAME_MAX_BYTES {
            return Err(io::ErrorKind::InvalidData.into());
        }
        let mut payload = vec![0; len];
        from.read_exact(&mut payload).await?;
        Ok(Self { kind, flags, stream, payload })
    }

    async fn write(&self, to: &mut (impl AsyncWrite + Unpin)) -> io::Result<()> {
        let len = u32::try_from(self.payload.len()).map_err(|_| io::ErrorKind::InvalidData)?.to_be_bytes();
        let mut bytes = vec![len[1], len[2], len[3], self.kind, self.flags];
        bytes.extend(self.stream);
        bytes.extend(&self.payload);
        to.write_all(&bytes).await
    }

    /// The header block of a HEADERS frame, without padding and priority.
    fn fragment(&self) -> Option<&[u8]> {
        let mut rest = &self.payload[..];
        let mut padding = 0;
        if self.flags & PADDED != 0 {
            let (&len, after) = rest.split_first()?;
            (padding, rest) = (usize::from(len), after);
        }
        if self.flags & PRIORITY != 0 {
            rest = rest.get(5..)?;
        }
        rest.get(..rest.len().checked_sub(padding)?)
    }
}

async fn forward(from: &mut (impl AsyncRead + Unpin), to: &mut (impl AsyncWrite + Unpin)) -> io::Result<()> {
    let mut preface = [0; PREFACE_BYTES];
    from.read_exact(&mut preface).await?;
    to.write_all(&preface).await?;
    let mut decoder = Decoder::new();
    loop {
        let frame = match Frame::read(from).await {
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(()),
            frame => frame?,
        };
        if frame.kind != HEADERS {
            frame.write(to).await?;
            continue;
        }
        let mut block = frame.fragment().ok_or(io::ErrorKind::InvalidData)?.to_vec();
        let mut ended = frame.flags & END_HEADERS != 0;
        while !ended {
            let more = Frame::read(from).await?;
            if more.kind != CONTINUATION || block.len() + more.payload.len() > HEADERS_MAX_BYTES {
                return Err(io::ErrorKind::InvalidData.into());
            }
            block.extend(&more.payload);
            ended = more.flags & END_HEADERS != 0;
        }
        let headers = decoder.decode(&block).map_err(|_| io::ErrorKind::InvalidData)?;
        let payload = encode(headers.iter().map(|(name, value)| (&name[..], &value[..])));
        if payload.len() > FRAME_MAX_BYTES {
            return Err(io::ErrorKind::InvalidData.into());
        }
        let flags = frame.flags & END_STREAM | END_HEADERS;
        Frame { kind: HEADERS, flags, stream: frame.stream, payload }.write(to).await?;
    }
}

/// Encodes headers as literals that do not enter the receiver's table (RFC 7541, 6.2.2), without Huffman coding.
fn encode<'a>(headers: impl Iterator<Item = (&'a [u8], &'a [u8])>) -> Vec<u8> {
    let mut block = Vec::new();
    for (name, value) in headers {
        let value = if name == b":authority" { b"localhost" } else { value };
        block.push(0);
        for text in [name, value] {
            encode_len(text.len(), &mut block);
            block.extend(text);
        }
    }
    block
}

/// Encodes an integer with a prefix of seven bits (RFC 7541, 5.1).
fn encode_len(len: usize, block: &mut Vec<u8>) {
    const PREFIX: usize = 0x7f;
    if len < PREFIX {
        block.push(len as u8);
        return;
    }
    block.push(PREFIX as u8);
    let mut rest = len - PREFIX;
    while rest >= 0x80 {
        block.push((rest % 0x80) as u8 | 0x80);
        rest /= 0x80;
    }
    block.push(rest as u8);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_come_through_with_another_authority() {
        let long = vec![b'v'; 300];
        let headers: [(&[u8], &[u8]); 3] =
            [(b":authority", b"%2Fvar%2Flib%2Fkubelet"), (b"long", &long), (b"short", b"")];
        let decoded = Decoder::new().decode(&encode(headers.into_iter())).expect("sound HPACK");
        let wanted: [(&[u8], &[u8]); 3] = [(b":authority", b"localhost"), (b"long", &long), (b"short", b"")];
        let decoded: Vec<(&[u8], &[u8])> = decoded.iter().map(|(name, value)| (&name[..], &value[..])).collect();
        assert_eq!(decoded, wanted);
    }

    #[tokio::test]
    async fn a_client_that_calls_us_by_our_path_is_heard() {
        let (mut client, theirs) = tokio::io::duplex(1 << 10);
        let mut server = replaced(theirs);
        let preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
        // A literal `:authority` that enters the table, then the same header by its index there.
        let first = [&b"\x41\x04%2Fv"[..], b"\x83"].concat();
        let ping = Frame { kind: 6, flags: 0, stream: [0; 4], payload: vec![7; 8] };
        client.write_all(preface).await.expect("room");
        for payload in [first, vec![0xbe]] {
            ping.write(&mut client).await.expect("room");
            let flags = END_HEADERS | END_STREAM;
            Frame { kind: HEADERS, flags, stream: [0, 0, 0, 1], payload }.write(&mut client).await.expect("room");
        }
        let mut got = [0; PREFACE_BYTES];
        server.read_exact(&mut got).await.expect("the preface");
        assert_eq!(&got, preface);
        let mut decoder = Decoder::new();
        for _ in 0..2 {
            assert_eq!(Frame::read(&mut server).await.expect("the ping").payload, ping.payload);
            let frame = Frame::read(&mut server).await.expect("headers");
            assert_eq!((frame.flags, frame.stream), (END_HEADERS | END_STREAM, [0, 0, 0, 1]));
            let headers = decoder.decode(&frame.payload).expect("sound HPACK");
            assert_eq!((&headers[0].0[..], &headers[0].1[..]), (&b":authority"[..], &b"localhost"[..]));
        }
        // Bytes from the server pass unchanged.
        server.write_all(b"answer").await.expect("room");
        let mut answer = [0; 6];
        client.read_exact(&mut answer).await.expect("an answer");
        assert_eq!(&answer, b"answer");
    }

    #[test]
    fn padding_and_priority_are_no_headers() {
        let frame = |flags, payload: &[u8]| Frame { kind: HEADERS, flags, stream: [0; 4], payload: payload.to_vec() };
        assert_eq!(frame(0, b"abc").fragment(), Some(&b"abc"[..]));
        assert_eq!(frame(PADDED | PRIORITY, b"\x02pppppabcxx").fragment(), Some(&b"abc"[..]));
        assert_eq!(frame(PADDED, b"\x09abc").fragment(), None);
        assert_eq!(frame(PRIORITY, b"abc").fragment(), None);
    }
}
