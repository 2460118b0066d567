//! How many GETs of 100 KB per second the server answers over 16 connections, to make sure that it does not limit a
//! benchmark of a reader: `cargo run --release -p larder-s3-server --example get_rate`.
//!
//! First over raw sockets, which repeat one signed request; then by the S3 origin, which signs each request.

use std::sync::Arc;
use std::time::{Duration, Instant};

use larder_origin::{OriginConfig, open};
use larder_s3_server::{S3Server, S3ServerConfig};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

const SIZE: usize = 100_000;
const CONNECTIONS: usize = 16;
const TIME: Duration = Duration::from_secs(3);

#[tokio::main]
#[expect(clippy::print_stdout, reason = "printing is the purpose of this example")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let server = S3Server::start(S3ServerConfig::default()).await?;
    server.put("bucket", "k", vec![7; SIZE]);
    let config = OriginConfig { env: server.env().into_iter().collect(), ..OriginConfig::default() };
    let url = "s3://bucket".parse()?;

    // A signature covers the Host header as sent, so a request captured on another port is valid on this one.
    let listener = TcpListener::bind(("127.0.0.1", 0)).await?;
    let capturing = OriginConfig { endpoint: Some(format!("http://{}", listener.local_addr()?)), ..config.clone() };
    let elsewhere = open(&url, &capturing)?;
    let asking = tokio::spawn(async move { elsewhere.read(b"k", 0..SIZE as u64, None).await });
    let (mut stream, _) = listener.accept().await?;
    let mut request = Vec::new();
    while !request.ends_with(b"\r\n\r\n") {
        request.push(stream.read_u8().await?);
    }
    asking.abort();
    let request: Arc<[u8]> = request.into();

    let address = server.address();
    let start = Instant::now();
    let clients = (0..CONNECTIONS).map(|_| {
        let request = Arc::clone(&request);
        tokio::spawn(async move {
            let mut stream = TcpStream::connect(address).await?;
            let mut buffer = vec![0; 256 << 10];
            let mut answers = 0_u64;
            while start.elapsed() < TIME {
                stream.write_all(&request).await?;
                let (mut got, mut wanted) = (0, usize::MAX);
                while got < wanted {
                    let n = stream.read(&mut buffer[got..]).await?;
                    if n == 0 {
                        return Err(std::io::Error::from(std::io::ErrorKind::UnexpectedEof));
                    }
                    got += n;
                    if wanted == usize::MAX
                        && let Some(head) = buffer[..got].windows(4).position(|four| four == b"\r\n\r\n")
                    {
                        assert!(buffer.starts_with(b"HTTP/1.1 206"), "{}", String::from_utf8_lossy(&buffer[..head]));
                        wanted = head + 4 + SIZE;
                    }
                }
                answers += 1;
            }
            Ok(answers)
        })
    });
    let mut answers = 0;
    for client in clients.collect::<Vec<_>>() {
        answers += client.await??;
    }
    println!("raw sockets: {:.0} GET/s", answers as f64 / start.elapsed().as_secs_f64());

    let origin = open(&url, &config)?;
    let start = Instant::now();
    let readers = (0..CONNECTIONS).map(|_| {
        let origin = Arc::clone(&origin);
        tokio::spawn(async move {
            let mut answers = 0_u64;
            while start.elapsed() < TIME {
                origin.read(b"k", 0..SIZE as u64, None).await?;
                answers += 1;
            }
            Ok::<_, larder_origin::OriginError>(answers)
        })
    });
    let mut answers = 0;
    for reader in readers.collect::<Vec<_>>() {
        answers += reader.await??;
    }
    println!("S3 origin: {:.0} GET/s", answers as f64 / start.elapsed().as_secs_f64());
    Ok(())
}
