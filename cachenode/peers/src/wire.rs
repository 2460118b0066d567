//! One connection of either side, encrypted or not: bytes in and out, until it is cut.
//!
//! Invariant: once its token is cancelled nothing goes in or out any more, whoever holds it; and why its bytes stopped is
//! kept in words, since who speaks over it forgets it.

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

use crate::tls::{self, Spoken};

/// More than the settings of a server, or the hello of a lane.
const HEARD_BYTES_MOST: usize = 256;

/// Why a connection's bytes stopped, if they did.
#[derive(Clone, Debug, Default)]
pub(crate) struct Fault(Arc<OnceLock<String>>);

impl Fault {
    pub(crate) fn words(&self) -> Option<&str> {
        self.0.get().map(String::as_str)
    }
}

#[derive(Debug)]
enum Io {
    Plain(TcpStream),
    Tls(Box<TlsStream<TcpStream>>),
}

/// A connection.
#[derive(Debug)]
pub(crate) struct Wire {
    io: Io,
    cut: CancellationToken,
    until_cut: Pin<Box<WaitForCancellationFutureOwned>>,
    fault: Fault,
    /// What was heard already, and is to be read first.
    heard: BytesMut,
    /// The server's room for connections.
    _place: Option<OwnedSemaphorePermit>,
}

impl Wire {
    fn new(io: Io, cut: CancellationToken) -> Self {
        let until_cut = Box::pin(cut.clone().cancelled_owned());
        Self { io, cut, until_cut, fault: Fault::default(), heard: BytesMut::new(), _place: None }
    }

    pub(crate) fn plain(io: TcpStream, cut: CancellationToken) -> Self {
        Self::new(Io::Plain(io), cut)
    }

    pub(crate) fn tls(io: impl Into<TlsStream<TcpStream>>, cut: CancellationToken) -> Self {
        Self::new(Io::Tls(Box::new(io.into())), cut)
    }

    /// A connection that was accepted.
    pub(crate) fn holding(mut self, place: OwnedSemaphorePermit) -> Self {
        self._place = Some(place);
        self
    }

    /// Waits until the other side has said so many bytes, before anything is said to it. They are read again.
    pub(crate) async fn hear(&mut self, least: usize) -> io::Result<&[u8]> {
        let mut heard = BytesMut::with_capacity(HEARD_BYTES_MOST);
        while heard.len() < least {
            if self.read_buf(&mut heard).await? == 0 {
                return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the peer closed the connection"));
            }
        }
        self.heard = heard;
        Ok(&self.heard)
    }

    /// What TLS was told that will be spoken; `None` without TLS.
    pub(crate) fn spoken(&self) -> Option<Spoken> {
        match &self.io {
            Io::Plain(_) => None,
            Io::Tls(io) => Some(Spoken::of_alpn(io.get_ref().1.alpn_protocol())),
        }
    }

    pub(crate) fn fault(&self) -> Fault {
        self.fault.clone()
    }

    /// Passes an outcome on, and keeps why it is an error.
    fn noted<T>(&self, outcome: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        if let Poll::Ready(Err(error)) = &outcome {
            self.fault.0.get_or_init(|| tls::words(error));
        }
        outcome
    }
}

fn was_cut() -> io::Error {
    io::Error::new(io::ErrorKind::ConnectionAborted, "the connection was cut")
}

impl AsyncRead for Wire {
    fn poll_read(mut self: Pin<&mut Self>, context: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        // Polled for as long as it pends, so that whoever waits for bytes wakes when it is cut.
        if self.until_cut.as_mut().poll(context).is_ready() {
            return Poll::Ready(Err(was_cut()));
        }
        if !self.heard.is_empty() {
            let len = self.heard.len().min(into.remaining());
            into.put_slice(&self.heard.split_to(len));
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
        if self.cut.is_cancelled() {
            return Poll::Ready(Err(was_cut()));
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
        if self.cut.is_cancelled() {
            return Poll::Ready(Err(was_cut()));
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
        if self.cut.is_cancelled() {
            return Poll::Ready(Err(was_cut()));
        }
        let outcome = match &mut self.io {
            Io::Plain(io) => Pin::new(io).poll_flush(context),
            Io::Tls(io) => Pin::new(io).poll_flush(context),
        };
        self.noted(outcome)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.cut.is_cancelled() {
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
