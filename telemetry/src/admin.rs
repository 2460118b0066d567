//! The admin server of a daemon: `/metrics` in Prometheus' text format, `/healthz` while the daemon's main loop runs,
//! `/readyz` while it can do its job. It is plain HTTP, read-only, and shows no secrets: any client that reaches the
//! address can read all of it. No client can exhaust the process or keep the kubelet's probes out: see
//! [`server`](crate::server).

use std::fmt;
use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::routing::get;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::prometheus_text::{CONTENT_TYPE, encode};
use prometheus_client::encoding::{DescriptorEncoder, MetricEncoder, NoLabelSet};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::Registry;

use crate::metrics::{Kind, METRICS, Metric};
use crate::server::{Limits, Plain, Server};

/// The limits of an admin server. No request has a body.
const LIMITS: Limits = Limits {
    connections: 128,
    head_bytes: 8 << 10,
    head: Duration::from_secs(5),
    body_bytes: 0,
    body: Duration::ZERO,
    age: Duration::from_secs(10),
    // Less than the grace period of every pod: no client delays a program's end beyond it.
    answer: Duration::from_secs(2),
};

/// The names and values of a sample's labels.
pub type Labels = Vec<(&'static str, String)>;

/// The value of a metric in [`METRICS`], for one set of labels.
#[derive(Clone, Debug, PartialEq)]
pub struct Sample {
    /// The metric's name in [`METRICS`], without the prefix `larder_`.
    pub name: &'static str,
    /// The sample's labels. Their values may come from users, so they are escaped in the output.
    pub labels: Labels,
    /// The value at the time of the scrape.
    pub value: Value,
}

/// The value of a sample.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    /// The value of a counter or a gauge.
    Number(u64),
    /// The value of a histogram.
    Histogram {
        /// The upper end of each range and the number of values in it. The last end is infinite.
        buckets: Vec<(f64, u64)>,
        /// The sum of all values, in the metric's unit.
        sum: f64,
    },
}

impl Sample {
    /// A counter or gauge without labels.
    pub fn new(name: &'static str, value: u64) -> Self {
        Self::with(name, [], value)
    }

    /// A counter or gauge with labels.
    pub fn with<const N: usize>(name: &'static str, labels: [(&'static str, &str); N], value: u64) -> Self {
        let labels = labels.map(|(label, value)| (label, value.to_owned())).into();
        Self { name, labels, value: Value::Number(value) }
    }
}

/// The state that a daemon reports through its admin server.
pub trait Admin: Send + Sync + 'static {
    /// `Ok` while the loop that does the daemon's job runs; otherwise the reason. Nothing else may fail it, because the
    /// kubelet kills a daemon that is not healthy.
    fn healthy(&self) -> Result<(), String>;

    /// `Ok` while the daemon can do its job; otherwise the reason.
    fn ready(&self) -> Result<(), String>;

    /// All metrics of the daemon. The samples of one metric must be adjacent. Called for each scrape; must not block.
    fn samples(&self) -> Vec<Sample>;

    /// Metrics that must be queried from elsewhere for each scrape.
    fn read(&self) -> impl Future<Output = Vec<Sample>> + Send {
        std::future::ready(Vec::new())
    }
}

/// Serves until `stop` completes. Errors: the address cannot be bound.
pub async fn serve(
    address: SocketAddr,
    admin: Arc<impl Admin>,
    stop: impl Future<Output = ()> + Send + 'static,
) -> io::Result<()> {
    serve_with(address, admin, Router::new(), stop).await
}

/// Like [`serve`], with additional routes in `more`. Their handlers can extract the client's address
/// (`ConnectInfo<SocketAddr>`).
pub async fn serve_with(
    address: SocketAddr,
    admin: Arc<impl Admin>,
    more: Router,
    stop: impl Future<Output = ()> + Send + 'static,
) -> io::Result<()> {
    let server = Server::bind(address, LIMITS).await?;
    server.serve(Plain, router(admin).merge(more), || {}, stop).await;
    Ok(())
}

fn router<A: Admin>(admin: Arc<A>) -> Router {
    Router::new()
        .route(
            "/metrics",
            get(|State(admin): State<Arc<A>>| async move {
                let read = admin.read().await;
                ([(header::CONTENT_TYPE, CONTENT_TYPE)], text([admin.samples(), read].concat()))
            }),
        )
        .route("/healthz", get(|State(admin): State<Arc<A>>| async move { probed(admin.healthy()) }))
        .route("/readyz", get(|State(admin): State<Arc<A>>| async move { probed(admin.ready()) }))
        .with_state(admin)
}

