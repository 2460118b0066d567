//! Carries the two connections over NRI's socket.

use std::io;

use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, ReadHalf, WriteHalf, duplex, split};
use tokio::net::UnixStream;
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};

use super::frame::{HEADER_BYTES, Header, PLUGIN, RUNTIME, SENT_BYTES_MOST};

/// Bytes of a connection that wait to be read, either way; then the other end waits.
const WAITING_BYTES_MOST: usize = 256 << 10;

/// The ends of both connections, and what carries them.
pub(super) struct Mux {
    /// The runtime calls the plugin.
    pub(super) plugin: DuplexStream,
    /// The plugin calls the runtime.
    pub(super) runtime: DuplexStream,
    trunk: UnixStream,
    carried: [DuplexStream; 2],
}

impl Mux {
    pub(super) fn new(trunk: UnixStream) -> Self {
        let (plugin, carried_plugin) = duplex(WAITING_BYTES_MOST);
        let (runtime, carried_runtime) = duplex(WAITING_BYTES_MOST);
        Self { plugin, runtime, trunk, carried: [carried_plugin, carried_runtime] }
    }

    /// The ends of the plugin's and of the runtime's connection, and a future that carries them. It ends when the socket does, or
    /// one of the ends; the other ends then see the end of their streams.
    pub(super) fn into_parts(self) -> (DuplexStream, DuplexStream, impl Future<Output = io::Result<()>> + Send) {
        let (from, to) = self.trunk.into_split();
        let [(plugin_out, plugin_in), (runtime_out, runtime_in)] = self.carried.map(split);
        let carry = async {
            tokio::select! {
                ended = receive(from, [(PLUGIN, plugin_in), (RUNTIME, runtime_in)]) => ended,
                ended = send(to, plugin_out, runtime_out) => ended,
            }
        };
        (self.plugin, self.runtime, carry)
    }
}

async fn receive(mut from: OwnedReadHalf, mut to: [(u32, WriteHalf<DuplexStream>); 2]) -> io::Result<()> {
    let mut buffer = vec![0; 16 << 10];
    loop {
        let mut header = [0; HEADER_BYTES];
        match from.read_exact(&mut header).await {
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(()),
            read => read?,
        };
        let header = Header::decode(header).ok_or(io::ErrorKind::InvalidData)?;
        // Frames of other connections are dropped, as the runtime does.
        let mut to = to.iter_mut().find(|(connection, _)| *connection == header.connection);
        let mut left = header.length;
        while left > 0 {
            let part = left.min(buffer.len());
            from.read_exact(&mut buffer[..part]).await?;
            if let Some((_, to)) = &mut to {
                to.write_all(&buffer[..part]).await?;
            }
            left -= part;
        }
    }
}

async fn send(
    mut to: OwnedWriteHalf,
    mut plugin: ReadHalf<DuplexStream>,
    mut runtime: ReadHalf<DuplexStream>,
) -> io::Result<()> {
    let [mut of_plugin, mut of_runtime] = [const { [0; HEADER_BYTES + SENT_BYTES_MOST] }; 2];
    loop {
        let (connection, length, frame) = tokio::select! {
            length = plugin.read(&mut of_plugin[HEADER_BYTES..]) => (PLUGIN, length?, &mut of_plugin),
            length = runtime.read(&mut of_runtime[HEADER_BYTES..]) => (RUNTIME, length?, &mut of_runtime),
        };
        if length == 0 {
            return Ok(());
        }
        frame[..HEADER_BYTES].copy_from_slice(&Header { connection, length }.encode());
        to.write_all(&frame[..HEADER_BYTES + length]).await?;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn frames_are_short_when_sent_and_of_any_length_when_received() {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        let (mut plugin, mut runtime, carry) = Mux::new(ours).into_parts();
        let carrying = tokio::spawn(carry);
        plugin.write_all(&[7; 10_000]).await.unwrap();
        let mut received = 0;
        while received < 10_000 {
            let mut header = [0; HEADER_BYTES];
            theirs.read_exact(&mut header).await.unwrap();
            let header = Header::decode(header).unwrap();
            assert_eq!(header.connection, PLUGIN);
            // The size of the buffer into which the runtime reads.
            assert!(header.length <= 4096, "{header:?}");
            let mut payload = vec![0; header.length];
            theirs.read_exact(&mut payload).await.unwrap();
            assert!(payload.iter().all(|byte| *byte == 7));
            received += header.length;
        }
        assert_eq!(received, 10_000);
        for (connection, byte) in [(PLUGIN, 1), (3, 2), (RUNTIME, 3)] {
            theirs.write_all(&Header { connection, length: 100_000 }.encode()).await.unwrap();
            theirs.write_all(&[byte; 100_000]).await.unwrap();
        }
        for (end, byte) in [(&mut plugin, 1), (&mut runtime, 3)] {
            let mut payload = vec![0; 100_000];
            end.read_exact(&mut payload).await.unwrap();
            assert!(payload.iter().all(|found| *found == byte));
        }
        drop(theirs);
        carrying.await.unwrap().unwrap();
        assert_eq!(plugin.read(&mut [0]).await.unwrap(), 0);
    }

    #[tokio::test]
    async fn a_frame_that_is_too_long_ends_the_connection() {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        let (_plugin, _runtime, carry) = Mux::new(ours).into_parts();
        theirs.write_all(&[0, 0, 0, 1, 255, 255, 255, 255]).await.unwrap();
        assert_eq!(carry.await.unwrap_err().kind(), io::ErrorKind::InvalidData);
    }
}
