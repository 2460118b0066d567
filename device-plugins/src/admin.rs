//! The admin server: `/metrics`, `/healthz`, `/readyz`, and `/devices` with the report of all devices.
//!
//! A report names pods and their devices, so it is served on loopback only, for programs in the pod such as `larder devices`.
//! Metrics name only pods with HCAs.

use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use axum::Router;
use axum::extract::{ConnectInfo, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use larder_telemetry::admin::Admin;
use larder_telemetry::{Heartbeat, Sample};
use tokio::sync::watch;

use crate::config::XidAction;
use crate::health::{Reason, xid};
use crate::node::counters::Counters;
use crate::node::pods::Pods;
use crate::report;
use crate::resource::DeviceKey;
use crate::usage::{self, Usage};
use crate::view::View;

/// The program on the admin server.
#[derive(Debug)]
pub struct Status {
    pub node: String,
    /// The views; the first one is complete.
    pub view: watch::Receiver<Arc<View>>,
    pub pods: Arc<Pods>,
    pub counters: Arc<Counters>,
    /// The RDMA objects of pods.
    pub usage: Usage,
    /// Of the state, which decides on the health of devices.
    pub heartbeat: Heartbeat,
}

/// Serves until `stop` completes. Errors: the address cannot be bound.
pub async fn serve(
    address: SocketAddr,
    status: Arc<Status>,
    stop: impl Future<Output = ()> + Send + 'static,
) -> io::Result<()> {
    let more = Router::new().route("/devices", get(devices)).with_state(Arc::clone(&status));
    larder_telemetry::admin::serve_with(address, status, more, stop).await
}

async fn devices(State(status): State<Arc<Status>>, ConnectInfo(from): ConnectInfo<SocketAddr>) -> Response {
    if !from.ip().to_canonical().is_loopback() {
        let why = "reports name pods and are served on loopback only: run `kubectl exec ds/larder-devices -- larder devices`\n";
        return (StatusCode::FORBIDDEN, why).into_response();
    }
    let view = Arc::clone(&status.view.borrow());
    let known = status.pods.known(&view.resources).await;
    match serde_json::to_vec(&report::of(&status.node, &view, &known)) {
        Ok(body) => ([(header::CONTENT_TYPE, "application/json")], body).into_response(),
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, format!("{error}\n")).into_response(),
    }
}

/// The kinds of devices, as labels.
const KINDS: [&str; 3] = ["gpu", "mig", "hca"];

/// The actions of reported Xids.
const XIDS: [XidAction; 4] = [XidAction::Watch, XidAction::RestartWorker, XidAction::DrainGpu, XidAction::DrainNode];

fn kind(key: &DeviceKey) -> &'static str {
    match key {
        DeviceKey::Gpu(_) => "gpu",
        DeviceKey::Slice(_) => "mig",
        DeviceKey::Hca(_) => "hca",
    }
}

impl Admin for Status {
    fn healthy(&self) -> Result<(), String> {
        self.heartbeat.check("the loop that decides on the health of devices")
    }

    fn ready(&self) -> Result<(), String> {
        // It is served once the devices are known.
        Ok(())
    }

    fn samples(&self) -> Vec<Sample> {
        let view = Arc::clone(&self.view.borrow());
        let number = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let counters = &self.counters;
        let numbers = [
            ("devices_api_errors_total", number(&counters.api_errors)),
            ("devices_config_refused", u64::from(view.refused_config.is_some())),
            ("devices_events_dropped_total", number(&counters.events_dropped)),
            ("devices_events_total", number(&counters.events)),
            ("devices_node_writes_total", number(&counters.node_writes)),
            ("devices_oddities", (view.machine.warnings.len() + view.machine.gpu_warnings.len()) as u64),
            ("devices_withheld", view.excluded.len() as u64),
        ];
        let mut samples: Vec<Sample> = numbers.map(|(name, value)| Sample::new(name, value)).into();
        let machine = &view.machine;
        let slices: usize = machine.gpus.iter().map(|gpu| gpu.slices().len()).sum();
        let counts = [machine.gpus.len(), slices, machine.hcas.len()];
        for (kind, count) in KINDS.into_iter().zip(counts) {
            samples.push(Sample::with("devices_known", [("kind", kind)], count as u64));
        }
        // Every pair, so that a count returns to 0 instead of disappearing.
        let pair = |kind| Reason::ALL.into_iter().map(move |reason| ((kind, reason.name()), 0));
        let mut faults: BTreeMap<(&str, &str), u64> = KINDS.into_iter().flat_map(pair).collect();
        for (key, fault) in view.faults.iter() {
            *faults.entry((kind(key), fault.reason.name())).or_default() += 1;
        }
        for ((kind, reason), count) in faults {
            samples.push(Sample::with("devices_out_of_service", [("kind", kind), ("reason", reason)], count));
        }
        for (part, why) in view.missing().all() {
            samples.push(Sample::with("devices_limits_missing", [("part", part)], u64::from(why.is_some())));
        }
        for action in XIDS {
            let labels = [("action", xid::name(action))];
            samples.push(Sample::with("devices_xids_total", labels, self.counters.xids(action)));
        }
        samples
    }

    async fn read(&self) -> Vec<Sample> {
        let sample = |(of, value): (usage::Of, u64)| {
            let labels = [("namespace", &*of.namespace), ("pod", &*of.pod), ("hca", &*of.hca), ("object", of.object)];
            Sample::with("devices_rdma_current", labels, value)
        };
        self.usage.read().await.into_iter().map(sample).collect()
    }
}

#[cfg(test)]
mod tests;
