//! One connection of either side, encrypted or not. Carries bytes in both directions until it is cancelled.
//!
//! Invariants: once its token is cancelled, no byte passes in either direction. The reason why the bytes stopped is
//! kept as text, because the protocols above drop it.

use std::io;
use std::pin::Pin;
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll};

use bytes::BytesMut;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::sync::OwnedSemaphorePermit;
use tokio_rustls::TlsStream;
use tokio_util::sync::{CancellationToken, WaitForCancellationFutureOwned};
use tonic::transport::server::Connected;

use crate::tls::Tls;
use crate::tls::denied::Accepted;
use crate::tls::explain::explain;
use crate::tls::protocol::AppProtocol;

/// The most bytes that are peeked. Larger than an HTTP/2 server's settings and than a lane's hello.
const PEEKED_BYTES_MOST: usize = 256;

/// The reason why a connection's bytes stopped; empty while they have not.
#[derive(Clone, Debug, Default)]
pub(crate) struct Fault(Arc<OnceLock<String>>);

impl Fault {
    pub(crate) fn reason(&self) -> Option<&str> {
        self.0.get().map(String::as_str)
    }
}

#[derive(Debug)]
enum Io {
    Plain(TcpStream),
    Tls(Box<TlsStream<TcpStream>>),
}

/// A connection to a peer.
#[derive(Debug)]
pub(crate) struct Wire {
    io: Io,
    cancel: CancellationToken,
    cancelled: Pin<Box<WaitForCancellationFutureOwned>>,
    fault: Fault,
    /// Bytes that were peeked and not read yet; later reads return them first.
    peeked: BytesMut,
    /// The connection's places in the server's limits, held until it is dropped.
    _permits: Option<[OwnedSemaphorePermit; 2]>,
    /// Cancels the connection if its certificate is denied.
    _accepted: Option<Accepted>,
}

impl Wire {
    fn new(io: Io, cancel: CancellationToken) -> Self {
        let cancelled = Box::pin(cancel.clone().cancelled_owned());
        Self {
            io,
            cancel,
            cancelled,
            fault: Fault::default(),
            peeked: BytesMut::new(),
            _permits: None,
            _accepted: None,
        }
    }

    pub(crate) fn plain(io: TcpStream, cancel: CancellationToken) -> Self {
        Self::new(Io::Plain(io), cancel)
    }

    /// Error: the peer's certificate is denied.
    pub(crate) fn tls(io: impl Into<TlsStream<TcpStream>>, tls: &Tls, cancel: CancellationToken) -> io::Result<Self> {
        let io = io.into();
        let accepted = tls.accept_peer(io.get_ref().1, &cancel)?;
        Ok(Self { _accepted: Some(accepted), ..Self::new(Io::Tls(Box::new(io)), cancel) })
    }

    /// Keeps `permits` while the connection exists.
    pub(crate) fn holding(mut self, permits: [OwnedSemaphorePermit; 2]) -> Self {
        self._permits = Some(permits);
        self
    }

    /// Waits for the first `least` bytes from the other side, before this side sends any. Later reads return these
    /// bytes too.
    pub(crate) async fn peek(&mut self, least: usize) -> io::Result<&[u8]> {
        let mut peeked = BytesMut::with_capacity(PEEKED_BYTES_MOST);
        while peeked.len() < least {
            if self.read_buf(&mut peeked).await? == 0 {
                return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the peer closed the connection"));
            }
        }
        self.peeked = peeked;
        Ok(&self.peeked)
    }

    /// The protocol that TLS negotiated; `None` without TLS.
    pub(crate) fn protocol(&self) -> Option<AppProtocol> {
        match &self.io {
            Io::Plain(_) => None,
            Io::Tls(io) => Some(AppProtocol::of_alpn(io.get_ref().1.alpn_protocol())),
        }
    }

    pub(crate) fn fault(&self) -> Fault {
        self.fault.clone()
    }

    /// Returns `outcome` unchanged. Keeps the reason of the first error.
    fn noted<T>(&self, outcome: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        if let Poll::Ready(Err(error)) = &outcome {
            self.fault.0.get_or_init(|| explain(error));
        }
        outcome
    }
}

fn was_cancelled() -> io::Error {
    io::Error::new(io::ErrorKind::ConnectionAborted, "this node closed the connection")
}

impl AsyncRead for Wire {
    fn poll_read(mut self: Pin<&mut Self>, context: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        // Polled even while the connection is idle, so that cancelling wakes the reader.
        if self.cancelled.as_mut().poll(context).is_ready() {
            return Poll::Ready(Err(was_cancelled()));
        }
        if !self.peeked.is_empty() {
            let len = self.peeked.len().min(into.remaining());
            into.put_slice(&self.peeked.split_to(len));
            return Poll::Ready(Ok(()));
        }
        let outcome = match &mut self.io {
            Io::Plain(io) => Pin::new(io).poll_read(context, into),
            Io::Tls(io) => Pin::new(io).poll_read(context, into),
        };
        self.noted(outcome)
    }
}

impl AsyncWrite for Wire {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        if self.cancel.is_cancelled() {
            return Poll::Ready(Err(was_cancelled()));
        }
        let outcome = match &mut self.io {
            Io::Plain(io) => Pin::new(io).poll_write(context, bytes),
            Io::Tls(io) => Pin::new(io).poll_write(context, bytes),
        };
        self.noted(outcome)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        if self.cancel.is_cancelled() {
            return Poll::Ready(Err(was_cancelled()));
        }
        let outcome = match &mut self.io {
            Io::Plain(io) => Pin::new(io).poll_write_vectored(context, bytes),
            Io::Tls(io) => Pin::new(io).poll_write_vectored(context, bytes),
        };
        self.noted(outcome)
    }

    fn is_write_vectored(&self) -> bool {
        match &self.io {
            Io::Plain(io) => io.is_write_vectored(),
            Io::Tls(io) => io.is_write_vectored(),
        }
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.cancel.is_cancelled() {
            return Poll::Ready(Err(was_cancelled()));
        }
        let outcome = match &mut self.io {
            Io::Plain(io) => Pin::new(io).poll_flush(context),
            Io::Tls(io) => Pin::new(io).poll_flush(context),
        };
        self.noted(outcome)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.cancel.is_cancelled() {
            return Poll::Ready(Ok(()));
        }
        match &mut self.io {
            Io::Plain(io) => Pin::new(io).poll_shutdown(context),
            Io::Tls(io) => Pin::new(io).poll_shutdown(context),
        }
    }
}

impl Connected for Wire {
    type ConnectInfo = ();

    fn connect_info(&self) {}
}
