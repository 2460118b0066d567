//! `larder-scheduler-ext`: a scheduler extender that tells kube-scheduler on which nodes data is cached.
//!
//! Parts:
//! - [`watch`] follows the API, [`read`] reduces each object, and [`index`] is the known state of the cluster.
//! - [`wire`] is the scheduler's JSON, and [`http`] serves its requests.
//! - [`question`] determines a pod's datasets and what each node holds of them. [`score`], [`filter`] and [`preempt`]
//!   decide; all are pure. Preemption also considers the [`constraints`] of pods.
//! - [`ring`] keeps the last decisions, and [`replay`] repeats them.
//! - [`watch_age`] measures how long the API has been silent. [`notice`] creates Events for users whose pods name a
//!   dataset that they may not read.
//! - [`load`] generates a large cluster.
//!
//! Invariant: an answer depends only on the request and on one snapshot. The answer to preempt also depends on the pods
//! that earlier answers may have preempted, and waits for a moment until it is seen what became of these, if it would
//! leave no node otherwise. No other request waits for the API. Filter and prioritize take no lock; preempt requests
//! are serialized. The program writes only the Events of [`notice`] to the API.

pub mod admin;
pub mod answer;
pub mod config;
pub mod constraints;
pub mod filter;
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
pub mod watch_age;
pub mod wire;

use std::net::SocketAddr;
use std::sync::Arc;

use anyhow::Context;
use arc_swap::ArcSwap;
use larder_kube::Client;
use larder_telemetry::server::Limits;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;
use tracing::info;

use admin::{Counters, Status};
use config::Settings;
use http::Server;
use http::tls::{Tls, TlsFiles};
use http::verbs::Verbs;
use index::state::Snapshot;

/// The configuration of the program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// The address on which the scheduler is answered.
    pub address: SocketAddr,
    /// The certificate files; `None` for plain HTTP.
    pub tls: Option<TlsFiles>,
    /// How nodes are scored.
    pub settings: Settings,
    /// The limits of the server.
    pub limits: Limits,
    /// The address of metrics and probes; `None` for none.
    pub admin_address: Option<SocketAddr>,
}

/// Answers requests until `stop`.
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
    let emitter = tokio::spawn(notice::emit(client.clone(), waiting));
    let watches = tokio::spawn(watch::run(client, Arc::clone(&settings), Arc::clone(&shown), Arc::clone(&counters)));
    let served = tokio::select! {
        () = server.serve(stop.clone()) => Ok(()),
        error = admin => Err(error),
        () = certificate => Ok(()),
        ended = watches => Err(anyhow::anyhow!("the watches ended: {ended:?}")),
    };
    keeper.abort();
    emitter.abort();
    served
}
