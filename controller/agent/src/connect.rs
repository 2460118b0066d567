//! The launcher's way to an agent.

use std::io;
use std::net::{SocketAddr, TcpStream, ToSocketAddrs};
use std::time::Duration;

use crate::frame::{Frame, VERSION};
use crate::settings::Settings;
use crate::wire::{Wire, WireError};

/// Why an agent does not answer.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ConnectError {
    #[error("its name does not resolve: {0}")]
    Name(io::Error),
    #[error("connect to {address}: {source}")]
    Unreachable { address: SocketAddr, source: io::Error },
    #[error("at {address}: {source}")]
    Wire { address: SocketAddr, source: WireError },
    #[error("at {address}: its agent speaks version {theirs}, this one version {VERSION}: start the job's pods anew")]
    Version { address: SocketAddr, theirs: u8 },
}

/// How long one attempt at one address may take for each of its two steps.
const ATTEMPT: Duration = Duration::from_secs(5);

/// Connects to the agent of a host, by the first of its addresses that answers. The agent has proved that it has the key of the
/// job, and has accepted this one's proof.
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
        _ => Err(failed(WireError::Unexpected("something else than its welcome"))),
    }
}
