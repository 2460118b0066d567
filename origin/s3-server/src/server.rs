//! The running server: its listener, its connections and its interface for callers in the same process.

use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;

use bytes::Bytes;
use futures::future::Either;
use hyper::body::Incoming;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use s3s::auth::SimpleAuth;
use s3s::service::{S3Service, S3ServiceBuilder};
use s3s::{Body, HttpError};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::{JoinHandle, JoinSet};

use crate::config::S3ServerConfig;
use crate::counters::Counters;
use crate::line::Line;
use crate::plain_gets;
use crate::service::Service;
use crate::store::Store;
use crate::store::digest::md5_of_file;

/// A running server. Dropping it stops it and closes its connections.
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
    /// If the address cannot be bound.
    pub async fn start(config: S3ServerConfig) -> io::Result<Self> {
        let listener = TcpListener::bind(config.address).await?;
        Self::serve(listener, config)
    }

    /// Serves on a listener that was bound elsewhere, for example in another network namespace. Must be called within a
    /// runtime.
    ///
    /// # Errors
    /// If the listener has no address.
    pub fn serve(listener: TcpListener, config: S3ServerConfig) -> io::Result<Self> {
        let address = listener.local_addr()?;
        let store = Arc::new(Store::default());
        for bucket in &config.buckets {
            store.create_bucket(bucket);
        }
        let mut builder = S3ServiceBuilder::new(Service::new(Arc::clone(&store)));
        let mut keys = SimpleAuth::new();
        for key in std::iter::once(&config.access_key).chain(&config.other_access_keys) {
            keys.register(key.clone(), config.secret_key.clone().into());
        }
        builder.set_auth(keys);
        let unchecked = config.unchecked_gets.then(|| Arc::clone(&store));
        let answering = Answering { service: builder.build(), unchecked };
        let line = Line::new(config.distance).map(Arc::new);
        let accepting = tokio::spawn(accept(listener, answering, line));
        Ok(Self { address, config, store, accepting })
    }

    /// The URL of the server: `http://127.0.0.1:PORT`.
    pub fn endpoint(&self) -> String {
        format!("http://{}", self.address)
    }

    /// The address that the server listens on.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The key id that has access.
    pub fn access_key(&self) -> &str {
        &self.config.access_key
    }

    /// The secret of that key.
    pub fn secret_key(&self) -> &str {
        &self.config.secret_key
    }

    /// The environment variables that direct any S3 client to this server and give it access.
    pub fn env(&self) -> Vec<(&'static str, String)> {
        vec![
            ("AWS_ENDPOINT_URL", self.endpoint()),
            ("AWS_ACCESS_KEY_ID", self.config.access_key.clone()),
            ("AWS_SECRET_ACCESS_KEY", self.config.secret_key.clone()),
            ("AWS_REGION", "us-east-1".into()),
        ]
    }

    /// Stores an object under any key, valid or not. Returns its entity tag without quotes.
    pub fn put(&self, bucket: &str, key: &str, bytes: impl Into<Bytes>) -> String {
        self.store.put_memory(bucket, key, bytes.into())
    }

    /// Stores a local file as an object of `len` bytes. The file is read on each request and must not change. If no
    /// entity tag (unquoted) is given, the file is read once now to compute its MD5.
    ///
    /// # Errors
    /// If the file must be read and cannot be.
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
                tokio::task::spawn_blocking(move || md5_of_file(&path)).await??
            }
        };
        self.store.put_file(bucket, key, path, len, etag.clone());
        Ok(etag)
    }

    /// Deletes an object. Returns whether it existed.
    pub fn delete(&self, bucket: &str, key: &str) -> bool {
        self.store.delete(bucket, key)
    }

    /// The counts of requests.
    pub fn counters(&self) -> Counters {
        self.store.counters()
    }

    /// Resets all counts to zero, including those of single objects.
    pub fn reset_counters(&self) {
        self.store.reset_counters();
    }

    /// The number of GETs of one object.
    pub fn gets_of(&self, bucket: &str, key: &str) -> u64 {
        self.store.gets_of(bucket, key)
    }

    /// Stops the server and closes its connections. Its port is free when this returns.
    pub async fn shutdown(mut self) {
        self.accepting.abort();
        // The task ends because it was cancelled just now.
        let _ = (&mut self.accepting).await;
    }
}

impl Drop for S3Server {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

/// Answers requests.
#[derive(Clone)]
struct Answering {
    service: S3Service,
    /// The store, if plain GETs are answered without s3s.
    unchecked: Option<Arc<Store>>,
}

impl Answering {
    fn answer(
        &self,
        request: Request<Incoming>,
    ) -> impl Future<Output = Result<Response<Body>, HttpError>> + Send + use<> {
        match self.unchecked.as_deref().and_then(|store| plain_gets::answer(store, &request)) {
            Some(answer) => Either::Left(std::future::ready(Ok(answer))),
            None => Either::Right(hyper::service::Service::call(&self.service, request)),
        }
    }
}

/// Accepts connections until it is aborted. Aborting it also aborts all connections.
async fn accept(listener: TcpListener, answering: Answering, line: Option<Arc<Line>>) {
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            accepted = listener.accept() => match accepted {
                Ok((stream, _)) => {
                    connections.spawn(serve(stream, answering.clone(), line.clone()));
                }
                Err(error) => {
                    tracing::warn!(%error, "cannot accept a connection");
                    // The process has most likely run out of descriptors; an immediate retry would only waste CPU.
                    tokio::time::sleep(std::time::Duration::from_millis(50)).await;
                }
            },
            Some(_) = connections.join_next() => {}
        }
    }
}

async fn serve(stream: TcpStream, answering: Answering, line: Option<Arc<Line>>) {
    // With Nagle's algorithm, every answer of more than one segment would wait 40 ms for the client's delayed
    // acknowledgement.
    if let Err(error) = stream.set_nodelay(true) {
        tracing::debug!(%error, "cannot set TCP_NODELAY");
    }
    let http = hyper::server::conn::http1::Builder::new();
    let ended = match line {
        None => {
            let here = hyper::service::service_fn(move |request| answering.answer(request));
            http.serve_connection(TokioIo::new(stream), here).await
        }
        Some(line) => {
            if let Err(error) = line.limit(&stream) {
                tracing::warn!(%error, "cannot limit a connection");
            }
            let far = hyper::service::service_fn(move |request| {
                let (answer, line) = (answering.answer(request), Arc::clone(&line));
                async move {
                    let answer = answer.await?;
                    let arrival = line.arrival_of(&answer);
                    tokio::time::sleep_until(arrival).await;
                    Ok::<_, HttpError>(answer)
                }
            });
            http.serve_connection(TokioIo::new(stream), far).await
        }
    };
    if let Err(error) = ended {
        tracing::debug!(%error, "a connection failed");
    }
}
