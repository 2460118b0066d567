//! A small S3 server in the process, for the quickstart, benchmarks and tests.
//!
//! - [`S3Server`]: starts it on a loopback port, fills it without going over the wire, reads its counters, stops it.
//! - `store`: the buckets and objects; a body is bytes in memory or a file read on demand.
//! - `service`: S3's operations over the store. The protocol, the signatures and the XML are s3s's.
//! - `fast`: plain GETs and HEADs past all that, for benchmarks, on a server that does not look at their signatures.
//!
//! The invariant: a GET costs no hash and no copy of a body in memory, so that what is measured against this server is
//! the reader. It keeps nothing over its end and is no server for production.

mod fast;
mod service;
mod store;

use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;

use bytes::Bytes;
use futures::future::Either;
use hyper_util::rt::TokioIo;
use s3s::auth::SimpleAuth;
use s3s::service::{S3Service, S3ServiceBuilder};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::{JoinHandle, JoinSet};

use crate::service::Service;
use crate::store::Store;

/// How a server starts.
#[derive(Clone)]
pub struct S3ServerConfig {
    /// Where to listen; port 0 takes any that is free.
    pub address: SocketAddr,
    /// The one key id that may ask.
    pub access_key: String,
    /// Its secret.
    pub secret_key: String,
    /// Buckets that are there from the start; others are made by a put.
    pub buckets: Vec<String>,
    /// Answers plain GETs and HEADs without a look at their signature, so that a benchmark does not measure the server.
    pub unchecked_gets: bool,
}

impl Default for S3ServerConfig {
    /// A free loopback port, the key pair `larder` / `larder-secret`, no bucket.
    fn default() -> Self {
        Self {
            address: SocketAddr::from(([127, 0, 0, 1], 0)),
            access_key: "larder".into(),
            secret_key: "larder-secret".into(),
            buckets: Vec::new(),
            unchecked_gets: false,
        }
    }
}

impl std::fmt::Debug for S3ServerConfig {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("S3ServerConfig")
            .field("address", &self.address)
            .field("access_key", &self.access_key)
            .field("buckets", &self.buckets)
            .field("unchecked_gets", &self.unchecked_gets)
            .finish_non_exhaustive()
    }
}

/// What was asked for since the start or the last reset. Requests that were refused count too, but for their bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counters {
    /// GETs of objects.
    pub gets: u64,
    /// Bytes of bodies that these were to give.
    pub get_bytes: u64,
    /// Pages of listings.
    pub lists: u64,
    /// HEADs of objects.
    pub heads: u64,
    /// Objects put, counting each part of an upload.
    pub puts: u64,
}

/// A running server. Dropping it stops it and cuts its connections.
#[derive(Debug)]
pub struct S3Server {
    address: SocketAddr,
    config: S3ServerConfig,
    store: Arc<Store>,
    accepting: JoinHandle<()>,
}

impl S3Server {
    /// Starts a server on the current runtime.
    ///
    /// # Errors
    /// When the address cannot be bound.
    pub async fn start(config: S3ServerConfig) -> io::Result<Self> {
        let listener = TcpListener::bind(config.address).await?;
        Self::serve(listener, config)
    }

    /// Serves on a listener that was made elsewhere, such as in another network namespace. Must be called within a
    /// runtime.
    ///
    /// # Errors
    /// When the listener has no address.
    pub fn serve(listener: TcpListener, config: S3ServerConfig) -> io::Result<Self> {
        let address = listener.local_addr()?;
        let store = Arc::new(Store::default());
        for bucket in &config.buckets {
            store.create_bucket(bucket);
        }
        let mut builder = S3ServiceBuilder::new(Service::new(Arc::clone(&store)));
        builder.set_auth(SimpleAuth::from_single(config.access_key.clone(), config.secret_key.clone()));
        let unchecked = config.unchecked_gets.then(|| Arc::clone(&store));
        let accepting = tokio::spawn(accept(listener, builder.build(), unchecked));
        Ok(Self { address, config, store, accepting })
    }

