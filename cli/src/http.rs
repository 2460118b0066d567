//! One HTTP request with a bounded response.

use anyhow::{Context, anyhow, bail};
use http_body_util::{BodyExt, Empty, LengthLimitError, Limited};
use hyper::body::Bytes;
use hyper::client::conn::http1;
use hyper::{Request, StatusCode, header};
use hyper_util::rt::TokioIo;
use larder_dataset::size::show_bytes;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::task::JoinSet;

use crate::output::cell;

/// The largest headers in bytes.
const HEADERS: usize = 64 << 10;
/// The largest body of an error response in bytes.
const REFUSAL: usize = 4 << 10;

/// GETs a path over a stream, and returns the body. Errors: the response is incomplete, larger than `most` bytes, or
/// has a status other than 200. There is no timeout; the caller sets one.
pub(crate) async fn get<S>(stream: S, host: &str, path: &str, most: usize) -> anyhow::Result<Bytes>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let builder = http1::Builder::new().max_buf_size(HEADERS).handshake(TokioIo::new(stream)).await;
    let (mut sender, connection) = builder.context("the connection failed")?;
    // The connection's task ends with this request.
    let mut driver = JoinSet::new();
    driver.spawn(connection);
    let request = Request::get(path).header(header::HOST, host).body(Empty::<Bytes>::new())?;
    let response = sender.send_request(request).await.context("the response is not HTTP")?;
    let status = response.status();
    let most = if status == StatusCode::OK { most } else { REFUSAL };
    let body = match Limited::new(response.into_body(), most).collect().await {
        Ok(body) => body.to_bytes(),
        Err(error) if error.is::<LengthLimitError>() && status == StatusCode::OK => {
            bail!("the response is larger than {}", show_bytes(most as u64))
        }
        Err(error) if status == StatusCode::OK => return Err(anyhow!(error).context("the response was cut off")),
        Err(_) => Bytes::new(),
    };
    if status != StatusCode::OK {
        bail!("the response is {} {}", status.as_u16(), cell(&String::from_utf8_lossy(&body)));
    }
    Ok(body)
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;

    const MOST: usize = 1000;

    /// The result of a request that gets this answer, after which the server stays silent or closes the connection.
    async fn answered(answer: &[u8], is_gone: bool) -> Result<Bytes, String> {
        let (ours, mut theirs) = tokio::io::duplex(64 << 10);
        let answer = answer.to_vec();
        let server = tokio::spawn(async move {
            let mut asked = Vec::new();
            while !asked.ends_with(b"\r\n\r\n") {
                asked.push(theirs.read_u8().await.unwrap());
            }
            let _ = theirs.write_all(&answer).await;
            if !is_gone {
                // The server sends nothing more until the client closes the connection.
                let _ = theirs.read_to_end(&mut Vec::new()).await;
            }
            String::from_utf8(asked).unwrap()
        });
        let got = get(ours, "there", "/decisions?pod=a/b", MOST).await.map_err(|error| format!("{error:#}"));
        let asked = server.await.unwrap();
        assert!(asked.starts_with("GET /decisions?pod=a/b HTTP/1.1\r\n") && asked.contains("host: there"), "{asked}");
        got
    }

    #[tokio::test]
    async fn a_complete_response_is_read_without_waiting_for_the_connection_to_close() {
        for head in ["content-length: 2\r\n\r\n{}", "transfer-encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n"] {
            let got = answered(format!("HTTP/1.1 200 OK\r\n{head}").as_bytes(), false).await;
            assert_eq!(got.as_deref(), Ok(&b"{}"[..]));
        }
        assert_eq!(answered(b"HTTP/1.0 200 OK\r\n\r\n{}", true).await.as_deref(), Ok(&b"{}"[..]));
    }

    #[tokio::test]
    async fn no_more_than_the_limit_is_read() {
        let whole =
            |length: usize| format!("HTTP/1.1 200 OK\r\ncontent-length: {length}\r\n\r\n{}", " ".repeat(length));
        assert_eq!(answered(whole(MOST).as_bytes(), false).await.map(|body| body.len()), Ok(MOST));
        let error = answered(whole(MOST + 1).as_bytes(), false).await.unwrap_err();
        assert_eq!(error, "the response is larger than 1000 B");
        let endless =
            [b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n".as_slice(), &b"2\r\n{}\r\n".repeat(MOST)];
        let error = answered(&endless.concat(), false).await.unwrap_err();
        assert_eq!(error, "the response is larger than 1000 B");
        let headers = format!("HTTP/1.1 200 OK\r\na: {}\r\n\r\n", "b".repeat(HEADERS));
        let error = answered(headers.as_bytes(), false).await.unwrap_err();
        assert!(error.starts_with("the response is not HTTP: "), "{error}");
    }

    #[tokio::test]
    async fn truncated_and_invalid_responses_are_errors() {
        for (answer, words) in [
            (&b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\n{\"decisions\":"[..], "the response was cut off: "),
            (b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\nab", "the response was cut off: "),
            (b"HTTP/1.1 200 OK\r\ncontent-le", "the response is not HTTP: "),
            (b"SSH-2.0-OpenSSH\r\n", "the response is not HTTP: "),
            (b"\x16\x03\x01\x00\xff\x00", "the response is not HTTP: "),
            (b"", "the response is not HTTP: "),
        ] {
            let error = answered(answer, true).await.unwrap_err();
            assert!(error.starts_with(words), "{error}");
        }
    }

    #[tokio::test]
    async fn a_rejection_is_quoted() {
        let refusal = "HTTP/1.1 503 X\r\ncontent-length: 10\r\n\r\nnot \x1b[ yet";
        assert_eq!(answered(refusal.as_bytes(), false).await.unwrap_err(), "the response is 503 not [ yet");
        let long = format!("HTTP/1.1 404 X\r\ncontent-length: 99999\r\n\r\n{}", "a".repeat(9999));
        assert_eq!(answered(long.as_bytes(), false).await.unwrap_err(), "the response is 404 ");
    }
}