/// The answer to a probe.
fn probed(outcome: Result<(), String>) -> (StatusCode, String) {
    match outcome {
        Ok(()) => (StatusCode::OK, "ok\n".to_owned()),
        Err(why) => (StatusCode::SERVICE_UNAVAILABLE, format!("{why}\n")),
    }
}

/// Encodes samples in Prometheus' text format, as 0.1.0 did. Every name is prefixed with `larder_`. In OpenMetrics,
/// a dashboard's `le="1"` would be another series (`le="1.0"`), and the HELP and TYPE of a counter would lack `_total`.
fn text(samples: Vec<Sample>) -> String {
    let mut registry = Registry::with_prefix("larder");
    registry.register_collector(Box::new(Samples(samples)));
    let mut text = String::new();
    // Writing to a String cannot fail.
    let _ = encode(&mut text, &registry);
    text
}

/// The samples of one scrape.
#[derive(Debug)]
struct Samples(Vec<Sample>);

impl Collector for Samples {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        for samples in self.0.chunk_by(|one, next| one.name == next.name) {
            // A metric that the table does not name has no documented meaning and is not served.
            let Some(metric) = METRICS.iter().find(|metric| metric.name == samples[0].name) else { continue };
            // The encoder adds the suffix of a counter.
            let (name, kind) = match metric.kind {
                Kind::Counter => (metric.name.trim_end_matches("_total"), MetricType::Counter),
                Kind::Gauge => (metric.name, MetricType::Gauge),
                Kind::Histogram => (metric.name, MetricType::Histogram),
            };
            let help = format!("{} ({})", metric.meaning, metric.unit);
            let mut family = encoder.encode_descriptor(name, &help, None, kind)?;
            for sample in samples {
                if sample.labels.is_empty() {
                    put(&mut family, metric, &sample.value)?;
                } else {
                    put(&mut family.encode_family(&sample.labels)?, metric, &sample.value)?;
                }
            }
        }
        Ok(())
    }
}

