//! The part of HTTP/1.1 that the proxy needs: where heads and bodies end.

use std::io;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::fault::RequestHead;

/// The maximum length of a head or a line; longer ones are errors.
const HEAD_LIMIT: usize = 64 << 10;

/// The length of a body.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Length {
    Bytes(u64),
    Chunked,
    UntilClose,
}

/// A stream, and the bytes that were read from it but not yet used.
pub(super) struct Buffered {
    pub(super) stream: TcpStream,
    buffer: Vec<u8>,
}

impl Buffered {
    pub(super) fn new(stream: TcpStream) -> Self {
        Self { stream, buffer: Vec::new() }
    }

    /// Reads a head including its empty line; `None` if the connection ends before a head begins.
    pub(super) async fn read_head(&mut self) -> io::Result<Option<Vec<u8>>> {
        loop {
            if let Some(end) = self.buffer.windows(4).position(|four| four == b"\r\n\r\n") {
                return Ok(Some(self.buffer.drain(..end + 4).collect()));
            }
            if self.buffer.len() > HEAD_LIMIT {
                return Err(io::Error::other("head too long"));
            }
            match self.fill().await {
                Err(error) if error.kind() == io::ErrorKind::UnexpectedEof && self.buffer.is_empty() => {
                    return Ok(None);
                }
                filled => filled?,
            }
        }
    }

    async fn read_line(&mut self) -> io::Result<Vec<u8>> {
        loop {
            if let Some(end) = self.buffer.windows(2).position(|pair| pair == b"\r\n") {
                return Ok(self.buffer.drain(..end + 2).collect());
            }
            if self.buffer.len() > HEAD_LIMIT {
                return Err(io::Error::other("line too long"));
            }
            self.fill().await?;
        }
    }

    /// Reads at least one byte and at most `most`.
    pub(super) async fn read_some(&mut self, most: u64) -> io::Result<Vec<u8>> {
        if self.buffer.is_empty() {
            self.fill().await?;
        }
        let taken = usize::try_from(most).unwrap_or(usize::MAX).min(self.buffer.len());
        Ok(self.buffer.drain(..taken).collect())
    }

    async fn fill(&mut self) -> io::Result<()> {
        let mut chunk = vec![0; 64 << 10];
        match self.stream.read(&mut chunk).await? {
            0 => Err(io::ErrorKind::UnexpectedEof.into()),
            n => {
                self.buffer.extend_from_slice(&chunk[..n]);
                Ok(())
            }
        }
    }

    /// Forwards at most `stop` bytes of a body. Returns whether the whole body was forwarded.
    pub(super) async fn forward_body(
        &mut self,
        to: &mut TcpStream,
        length: Length,
        stop: Option<u64>,
    ) -> io::Result<bool> {
        let mut allowed = stop.unwrap_or(u64::MAX);
        let mut left = match length {
            Length::Bytes(bytes) => bytes,
            Length::Chunked | Length::UntilClose => 0,
        };
        loop {
            if length == Length::Chunked && left == 0 {
                // A chunk's head is forwarded unchanged; the last chunk is empty and followed by trailers and an empty
                // line.
                let line = self.read_line().await?;
                to.write_all(&line).await?;
                let digits = line.split(|byte| !byte.is_ascii_hexdigit()).next().unwrap_or_default();
                let size = u64::from_str_radix(&String::from_utf8_lossy(digits), 16).map_err(io::Error::other)?;
                if size == 0 {
                    loop {
                        let line = self.read_line().await?;
                        to.write_all(&line).await?;
                        if line == b"\r\n" {
                            return Ok(true);
                        }
                    }
                }
                left = size + 2;
            }
            if length != Length::UntilClose && left == 0 {
                return Ok(true);
            }
            if allowed == 0 {
                return Ok(false);
            }
            let most = if length == Length::UntilClose { allowed } else { left.min(allowed) };
            let chunk = match self.read_some(most).await {
                Err(error) if error.kind() == io::ErrorKind::UnexpectedEof && length == Length::UntilClose => {
                    return Ok(true);
                }
                chunk => chunk?,
            };
            to.write_all(&chunk).await?;
            allowed -= chunk.len() as u64;
            left = left.saturating_sub(chunk.len() as u64);
        }
    }
}

fn headers_of(head: &[u8]) -> Vec<(String, String)> {
    let text = String::from_utf8_lossy(head);
    let pairs = text.split("\r\n").skip(1).filter_map(|line| line.split_once(':'));
    pairs.map(|(name, value)| (name.to_string(), value.trim().to_string())).collect()
}

pub(super) fn parse_request(head: &[u8], seq: u64) -> io::Result<RequestHead> {
    let text = String::from_utf8_lossy(head);
    let mut words = text.split("\r\n").next().unwrap_or_default().split(' ');
    match (words.next(), words.next()) {
        (Some(method), Some(path)) => {
            Ok(RequestHead { method: method.to_string(), path: path.to_string(), headers: headers_of(head), seq })
        }
        _ => Err(io::Error::other("no request line")),
    }
}

pub(super) fn request_length(request: &RequestHead) -> io::Result<u64> {
    if request.header("transfer-encoding").is_some() {
        return Err(io::Error::other("a chunked request body is not forwarded"));
    }
    request.header("content-length").map_or(Ok(0), |length| length.parse().map_err(io::Error::other))
}

pub(super) fn status_of(head: &[u8]) -> io::Result<u16> {
    let text = String::from_utf8_lossy(head);
    let status = text.split(' ').nth(1).unwrap_or_default();
    status.parse().map_err(io::Error::other)
}

pub(super) fn answer_length(request: &RequestHead, head: &[u8]) -> io::Result<Length> {
    let status = status_of(head)?;
    if request.method == "HEAD" || status == 204 || status == 304 {
        return Ok(Length::Bytes(0));
    }
    let headers = headers_of(head);
    let get = |name: &str| headers.iter().find(|(header, _)| header.eq_ignore_ascii_case(name)).map(|(_, value)| value);
    if get("transfer-encoding").is_some_and(|value| value.eq_ignore_ascii_case("chunked")) {
        return Ok(Length::Chunked);
    }
    match get("content-length") {
        Some(length) => Ok(Length::Bytes(length.parse().map_err(io::Error::other)?)),
        None => Ok(Length::UntilClose),
    }
}

/// Whether the sender of this head closes the connection after the body.
pub(super) fn closes(head: &[u8]) -> bool {
    headers_of(head)
        .iter()
        .any(|(name, value)| name.eq_ignore_ascii_case("connection") && value.eq_ignore_ascii_case("close"))
}

pub(super) fn with_length_off_by(head: &[u8], delta: i64) -> Vec<u8> {
    let text = String::from_utf8_lossy(head);
    let lines = text.split("\r\n").map(|line| match line.split_once(':') {
        Some((name, value)) if name.eq_ignore_ascii_case("content-length") => {
            let length: u64 = value.trim().parse().unwrap_or_default();
            format!("{name}: {}", length.saturating_add_signed(delta))
        }
        _ => line.to_string(),
    });
    lines.collect::<Vec<_>>().join("\r\n").into_bytes()
}
