//! A container runtime's side of NRI, limited to one plugin and one call at a time.
//!
//! ```text
//! frame   = connection:u32  length:u32  payload[length]                     big-endian
//! message = length:u32  stream:u32  kind:u8  flags:u8  payload[length]      the payloads of a connection, put together
//! ```

use anyhow::{Context, ensure};
use larder_devices_api::nri::{
    CdiDevice, ConfigureRequest, Container, CreateContainerRequest, CreateContainerResponse, Empty, PodSandbox,
    SynchronizeRequest,
};
use prost::Message;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{UnixListener, UnixStream};

/// The connection on which the runtime calls the plugin, and the one on which the plugin calls the runtime.
const PLUGIN: u32 = 1;
const RUNTIME: u32 = 2;

/// Kinds of messages.
const REQUEST: u8 = 1;
const RESPONSE: u8 = 2;

/// The bytes before a message.
const HEADER_BYTES: usize = 10;

/// A ttrpc request.
#[derive(Clone, PartialEq, Message)]
struct Request {
    #[prost(string, tag = "1")]
    service: String,
    #[prost(string, tag = "2")]
    method: String,
    #[prost(bytes = "vec", tag = "3")]
    payload: Vec<u8>,
}

/// A ttrpc response. One with a status is an error.
#[derive(Clone, PartialEq, Message)]
struct Response {
    #[prost(bytes = "vec", optional, tag = "1")]
    status: Option<Vec<u8>>,
    #[prost(bytes = "vec", tag = "2")]
    payload: Vec<u8>,
}

/// A runtime with a plugin.
pub(super) struct Nri {
    socket: UnixStream,
    /// The bytes received so far of a message on each connection.
    received: [Vec<u8>; 2],
    stream: u32,
}

impl Nri {
    /// Waits for a plugin, configures it, and synchronizes an empty list of containers. After that,
    /// [`create`](Self::create) may be called.
    pub(super) async fn accept(listener: UnixListener) -> anyhow::Result<Self> {
        let (socket, _) = listener.accept().await.context("wait for an NRI plugin")?;
        let mut nri = Self { socket, received: Default::default(), stream: 1 };
        let (stream, _) = nri.receive(RUNTIME, REQUEST).await.context("wait for the plugin to register")?;
        let registered = Response { status: None, payload: Empty {}.encode_to_vec() };
        nri.send(RUNTIME, stream, RESPONSE, &registered.encode_to_vec()).await?;
        nri.call("Configure", ConfigureRequest::default()).await?;
        nri.call("Synchronize", SynchronizeRequest::default()).await?;
        Ok(nri)
    }

    /// Sends CreateContainer for a container with the HCA of this CDI name, or without an HCA. Returns whether the
    /// plugin adjusts the container.
    pub(super) async fn create(&mut self, nth: u32, hca: Option<&str>) -> anyhow::Result<bool> {
        let pod = PodSandbox { id: "pod".into(), uid: "uid".into(), name: "pod".into(), ..PodSandbox::default() };
        let container = Container {
            id: format!("container-{nth}"),
            name: "main".into(),
            pod_sandbox_id: "pod".into(),
            cdi_devices: hca.map(|hca| CdiDevice { name: format!("larder.dev/hca={hca}") }).into_iter().collect(),
            ..Container::default()
        };
        let request = CreateContainerRequest { pod: Some(pod), container: Some(container) };
        let answer = self.call("CreateContainer", request).await?;
        Ok(CreateContainerResponse::decode(&answer[..]).context("read the plugin's answer")?.adjust.is_some())
    }

    async fn call(&mut self, method: &str, request: impl Message) -> anyhow::Result<Vec<u8>> {
        let request = Request {
            service: "nri.pkg.api.v1alpha1.Plugin".to_owned(),
            method: method.to_owned(),
            payload: request.encode_to_vec(),
        };
        // In ttrpc, a client's streams have odd numbers.
        self.stream += 2;
        self.send(PLUGIN, self.stream, REQUEST, &request.encode_to_vec()).await?;
        let (stream, answer) = self.receive(PLUGIN, RESPONSE).await.with_context(|| format!("wait for {method}"))?;
        ensure!(stream == self.stream, "{method}: the plugin answers another call");
        let Response { status, payload } = Response::decode(&answer[..]).context("read the plugin's answer")?;
        ensure!(status.is_none(), "{method}: the plugin refuses: {status:?}");
        Ok(payload)
    }

    async fn send(&mut self, connection: u32, stream: u32, kind: u8, payload: &[u8]) -> anyhow::Result<()> {
        let length = payload.len() as u32;
        let mut frame = Vec::new();
        frame.extend(connection.to_be_bytes());
        frame.extend((HEADER_BYTES as u32 + length).to_be_bytes());
        frame.extend(length.to_be_bytes());
        frame.extend(stream.to_be_bytes());
        frame.extend([kind, 0]);
        frame.extend(payload);
        self.socket.write_all(&frame).await.context("write to the plugin")
    }

    /// Returns the stream and the payload of the next message on a connection.
    async fn receive(&mut self, connection: u32, kind: u8) -> anyhow::Result<(u32, Vec<u8>)> {
        loop {
            let received = &mut self.received[connection as usize - 1];
            if let Some((header, rest)) = received.split_first_chunk::<HEADER_BYTES>() {
                let [a, b, c, d, e, f, g, h, found, _] = *header;
                let length = u32::from_be_bytes([a, b, c, d]) as usize;
                if rest.len() >= length {
                    ensure!(found == kind, "the plugin sends a message of kind {found} instead of {kind}");
                    let payload = rest[..length].to_vec();
                    received.drain(..HEADER_BYTES + length);
                    return Ok((u32::from_be_bytes([e, f, g, h]), payload));
                }
            }
            let of = self.socket.read_u32().await.context("read from the plugin")?;
            let mut payload = vec![0; self.socket.read_u32().await? as usize];
            self.socket.read_exact(&mut payload).await?;
            let to = self.received.get_mut((of as usize).wrapping_sub(1));
            to.context("the plugin uses an unknown connection")?.extend(payload);
        }
    }
}
