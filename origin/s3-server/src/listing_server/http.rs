//! The part of HTTP/1.1 that a listing needs: requests without bodies, and answers with a length.

use std::io;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

const HEAD_BYTES_MAX: usize = 64 << 10;

/// The head of a request.
pub(super) struct Request(String);

/// Reads a request; `None` if the client has closed the connection.
pub(super) async fn read_request(stream: &mut TcpStream, buffer: &mut Vec<u8>) -> io::Result<Option<Request>> {
    loop {
        if let Some(end) = buffer.windows(4).position(|four| four == b"\r\n\r\n") {
            let head = String::from_utf8_lossy(&buffer[..end]).into_owned();
            buffer.drain(..end + 4);
            return Ok(Some(Request(head)));
        }
        if buffer.len() > HEAD_BYTES_MAX {
            return Err(io::Error::other("the head of a request is too long"));
        }
        if stream.read_buf(buffer).await? == 0 {
            return Ok(None);
        }
    }
}

/// Sends an answer. `headers` must be empty or end with a line break.
pub(super) async fn send(
    stream: &mut TcpStream,
    status: &str,
    headers: &str,
    body: &[u8],
    head_only: bool,
) -> io::Result<()> {
    let mut answer = format!("HTTP/1.1 {status}\r\n{headers}Content-Length: {}\r\n\r\n", body.len()).into_bytes();
    if !head_only {
        answer.extend_from_slice(body);
    }
    stream.write_all(&answer).await
}

impl Request {
    fn target(&self) -> &str {
        self.0.split(' ').nth(1).unwrap_or_default()
    }

    pub(super) fn is_head(&self) -> bool {
        self.0.starts_with("HEAD ")
    }

    pub(super) fn is_listing(&self) -> bool {
        self.0.starts_with("GET ") && self.target().contains("list-type=2")
    }

    /// A decoded parameter of the query.
    pub(super) fn parameter(&self, name: &str) -> Option<Vec<u8>> {
        let (_, query) = self.target().split_once('?')?;
        let value = query.split('&').find_map(|pair| pair.strip_prefix(name)?.strip_prefix('='))?;
        Some(percent_encoding::percent_decode_str(value).collect())
    }

    /// The signing time of the request, in seconds since the epoch.
    pub(super) fn signed_at(&self) -> Option<i64> {
        let line = self.0.lines().find(|line| line.to_ascii_lowercase().starts_with("x-amz-date:"))?;
        let (_, value) = line.split_once(':')?;
        let number = |from: usize, to: usize| value.trim().get(from..to)?.parse::<i64>().ok();
        let (year, month, day) = (number(0, 4)?, number(4, 6)?, number(6, 8)?);
        let (hour, minute, second) = (number(9, 11)?, number(11, 13)?, number(13, 15)?);
        Some(((days(year, month, day) * 24 + hour) * 60 + minute) * 60 + second)
    }
}

/// Converts a date to days since the epoch, by Howard Hinnant's algorithm.
fn days(year: i64, month: i64, day: i64) -> i64 {
    let year = if month <= 2 { year - 1 } else { year };
    let (era, of_era) = (year.div_euclid(400), year.rem_euclid(400));
    let of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    era * 146_097 + of_era * 365 + of_era / 4 - of_era / 100 + of_year - 719_468
}

/// Converts a time to seconds since the epoch.
pub(super) fn seconds(time: SystemTime) -> i64 {
    time.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs().cast_signed()
}

/// The header with the server's time.
pub(super) fn date_header(seconds: i64) -> String {
    let time = UNIX_EPOCH + Duration::from_secs(seconds.max(0).cast_unsigned());
    format!("Date: {}\r\n", httpdate::fmt_http_date(time))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_of_a_signature_is_read() {
        let request = Request("GET /b/?list-type=2&prefix=a%2Fb HTTP/1.1\r\nX-Amz-Date: 20130524T000001Z".into());
        assert_eq!(request.signed_at(), Some(1_369_353_601));
        assert_eq!(request.parameter("prefix").as_deref(), Some(&b"a/b"[..]));
        assert!(request.is_listing() && !request.is_head());
        assert_eq!(date_header(1_369_353_601), "Date: Fri, 24 May 2013 00:00:01 GMT\r\n");
    }
}