    /// The URL of the server: `http://127.0.0.1:PORT`.
    pub fn endpoint(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The key id that may ask.
    pub fn access_key(&self) -> &str {
        &self.config.access_key
    }

    /// The secret of that key.
    pub fn secret_key(&self) -> &str {
        &self.config.secret_key
    }

    /// The variables by which any S3 client finds and may use this server.
    pub fn env(&self) -> Vec<(&'static str, String)> {
        vec![
            ("AWS_ENDPOINT_URL", self.endpoint()),
            ("AWS_ACCESS_KEY_ID", self.config.access_key.clone()),
            ("AWS_SECRET_ACCESS_KEY", self.config.secret_key.clone()),
            ("AWS_REGION", "us-east-1".into()),
        ]
    }

    /// Puts an object, under any key at all, and gives its entity tag without quotes.
    pub fn put(&self, bucket: &str, key: &str, bytes: impl Into<Bytes>) -> String {
        self.store.put_memory(bucket, key, bytes.into())
    }

    /// Puts a file of this machine as an object of `len` bytes; it is read when asked for and must not change. Without
    /// an entity tag (no quotes) the file is read once for its MD5.
    ///
    /// # Errors
    /// When the file has to be read and cannot be.
    pub async fn put_file(
        &self,
        bucket: &str,
        key: &str,
        path: impl Into<PathBuf>,
        len: u64,
        etag: Option<String>,
    ) -> io::Result<String> {
        let path = path.into();
        let etag = match etag {
            Some(etag) => etag,
            None => {
                let path = path.clone();
                tokio::task::spawn_blocking(move || store::md5_of_file(&path)).await??
            }
        };
        self.store.put_file(bucket, key, path, len, etag.clone());
        Ok(etag)
    }

    /// Deletes an object and gives whether it was there.
    pub fn delete(&self, bucket: &str, key: &str) -> bool {
        self.store.delete(bucket, key)
    }

    /// The counts of requests.
    pub fn counters(&self) -> Counters {
        self.store.counters()
    }

    /// Starts all counts again from zero, those of single objects too.
    pub fn reset_counters(&self) {
        self.store.reset_counters();
    }

    /// How often one object was asked for.
    pub fn gets_of(&self, bucket: &str, key: &str) -> u64 {
        self.store.gets_of(bucket, key)
    }

    /// Stops the server and cuts its connections; its port is free when this returns.
    pub async fn shutdown(mut self) {
        self.accepting.abort();
        // Ends with the cancellation just asked for.
        let _ = (&mut self.accepting).await;
    }
}

impl Drop for S3Server {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

/// Accepts until aborted; the connections are aborted with it, since their set is dropped.
async fn accept(listener: TcpListener, service: S3Service, unchecked: Option<Arc<Store>>) {
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            accepted = listener.accept() => match accepted {
                Ok((stream, _)) => {
                    connections.spawn(serve(stream, service.clone(), unchecked.clone()));
                }
                Err(error) => {
                    tracing::warn!(%error, "accept connection");
                    // Out of descriptors, most likely: trying again at once would only burn the CPU.
                    tokio::time::sleep(std::time::Duration::from_millis(50)).await;
                }
            },
            Some(_) = connections.join_next() => {}
        }
    }
}

async fn serve(stream: TcpStream, service: S3Service, unchecked: Option<Arc<Store>>) {
    // Without this every answer of more than one segment waits 40 ms for the client's delayed acknowledgement.
    if let Err(error) = stream.set_nodelay(true) {
        tracing::debug!(%error, "set TCP_NODELAY");
    }
    let http = hyper::server::conn::http1::Builder::new();
    let ended = match unchecked {
        None => http.serve_connection(TokioIo::new(stream), service).await,
        Some(store) => {
            let either = hyper::service::service_fn(move |request| match fast::answer(&store, &request) {
                Some(answer) => Either::Left(std::future::ready(Ok(answer))),
                None => Either::Right(hyper::service::Service::call(&service, request)),
            });
            http.serve_connection(TokioIo::new(stream), either).await
        }
    };
    if let Err(error) = ended {
        tracing::debug!(%error, "connection ended");
    }
}