fn put(encoder: &mut MetricEncoder<'_>, metric: &Metric, value: &Value) -> fmt::Result {
    match (value, metric.kind) {
        (Value::Number(number), Kind::Counter) => encoder.encode_counter::<NoLabelSet, _, u64>(number, None),
        (Value::Number(number), _) => encoder.encode_gauge(number),
        (Value::Histogram { buckets, sum }, _) => {
            let count = buckets.iter().map(|(_, values)| values).sum();
            encoder.encode_histogram::<NoLabelSet>(*sum, count, buckets, None)
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpStream;

    use super::*;

    /// A daemon whose loop can stop.
    #[derive(Default)]
    struct Daemon {
        is_stopped: AtomicBool,
    }

    impl Admin for Daemon {
        fn healthy(&self) -> Result<(), String> {
            if self.is_stopped.load(Ordering::Relaxed) { Err("the loop stopped 120 s ago".to_owned()) } else { Ok(()) }
        }

        fn ready(&self) -> Result<(), String> {
            Ok(())
        }

        fn samples(&self) -> Vec<Sample> {
            vec![Sample::new("fs_reads_total", 7)]
        }
    }

    async fn started(daemon: Arc<Daemon>) -> SocketAddr {
        let address = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        tokio::spawn(serve(address, daemon, std::future::pending()));
        while TcpStream::connect(address).await.is_err() {
            tokio::task::yield_now().await;
        }
        address
    }

    async fn get(address: SocketAddr, path: &str) -> String {
        let mut stream = TcpStream::connect(address).await.unwrap();
        let request = format!("GET {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        answer
    }

    /// The memory of this process in KiB.
    fn resident() -> u64 {
        let status = std::fs::read_to_string("/proc/self/status").unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
        line.trim().trim_end_matches(" kB").parse().unwrap()
    }

    // SEMANTICS: P7
    #[tokio::test]
    async fn only_a_stopped_loop_fails_the_probe_of_health() {
        let daemon = Arc::new(Daemon::default());
        let address = started(Arc::clone(&daemon)).await;
        assert!(get(address, "/healthz").await.starts_with("HTTP/1.1 200"));
        daemon.is_stopped.store(true, Ordering::Relaxed);
        let answer = get(address, "/healthz").await;
        assert!(answer.starts_with("HTTP/1.1 503") && answer.ends_with("the loop stopped 120 s ago\n"), "{answer}");
        assert!(get(address, "/readyz").await.starts_with("HTTP/1.1 200"));
        assert!(get(address, "/metrics").await.contains("larder_fs_reads_total 7\n"));
    }

    // SEMANTICS: P6
    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_flood_of_endless_heads_takes_little_memory_and_stops_no_probe() {
        static HEAD: [u8; 400 << 10] = [b'x'; 400 << 10];
        let address = started(Arc::default()).await;
        let before = resident();
        let (mut flood, mut most) = (Vec::new(), 0);
        for n in 0..400 {
            let mut stream = TcpStream::connect(address).await.unwrap();
            flood.push(tokio::spawn(async move {
                // It fails once the server has closed the connection.
                let _ = stream.write_all(b"GET /metrics HTTP/1.1\r\nx: ").await;
                let _ = stream.write_all(&HEAD).await;
                stream
            }));
            if n % 10 == 0 {
                assert!(get(address, "/healthz").await.starts_with("HTTP/1.1 200"));
                most = most.max(resident());
            }
        }
        let mut open = Vec::new();
        for connection in flood {
            open.push(connection.await.unwrap());
        }
        assert!(get(address, "/healthz").await.starts_with("HTTP/1.1 200"));
        most = most.max(resident());
        let grown = most.saturating_sub(before);
        assert!(grown < 24 << 10, "400 connections cost {grown} KiB");
    }

    #[test]
    fn only_metrics_of_the_table_are_served_with_their_meaning() {
        let samples = vec![Sample::new("fs_reads_total", 7), Sample::new("not_in_the_table", 1)];
        assert_eq!(
            text(samples),
            "# HELP larder_fs_reads_total READ requests (requests)\n# TYPE larder_fs_reads_total counter\n\
             larder_fs_reads_total 7\n"
        );
    }

    #[test]
    fn every_counter_is_served_under_the_name_in_the_table() {
        for metric in METRICS.iter().filter(|metric| metric.kind == Kind::Counter) {
            let text = text(vec![Sample::new(metric.name, 7)]);
            assert!(text.contains(&format!("\nlarder_{} 7\n", metric.name)), "{text}");
        }
    }

    #[test]
    fn samples_with_labels_share_one_head_and_quote_what_others_wrote() {
        let of = |source, value| Sample::with("fs_reads_total", [("source", source)], value);
        assert_eq!(
            text(vec![of("a", 1), of("b\\c\"d\ne", 2)]),
            "# HELP larder_fs_reads_total READ requests (requests)\n# TYPE larder_fs_reads_total counter\n\
             larder_fs_reads_total{source=\"a\"} 1\nlarder_fs_reads_total{source=\"b\\\\c\\\"d\\ne\"} 2\n"
        );
    }

    #[test]
    fn a_histogram_counts_values_up_to_the_end_of_each_range() {
        let of = |verb: &str, values| Sample {
            name: "scheduler_request_seconds",
            labels: vec![("verb", verb.to_owned())],
            value: Value::Histogram { buckets: vec![(0.001, values), (1.0, 0), (f64::INFINITY, 1)], sum: 0.25 },
        };
        let text = text(vec![of("filter", 3), of("preempt", 0)]);
        let lines: Vec<&str> = text.lines().skip(1).collect();
        assert_eq!(
            lines,
            [
                "# TYPE larder_scheduler_request_seconds histogram",
                "larder_scheduler_request_seconds_bucket{verb=\"filter\",le=\"0.001\"} 3",
                "larder_scheduler_request_seconds_bucket{verb=\"filter\",le=\"1\"} 3",
                "larder_scheduler_request_seconds_bucket{verb=\"filter\",le=\"+Inf\"} 4",
                "larder_scheduler_request_seconds_sum{verb=\"filter\"} 0.25",
                "larder_scheduler_request_seconds_count{verb=\"filter\"} 4",
                "larder_scheduler_request_seconds_bucket{verb=\"preempt\",le=\"0.001\"} 0",
                "larder_scheduler_request_seconds_bucket{verb=\"preempt\",le=\"1\"} 0",
                "larder_scheduler_request_seconds_bucket{verb=\"preempt\",le=\"+Inf\"} 1",
                "larder_scheduler_request_seconds_sum{verb=\"preempt\"} 0.25",
                "larder_scheduler_request_seconds_count{verb=\"preempt\"} 1",
            ]
        );
    }
}
