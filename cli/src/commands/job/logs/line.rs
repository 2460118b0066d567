//! The lines of a log: read with bounded memory, and printed without terminal control sequences.

use std::io;

use futures::io::{AsyncBufRead, AsyncBufReadExt};
use k8s_openapi::jiff::Timestamp;

/// The longest line that is not split, in bytes.
const LINE_BYTES: usize = 64 << 10;

/// A line, or a part of a long one.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Line {
    /// Whether this part begins a line.
    pub(super) begins: bool,
    /// The bytes, without the line terminator.
    pub(super) bytes: Vec<u8>,
}

/// Reads lines.
pub(super) struct Lines<R> {
    reader: R,
    is_within: bool,
}

impl<R: AsyncBufRead + Unpin> Lines<R> {
    pub(super) fn new(reader: R) -> Self {
        Self { reader, is_within: false }
    }

    /// The next line; `None` at the end.
    pub(super) async fn next(&mut self) -> io::Result<Option<Line>> {
        let mut line = Line { begins: !self.is_within, bytes: Vec::new() };
        loop {
            let chunk = self.reader.fill_buf().await?;
            if chunk.is_empty() {
                let is_rest = !line.bytes.is_empty();
                self.is_within = false;
                return Ok(is_rest.then_some(line));
            }
            let room = &chunk[..chunk.len().min(LINE_BYTES - line.bytes.len())];
            let end = room.iter().position(|byte| *byte == b'\n');
            let taken = end.unwrap_or(room.len());
            line.bytes.extend_from_slice(&room[..taken]);
            self.reader.consume_unpin(taken + usize::from(end.is_some()));
            if end.is_some() || line.bytes.len() == LINE_BYTES {
                self.is_within = end.is_none();
                return Ok(Some(line));
            }
        }
    }
}

/// Splits off the timestamp that the kubelet puts before each line.
pub(super) fn stamped(bytes: &[u8]) -> (Option<Timestamp>, &[u8]) {
    let end = bytes.iter().take(64).position(|byte| *byte == b' ').unwrap_or(0);
    let stamp = std::str::from_utf8(&bytes[..end]).ok().and_then(|text| text.parse().ok());
    (stamp, if stamp.is_some() { &bytes[end + 1..] } else { bytes })
}

/// A line for a terminal: the text that would finally be visible, without colours and control sequences.
pub(super) fn shown(bytes: &[u8]) -> String {
    let text = String::from_utf8_lossy(bytes);
    // Progress bars overwrite their line with \r; only the last text counts.
    let text = text.trim_end_matches('\r').rsplit('\r').next().unwrap_or_default();
    let mut shown = String::with_capacity(text.len());
    let mut chars = text.chars().peekable();
    while let Some(c) = chars.next() {
        if c == '\u{1b}' && chars.peek() == Some(&'[') {
            chars.next();
            // Skips a control sequence up to its final letter.
            while chars.next_if(|c| matches!(c, ' '..='?')).is_some() {}
            chars.next_if(|c| matches!(c, '@'..='~'));
        } else {
            shown.push(c);
        }
    }
    shown
}

#[cfg(test)]
mod tests {
    use futures::executor::block_on;
    use futures::io::Cursor;

    use super::*;

    fn lines(bytes: &[u8]) -> Vec<(bool, Vec<u8>)> {
        let mut lines = Lines::new(Cursor::new(bytes));
        let next = || block_on(lines.next()).unwrap();
        std::iter::from_fn(next).map(|line| (line.begins, line.bytes)).collect()
    }

    #[test]
    fn lines_lose_their_terminators_and_long_lines_are_split() {
        let of = |text: &str| (true, text.as_bytes().to_vec());
        assert_eq!(lines(b"a\n\nb\r\nlast"), [of("a"), of(""), of("b\r"), of("last")]);
        assert_eq!(lines(b""), []);
        let long = [vec![b'x'; LINE_BYTES + 3], b"\ny\n".to_vec()].concat();
        let parts: Vec<(bool, usize)> = lines(&long).into_iter().map(|(begins, bytes)| (begins, bytes.len())).collect();
        assert_eq!(parts, [(true, LINE_BYTES), (false, 3), (true, 1)]);
    }

    #[test]
    fn the_timestamp_of_a_line_is_split_off() {
        let (stamp, line) = stamped(b"2026-01-31T09:00:00.123456789Z step 1");
        assert_eq!(
            (stamp.map(|time| time.to_string()).as_deref(), line),
            (Some("2026-01-31T09:00:00.123456789Z"), &b"step 1"[..])
        );
        assert_eq!(stamped(b"2026-01-31T09:00:00Z "), ("2026-01-31T09:00:00Z".parse().ok(), &b""[..]));
        for bare in [&b"no time"[..], b"", b" x", b"\xff\xfe x"] {
            assert_eq!(stamped(bare), (None, bare));
        }
    }

    #[test]
    fn a_terminal_sees_overwritten_text_once_and_no_control_characters() {
        for (written, seen) in [
            (&b"\x1b[1;31mloss\x1b[0m 0.5"[..], "loss 0.5"),
            (b"10 %\r50 %\r100 %\r", "100 %"),
            (b"a\x1b[2", "a"),
            (b"caf\xc3\xa9 \xff", "caf\u{e9} \u{fffd}"),
            // Other control characters are replaced when the line is printed.
            (b"\x1b]0;title\x07x", "\u{1b}]0;title\u{7}x"),
        ] {
            assert_eq!(shown(written), seen);
        }
    }
}
