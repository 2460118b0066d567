//! The admin server of a daemon: `/metrics` for Prometheus, `/healthz` while the process runs, `/readyz` while it can
//! do its job. Plain HTTP, read-only, no secrets: anyone who can reach the address can read all of it.

use std::fmt::Write;
use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use axum::Router;
use axum::extract::State;
use axum::http::StatusCode;
use axum::routing::get;

use crate::metrics::{Kind, METRICS};

/// The value of a metric in [`METRICS`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sample {
    /// The metric's name.
    pub name: &'static str,
    /// Its value.
    pub value: u64,
}

/// One of the values of a metric in [`METRICS`] that has labels.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Labelled {
    /// The metric's name.
    pub name: &'static str,
    /// Its labels, as Prometheus writes them: `verb="create",resource="jobs"`. Values that are not the program's own are
    /// [`quoted`].
    pub labels: String,
    /// Its value.
    pub value: u64,
}

/// A text as the value of a label, in quotes.
pub fn quoted(text: &str) -> String {
    format!("\"{}\"", text.replace('\\', r"\\").replace('"', "\\\"").replace('\n', r"\n"))
}

/// One of the values of a metric in [`METRICS`] that is a histogram.
#[derive(Clone, Debug, PartialEq)]
pub struct Histogram {
    /// The metric's name.
    pub name: &'static str,
    /// Its labels, as those of [`Labelled`].
    pub labels: String,
    /// The upper end of each range, and how many values were not more than that; the last one is all of them.
    pub buckets: Vec<(f64, u64)>,
    /// All values together.
    pub sum: f64,
}

/// The state that a daemon reports.
pub trait Admin: Send + Sync + 'static {
    /// Whether the daemon can do its job; if not, why.
    fn ready(&self) -> Result<(), String>;

    /// All its metrics without labels. Called for each scrape; must not block.
    fn samples(&self) -> Vec<Sample>;

    /// Those with labels, the values of a metric behind each other.
    fn labelled(&self) -> Vec<Labelled> {
        Vec::new()
    }

    /// Those with labels that have to be looked up elsewhere for each scrape.
    fn read(&self) -> impl Future<Output = Vec<Labelled>> + Send {
        std::future::ready(Vec::new())
    }

    /// Its histograms, those of a metric behind each other.
    fn histograms(&self) -> Vec<Histogram> {
        Vec::new()
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

/// The same with `more` routes, whose handlers are told from where they are asked (`ConnectInfo<SocketAddr>`).
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
                text(&admin.samples(), &[admin.labelled(), read].concat()) + &histograms(&admin.histograms())
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

/// Prometheus' text format. Every name is prefixed with `larder_`.
fn text(samples: &[Sample], labelled: &[Labelled]) -> String {
    let mut text = String::new();
    // Writing to a String cannot fail.
    for Sample { name, value } in samples {
        if put_head(&mut text, name) {
            let _ = writeln!(text, "larder_{name} {value}");
        }
    }
    let mut before = "";
    for Labelled { name, labels, value } in labelled {
        if before == *name || put_head(&mut text, name) {
            before = name;
            let _ = writeln!(text, "larder_{name}{{{labels}}} {value}");
        }
    }
    text
}

/// The same of histograms.
fn histograms(histograms: &[Histogram]) -> String {
    let mut text = String::new();
    let mut before = "";
    for Histogram { name, labels, buckets, sum } in histograms {
        if before != *name && !put_head(&mut text, name) {
            continue;
        }
        before = name;
        // The last range has no end.
        let (count, ends) = buckets.split_last().map_or((0, &[][..]), |(last, ends)| (last.1, ends));
        for (end, values) in ends {
            let _ = writeln!(text, "larder_{name}_bucket{{{labels},le=\"{end}\"}} {values}");
        }
        let _ = writeln!(text, "larder_{name}_bucket{{{labels},le=\"+Inf\"}} {count}");
        let _ = writeln!(text, "larder_{name}_sum{{{labels}}} {sum}\nlarder_{name}_count{{{labels}}} {count}");
    }
    text
}

/// Says what a metric is. False if it is not in the table.
fn put_head(text: &mut String, name: &str) -> bool {
    let Some(metric) = METRICS.iter().find(|metric| metric.name == name) else { return false };
    let kind = match metric.kind {
        Kind::Counter => "counter",
        Kind::Gauge => "gauge",
        Kind::Histogram => "histogram",
    };
    let _ = writeln!(text, "# HELP larder_{name} {} ({})\n# TYPE larder_{name} {kind}", metric.meaning, metric.unit);
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_are_written_as_prometheus_reads_them() {
        let samples = [Sample { name: "fs_reads_total", value: 7 }, Sample { name: "not_in_the_table", value: 1 }];
        assert_eq!(
            text(&samples, &[]),
            "# HELP larder_fs_reads_total READ requests (requests)\n\
             # TYPE larder_fs_reads_total counter\nlarder_fs_reads_total 7\n"
        );
    }

    #[test]
    fn texts_of_others_are_quoted() {
        assert_eq!(quoted("a\\b\"c\nd"), r#""a\\b\"c\nd""#);
    }

    #[test]
    fn values_with_labels_share_one_head() {
        let of = |labels: &str, value| Labelled { name: "fs_reads_total", labels: labels.to_owned(), value };
        assert_eq!(
            text(&[], &[of("source=\"a\"", 1), of("source=\"b\"", 2)]),
            "# HELP larder_fs_reads_total READ requests (requests)\n# TYPE larder_fs_reads_total counter\n\
             larder_fs_reads_total{source=\"a\"} 1\nlarder_fs_reads_total{source=\"b\"} 2\n"
        );
    }

    #[test]
    fn a_histogram_counts_values_up_to_the_end_of_each_range() {
        let of = |verb: &str, value| Histogram {
            name: "scheduler_request_seconds",
            labels: format!("verb=\"{verb}\""),
            buckets: vec![(0.001, value), (f64::INFINITY, value + 1)],
            sum: 0.25,
        };
        let text = histograms(&[of("filter", 3), of("preempt", 0)]);
        let lines: Vec<&str> = text.lines().skip(1).collect();
        assert_eq!(
            lines,
            [
                "# TYPE larder_scheduler_request_seconds histogram",
                "larder_scheduler_request_seconds_bucket{verb=\"filter\",le=\"0.001\"} 3",
                "larder_scheduler_request_seconds_bucket{verb=\"filter\",le=\"+Inf\"} 4",
                "larder_scheduler_request_seconds_sum{verb=\"filter\"} 0.25",
                "larder_scheduler_request_seconds_count{verb=\"filter\"} 4",
                "larder_scheduler_request_seconds_bucket{verb=\"preempt\",le=\"0.001\"} 0",
                "larder_scheduler_request_seconds_bucket{verb=\"preempt\",le=\"+Inf\"} 1",
                "larder_scheduler_request_seconds_sum{verb=\"preempt\"} 0.25",
                "larder_scheduler_request_seconds_count{verb=\"preempt\"} 1",
            ]
        );
    }
}
