//! The connections of the raw rows: a socket, or TLS over one.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;

use larder_peers::tls::NODE_DNS_NAME;
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ClientConnection, ServerConfig, ServerConnection, StreamOwned};

/// A blocking connection.
pub(super) trait RawStream: Read + Write + Send {}

impl<T: Read + Write + Send> RawStream for T {}

/// Connects to a raw server. With `tls`, returns after the handshake.
pub(super) fn connect(address: SocketAddr, tls: Option<&Arc<ClientConfig>>) -> io::Result<Box<dyn RawStream>> {
    let mut socket = TcpStream::connect(address)?;
    socket.set_nodelay(true)?;
    let Some(tls) = tls else { return Ok(Box::new(socket)) };
    let name = ServerName::try_from(NODE_DNS_NAME).map_err(io::Error::other)?;
    let mut session = ClientConnection::new(Arc::clone(tls), name).map_err(io::Error::other)?;
    session.complete_io(&mut socket)?;
    Ok(Box::new(StreamOwned::new(session, socket)))
}

/// The server's side of an accepted socket. With `tls`, returns after the handshake.
pub(super) fn accept(mut socket: TcpStream, tls: Option<&Arc<ServerConfig>>) -> io::Result<Box<dyn RawStream>> {
    socket.set_nodelay(true)?;
    let Some(tls) = tls else { return Ok(Box::new(socket)) };
    let mut session = ServerConnection::new(Arc::clone(tls)).map_err(io::Error::other)?;
    session.complete_io(&mut socket)?;
    Ok(Box::new(StreamOwned::new(session, socket)))
}
