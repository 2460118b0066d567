//! One persistent connection to the extender, as kube-scheduler has.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use anyhow::{Context, bail, ensure};

/// The timeout of a response.
const LONGEST: Duration = Duration::from_secs(10);

/// A connection and the buffer of its last response.
pub(super) struct Connection {
    stream: TcpStream,
    buffer: Vec<u8>,
}

impl Connection {
    pub(super) fn open(address: SocketAddr) -> anyhow::Result<Self> {
        let stream = TcpStream::connect(address).with_context(|| format!("connect to {address}"))?;
        stream.set_nodelay(true).context("set TCP_NODELAY")?;
        stream.set_read_timeout(Some(LONGEST)).context("set the read timeout")?;
        Ok(Self { stream, buffer: Vec::new() })
    }

    /// Sends a complete request and returns the body of the response. Fails unless the status is 200.
    pub(super) fn ask(&mut self, request: &[u8]) -> anyhow::Result<&[u8]> {
        self.stream.write_all(request).context("ask the extender")?;
        self.buffer.clear();
        let head = loop {
            if let Some(end) = self.buffer.windows(4).position(|four| four == b"\r\n\r\n") {
                break end + 4;
            }
            self.read()?;
        };
        let text = String::from_utf8_lossy(&self.buffer[..head]).to_ascii_lowercase();
        let length = text.lines().find_map(|line| line.strip_prefix("content-length:")?.trim().parse::<usize>().ok());
        let length = length.context("the extender's response has no content-length")?;
        while self.buffer.len() < head + length {
            self.read()?;
        }
        let body = &self.buffer[head..];
        if !text.starts_with("http/1.1 200 ") {
            bail!("the extender rejects the request: {}", String::from_utf8_lossy(body).trim());
        }
        Ok(body)
    }

    fn read(&mut self) -> anyhow::Result<()> {
        let there = self.buffer.len();
        self.buffer.resize(there + (64 << 10), 0);
        let read = self.stream.read(&mut self.buffer[there..]).context("read the extender's response")?;
        self.buffer.truncate(there + read);
        ensure!(read > 0, "the extender closed the connection");
        Ok(())
    }
}

/// A complete request to a verb.
pub(super) fn post(verb: &str, body: &[u8]) -> Vec<u8> {
    let head = format!(
        "POST /{verb} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n",
        body.len()
    );
    [head.as_bytes(), body].concat()
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    /// Accepts one connection and answers each request with the next text.
    fn answering(texts: &'static [&'static str]) -> Connection {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            for text in texts {
                assert!(stream.read(&mut [0; 4096]).unwrap() > 0);
                // In two parts, as a network may deliver it.
                let (first, rest) = text.split_at(text.len() / 2);
                stream.write_all(first.as_bytes()).unwrap();
                stream.write_all(rest.as_bytes()).unwrap();
            }
        });
        Connection::open(address).unwrap()
    }

    #[test]
    fn a_connection_reads_successive_responses() {
        let texts =
            &["HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nabc", "HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n"];
        let mut connection = answering(texts);
        assert_eq!(connection.ask(&post("filter", b"{}")).unwrap(), b"abc");
        assert_eq!(connection.ask(&post("filter", b"{}")).unwrap(), b"");
        assert!(connection.ask(b"x").unwrap_err().to_string().contains("extender"));
    }

    #[test]
    fn a_rejection_is_an_error_with_the_reason() {
        let mut connection = answering(&["HTTP/1.1 400 Bad Request\r\ncontent-length: 15\r\n\r\nPod is missing\n"]);
        let error = connection.ask(&post("filter", b"{}")).unwrap_err().to_string();
        assert_eq!(error, "the extender rejects the request: Pod is missing");
    }
}
