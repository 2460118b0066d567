//! The admin server of a daemon: `/metrics` as OpenMetrics text, `/healthz` while the process runs, `/readyz` while it can
//! do its job. Plain HTTP, read-only, no secrets: anyone who can reach the address can read all of it.

use std::fmt;
use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use axum::Router;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::routing::get;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::text::encode;
use prometheus_client::encoding::{DescriptorEncoder, MetricEncoder, NoLabelSet};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::Registry;

use crate::metrics::{Kind, METRICS, Metric};

/// What [`encode`] writes.
const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// The labels of a sample.
pub type Labels = Vec<(&'static str, String)>;

/// The value of a metric in [`METRICS`], for one set of labels.
#[derive(Clone, Debug, PartialEq)]
pub struct Sample {
    /// The metric's name.
    pub name: &'static str,
    /// Its labels. Their values may come from anyone.
    pub labels: Labels,
    /// Its value.
    pub value: Value,
}

/// The value of a sample.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    /// Of a counter or a gauge.
    Number(u64),
    /// Of a histogram.
    Histogram {
        /// The upper end of each range, and how many values fell into it. The last end is infinite.
        buckets: Vec<(f64, u64)>,
        /// The sum of all values.
        sum: f64,
    },
}

impl Sample {
    /// A number without labels.
    pub fn new(name: &'static str, value: u64) -> Self {
        Self::with(name, [], value)
    }

    /// A number with labels.
    pub fn with<const N: usize>(name: &'static str, labels: [(&'static str, &str); N], value: u64) -> Self {
        let labels = labels.map(|(label, value)| (label, value.to_owned())).into();
        Self { name, labels, value: Value::Number(value) }
    }
}

/// The state that a daemon reports.
pub trait Admin: Send + Sync + 'static {
    /// Whether the daemon can do its job; if not, why.
    fn ready(&self) -> Result<(), String>;

    /// All its metrics, the samples of a metric behind each other. Called for each scrape; must not block.
    fn samples(&self) -> Vec<Sample>;

    /// Those that have to be looked up elsewhere for each scrape.
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

/// The same with `more` routes, whose handlers get the address of the client (`ConnectInfo<SocketAddr>`).
pub async fn serve_with(
    address: SocketAddr,
    admin: Arc<impl Admin>,
    more: Router,
    stop: impl Future<Output = ()> + Send + 'static,
) -> io::Result<()> {
    let listener = tokio::net::TcpListener::bind(address).await?;
    let service = router(admin).merge(more).into_make_service_with_connect_info::<SocketAddr>();
    axum::serve(listener, service).with_graceful_shutdown(stop).await
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
        .route("/healthz", get(|| async { "ok\n" }))
        .route(
            "/readyz",
            get(|State(admin): State<Arc<A>>| async move {
                match admin.ready() {
                    Ok(()) => (StatusCode::OK, "ok\n".to_owned()),
                    Err(why) => (StatusCode::SERVICE_UNAVAILABLE, format!("{why}\n")),
                }
            }),
        )
        .with_state(admin)
}

/// The OpenMetrics text of samples. Every name is prefixed with `larder_`.
fn text(samples: Vec<Sample>) -> String {
    let mut registry = Registry::with_prefix("larder");
    registry.register_collector(Box::new(Samples(samples)));
    let mut text = String::new();
    // Writing to a String does not fail.
    let _ = encode(&mut text, &registry);
    text
}

/// The samples of one scrape.
#[derive(Debug)]
struct Samples(Vec<Sample>);

impl Collector for Samples {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        for samples in self.0.chunk_by(|one, next| one.name == next.name) {
            // What the table does not name has no meaning, and is not served.
            let Some(metric) = METRICS.iter().find(|metric| metric.name == samples[0].name) else { continue };
            // OpenMetrics names a counter without the suffix of its samples, which the encoder adds.
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
    use super::*;

    #[test]
    fn only_metrics_of_the_table_are_served_with_their_meaning() {
        let samples = vec![Sample::new("fs_reads_total", 7), Sample::new("not_in_the_table", 1)];
        assert_eq!(
            text(samples),
            "# HELP larder_fs_reads READ requests (requests)\n# TYPE larder_fs_reads counter\n\
             larder_fs_reads_total 7\n# EOF\n"
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
            "# HELP larder_fs_reads READ requests (requests)\n# TYPE larder_fs_reads counter\n\
             larder_fs_reads_total{source=\"a\"} 1\nlarder_fs_reads_total{source=\"b\\\\c\\\"d\\ne\"} 2\n# EOF\n"
        );
    }

    #[test]
    fn a_histogram_counts_values_up_to_the_end_of_each_range() {
        let of = |verb: &str, values| Sample {
            name: "scheduler_request_seconds",
            labels: vec![("verb", verb.to_owned())],
            value: Value::Histogram { buckets: vec![(0.001, values), (f64::INFINITY, 1)], sum: 0.25 },
        };
        let text = text(vec![of("filter", 3), of("preempt", 0)]);
        let lines: Vec<&str> = text.lines().skip(1).collect();
        assert_eq!(
            lines,
            [
                "# TYPE larder_scheduler_request_seconds histogram",
                "larder_scheduler_request_seconds_sum{verb=\"filter\"} 0.25",
                "larder_scheduler_request_seconds_count{verb=\"filter\"} 4",
                "larder_scheduler_request_seconds_bucket{le=\"0.001\",verb=\"filter\"} 3",
                "larder_scheduler_request_seconds_bucket{le=\"+Inf\",verb=\"filter\"} 4",
                "larder_scheduler_request_seconds_sum{verb=\"preempt\"} 0.25",
                "larder_scheduler_request_seconds_count{verb=\"preempt\"} 1",
                "larder_scheduler_request_seconds_bucket{le=\"0.001\",verb=\"preempt\"} 0",
                "larder_scheduler_request_seconds_bucket{le=\"+Inf\",verb=\"preempt\"} 1",
                "# EOF",
            ]
        );
    }
}
