//! A client's connection, with its own connection to the server.

use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::fault::{Fault, RequestHead};
use super::http::{
    Buffered, Length, answer_length, closes, parse_request, request_length, status_of, with_length_off_by,
};

pub(super) type Hook = Arc<dyn Fn(&RequestHead) -> Fault + Send + Sync>;

/// State shared by all connections of a proxy.
pub(super) struct Shared {
    pub(super) upstream: SocketAddr,
    pub(super) hook: RwLock<Hook>,
    pub(super) connections: AtomicU64,
    pub(super) requests: AtomicU64,
    pub(super) faults: AtomicU64,
}

pub(super) struct Connection {
    client: Buffered,
    server: Option<Buffered>,
    shared: Arc<Shared>,
}

enum Next {
    Request,
    Close,
}

impl Connection {
    pub(super) fn new(client: TcpStream, shared: Arc<Shared>) -> Self {
        Self { client: Buffered::new(client), server: None, shared }
    }

    pub(super) async fn serve(mut self) -> io::Result<()> {
        self.client.stream.set_nodelay(true)?;
        while let Some(head) = self.client.read_head().await? {
            let parsed = parse_request(&head, self.shared.requests.fetch_add(1, Ordering::Relaxed))?;
            let hook = Arc::clone(&self.shared.hook.read().unwrap_or_else(PoisonError::into_inner));
            let fault = hook(&parsed);
            if fault != Fault::None {
                self.shared.faults.fetch_add(1, Ordering::Relaxed);
            }
            match self.exchange(&head, &parsed, fault).await? {
                Next::Request => {}
                Next::Close => return Ok(()),
            }
        }
        Ok(())
    }

    async fn exchange(&mut self, head: &[u8], request: &RequestHead, fault: Fault) -> io::Result<Next> {
        let body = request_length(request)?;
        match &fault {
            Fault::Status { status, code } => {
                self.skip_body(request, body).await?;
                let text = format!(
                    "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\
                     <Error><Code>{code}</Code><Message>injected</Message></Error>"
                );
                let body = if request.method == "HEAD" { "" } else { text.as_str() };
                let answer = format!(
                    "HTTP/1.1 {status} Fault\r\nContent-Type: application/xml\r\nContent-Length: {}\r\n\r\n{body}",
                    text.len()
                );
                self.client.stream.write_all(answer.as_bytes()).await?;
                return Ok(Next::Request);
            }
            Fault::StallBeforeHead => {
                self.skip_body(request, body).await?;
                self.until_hang_up().await;
                return Ok(Next::Close);
            }
            Fault::Reset => {
                self.skip_body(request, body).await?;
                self.client.stream.set_zero_linger()?;
                return Ok(Next::Close);
            }
            Fault::Answer(bytes) => {
                self.skip_body(request, body).await?;
                self.client.stream.write_all(bytes).await?;
                self.client.stream.shutdown().await?;
                return Ok(Next::Close);
            }
            Fault::Delay(time) => tokio::time::sleep(*time).await,
            Fault::None | Fault::Truncate { .. } | Fault::WrongLength { .. } | Fault::FlipBody | Fault::Stall => {}
        }
        self.forward_request(head, request, body, fault == Fault::FlipBody).await?;
        self.forward_answer(request, fault).await
    }

    async fn skip_body(&mut self, request: &RequestHead, length: u64) -> io::Result<()> {
        self.invite(request).await?;
        let mut left = length;
        while left > 0 {
            let chunk = self.client.read_some(left).await?;
            left -= chunk.len() as u64;
        }
        Ok(())
    }

    /// Sends `100 Continue` to a client that waits for it before it sends its body.
    async fn invite(&mut self, request: &RequestHead) -> io::Result<()> {
        if request.header("expect").is_some_and(|value| value.eq_ignore_ascii_case("100-continue")) {
            self.client.stream.write_all(b"HTTP/1.1 100 Continue\r\n\r\n").await?;
        }
        Ok(())
    }

    async fn forward_request(
        &mut self,
        head: &[u8],
        request: &RequestHead,
        length: u64,
        mut flips: bool,
    ) -> io::Result<()> {
        self.invite(request).await?;
        let mut server = match self.server.take() {
            Some(server) => server,
            None => {
                let stream = TcpStream::connect(self.shared.upstream).await?;
                stream.set_nodelay(true)?;
                Buffered::new(stream)
            }
        };
        server.stream.write_all(head).await?;
        let mut left = length;
        while left > 0 {
            let mut chunk = self.client.read_some(left).await?;
            if std::mem::take(&mut flips) {
                chunk[0] ^= 1;
            }
            server.stream.write_all(&chunk).await?;
            left -= chunk.len() as u64;
        }
        self.server = Some(server);
        Ok(())
    }

    async fn forward_answer(&mut self, request: &RequestHead, fault: Fault) -> io::Result<Next> {
        let mut server = self.server.take().ok_or_else(|| io::Error::other("no server"))?;
        let mut head = loop {
            let head = server.read_head().await?.ok_or(io::ErrorKind::UnexpectedEof)?;
            // The proxy has already sent `100 Continue` to the client.
            if status_of(&head)? != 100 {
                break head;
            }
        };
        let length = answer_length(request, &head)?;
        if let Fault::WrongLength { delta } = fault {
            head = with_length_off_by(&head, delta);
        }
        self.client.stream.write_all(&head).await?;
        let stop = match (&fault, length) {
            (Fault::Truncate { after }, _) => Some(*after),
            (Fault::Stall, Length::Bytes(bytes)) => Some(bytes / 2),
            (Fault::Stall, _) => Some(0),
            _ => None,
        };
        let whole = server.forward_body(&mut self.client.stream, length, stop).await?;
        match fault {
            Fault::Stall => {
                self.until_hang_up().await;
                Ok(Next::Close)
            }
            Fault::Truncate { .. } | Fault::WrongLength { .. } => {
                self.client.stream.shutdown().await?;
                Ok(Next::Close)
            }
            _ if whole && length != Length::UntilClose && !closes(&head) => {
                self.server = Some(server);
                Ok(Next::Request)
            }
            _ => Ok(Next::Close),
        }
    }

    async fn until_hang_up(&mut self) {
        let mut scratch = [0; 4096];
        while self.client.stream.read(&mut scratch).await.is_ok_and(|n| n > 0) {}
    }
}
