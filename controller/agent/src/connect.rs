//! The launcher's connection to an agent.

use std::io;
use std::net::{SocketAddr, TcpStream, ToSocketAddrs};
use std::time::Duration;

use crate::frame::{Frame, VERSION};
use crate::settings::Settings;
use crate::wire::{Wire, WireError};

/// Why no agent could be reached.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ConnectError {
    #[error("its name does not resolve: {0}")]
    Name(io::Error),
    #[error("connect to {address}: {source}")]
    Unreachable { address: SocketAddr, source: io::Error },
    #[error("at {address}: {source}")]
    Wire { address: SocketAddr, source: WireError },
    #[error("at {address}: its agent speaks version {theirs}, this one version {VERSION}: restart the job's pods")]
    Version { address: SocketAddr, theirs: u8 },
}

/// The timeout of each of the two steps, connecting and the handshake, per address.
const ATTEMPT: Duration = Duration::from_secs(5);

/// Connects to the agent of a host, using the first of its addresses that answers. When this returns, both sides have
/// proved that they have the job's key.
pub(crate) fn connect(settings: &Settings, host: &str) -> Result<Wire, ConnectError> {
    let addresses = (host, settings.port).to_socket_addrs().map_err(ConnectError::Name)?;
    let mut last = ConnectError::Name(io::Error::other("it has no address"));
    for address in addresses {
        match connect_to(settings, address) {
            Ok(wire) => return Ok(wire),
            Err(error) => last = error,
        }
    }
    Err(last)
}

fn connect_to(settings: &Settings, address: SocketAddr) -> Result<Wire, ConnectError> {
    let unreachable = |source| ConnectError::Unreachable { address, source };
    let failed = |source| ConnectError::Wire { address, source };
    let socket = TcpStream::connect_timeout(&address, ATTEMPT).map_err(unreachable)?;
    let tls = settings.key.launcher_end().map_err(|error| failed(error.into()))?;
    let mut wire = Wire::open(socket, tls, ATTEMPT, settings.silence).map_err(failed)?;
    match wire.wait_for_next(ATTEMPT).map_err(failed)? {
        Frame::Welcome(VERSION) => Ok(wire),
        Frame::Welcome(theirs) => Err(ConnectError::Version { address, theirs }),
        _ => Err(failed(WireError::Unexpected("something other than its welcome"))),
    }
}
