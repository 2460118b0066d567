//! [`Wire`]: a TCP port in one network that leads to a server in another, and can be broken. It knows nothing of the
//! bytes that it passes on, so TLS goes through it.

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::time::Duration;

use larder_testkit::Cluster;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::net::tcp::{ReadHalf, WriteHalf};
use tokio::runtime::Runtime;
use tokio::sync::watch;

/// The state of a wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Link {
    /// Bytes pass.
    Passes,
    /// Bytes pass late.
    Slow,
    /// No bytes pass, and no connection ends. The bytes that were sent meanwhile pass later.
    Hangs,
    /// All connections are reset.
    Resets,
}

/// The most bytes that pass at once, and how late they pass if the wire is slow.
const CHUNK: usize = 16 << 10;
const LATE: Duration = Duration::from_millis(200);

pub(crate) struct Wire {
    link: watch::Sender<Link>,
    port: u16,
}

impl Wire {
    /// A free port of a cluster's network. `network` is a runtime whose threads are in the network of the server.
    pub(crate) fn new(cluster: &Cluster, network: &Runtime, server: SocketAddr) -> Self {
        let listener = cluster.listen(0);
        let port = listener.local_addr().unwrap().port();
        let (link, state) = watch::channel(Link::Passes);
        network.spawn(serve(listener, server, state));
        Self { link, port }
    }

    /// HOST:PORT, as the processes of the cluster reach it.
    pub(crate) fn address(&self) -> String {
        format!("{}:{}", Cluster::HOST, self.port)
    }

    /// Changes the state, for all connections.
    pub(crate) fn set(&self, link: Link) {
        self.link.send_replace(link);
    }
}

async fn serve(listener: TcpListener, server: SocketAddr, link: watch::Receiver<Link>) {
    listener.set_nonblocking(true).unwrap();
    let listener = tokio::net::TcpListener::from_std(listener).unwrap();
    loop {
        // A client that is gone before it is accepted is an error, too.
        let Ok((client, _)) = listener.accept().await else { continue };
        // The error is ignored: both ends see that their connection has ended.
        tokio::spawn(connection(client, server, link.clone()));
    }
}

async fn connection(mut client: TcpStream, server: SocketAddr, link: watch::Receiver<Link>) -> io::Result<()> {
    let mut server = TcpStream::connect(server).await?;
    let is_reset = {
        let (from_client, to_client) = client.split();
        let (from_server, to_server) = server.split();
        let both = async {
            tokio::try_join!(pass(from_client, to_server, link.clone()), pass(from_server, to_client, link.clone()))
        };
        tokio::select! {
            is_reset = resets(link.clone()) => is_reset,
            _ = both => false,
        }
    };
    if is_reset {
        client.set_zero_linger()?;
        server.set_zero_linger()?;
    }
    Ok(())
}

/// Waits until connections are reset. Returns false if the wire is gone.
async fn resets(mut link: watch::Receiver<Link>) -> bool {
    link.wait_for(|link| *link == Link::Resets).await.is_ok()
}

async fn pass(mut from: ReadHalf<'_>, mut to: WriteHalf<'_>, mut link: watch::Receiver<Link>) -> io::Result<()> {
    let mut buffer = vec![0; CHUNK];
    loop {
        let read = from.read(&mut buffer).await?;
        let now = link.wait_for(|link| *link != Link::Hangs).await.map(|now| *now).map_err(io::Error::other)?;
        if now == Link::Slow {
            tokio::time::sleep(LATE).await;
        }
        if read == 0 {
            return to.shutdown().await;
        }
        to.write_all(&buffer[..read]).await?;
    }
}
