//! `larder-scheduler-ext`: a scheduler extender, which tells kube-scheduler on which nodes data is cached.
//!
//! The cast: [`watch`] follows the API, [`read`] cuts each object small, and [`index`] is what is known; [`wire`] is the
//! JSON of the scheduler; [`question`] is what a pod wants and what each node has of it; [`score`], [`filter`] and
//! [`preempt`] decide, all pure, the last by the [`constraints`] of pods; [`ring`] keeps the last decisions and [`replay`]
//! repeats them; [`http`] serves requests. [`load`] generates a large cluster. [`heard`] knows how long the API has been
//! silent; [`notice`] makes Events for users whose pods name a dataset that they may not read.
//!
//! Invariant: an answer follows from the request and one snapshot alone. The answer to preempt also depends on the pods
//! that earlier answers may have ended. No request waits for the API. Filter and prioritize take no lock; requests to
//! preempt take turns. The program writes nothing to the API but the Events of [`notice`].

pub mod admin;
pub mod answer;
pub mod config;
pub mod constraints;
pub mod filter;
pub mod heard;
pub mod http;
pub mod index;
pub mod load;
pub mod notice;
pub mod preempt;
pub mod question;
pub mod read;
pub mod replay;
pub mod ring;
pub mod score;
pub mod watch;
pub mod wire;

use std::net::SocketAddr;
use std::sync::Arc;

use anyhow::Context;
use arc_swap::ArcSwap;
use larder_kube::Client;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;
use tracing::info;

use admin::{Counters, Status};
use config::Settings;
use http::tls::{Tls, TlsFiles};
use http::verbs::Verbs;
use http::{Limits, Server};
use index::state::Snapshot;

/// The configuration of the program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// The address on which the scheduler is answered.
    pub address: SocketAddr,
    /// The certificate, if requests come over TLS.
    pub tls: Option<TlsFiles>,
    /// How nodes are scored.
    pub settings: Settings,
    /// The limits of the server.
    pub limits: Limits,
    /// Where metrics and probes are served, if they are.
    pub admin_address: Option<SocketAddr>,
}

/// Answers until `stop`.
///
/// # Errors
/// An address cannot be bound, or the certificate cannot be read.
pub async fn run(client: Client, config: Config, stop: CancellationToken) -> anyhow::Result<()> {
    let (settings, counters) = (Arc::new(config.settings), Arc::new(Counters::default()));
    let shown = Arc::new(ArcSwap::from_pointee(Snapshot::default()));
    let tls = config.tls.map(Tls::open).transpose()?;
    let (verbs, keeper) = Verbs::new(Arc::clone(&settings), Arc::clone(&shown), Arc::clone(&counters));
    let server = Server::bind(config.address, tls.clone(), config.limits, verbs, Arc::clone(&counters)).await?;
    info!(address = %server.address()?, "listening");
    let admin = async {
        let Some(address) = config.admin_address else { return std::future::pending().await };
        let status = Arc::new(Status { counters: Arc::clone(&counters), snapshot: Arc::clone(&shown) });
        let served = larder_telemetry::admin::serve(address, status, stop.clone().cancelled_owned()).await;
        match served.with_context(|| format!("serve /metrics on {address}")) {
            Ok(()) => std::future::pending().await,
            Err(error) => error,
        }
    };
    let certificate = async {
        match &tls {
            Some(tls) => tls.follow().await,
            None => std::future::pending().await,
        }
    };
    let (notices, waiting) = mpsc::channel(notice::WAITING);
    let keeper = tokio::spawn(keeper.run(notices));
    let teller = tokio::spawn(notice::tell(client.clone(), waiting));
    let watches = tokio::spawn(watch::run(client, Arc::clone(&settings), Arc::clone(&shown), Arc::clone(&counters)));
    let served = tokio::select! {
        () = server.serve(stop.clone()) => Ok(()),
        error = admin => Err(error),
        () = certificate => Ok(()),
        ended = watches => Err(anyhow::anyhow!("the watches ended: {ended:?}")),
    };
    keeper.abort();
    teller.abort();
    served
}
