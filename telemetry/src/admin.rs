//! The admin server of a daemon: `/metrics` in OpenMetrics or Prometheus' text format, `/healthz` while the daemon's
//! main loop runs, `/readyz` while it can do its job. It is plain HTTP, read-only, and shows no secrets: any client that
//! reaches the address can read all of it, except the names of what users have made, such as datasets. These are for
//! scrapers that present the token of [`AdminAddress::names_token`]. No client can exhaust the process or keep the
//! kubelet's probes out: see [`server`](crate::server).

use std::fmt;
use std::future::Future;
use std::io::{self, Read};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::prometheus_text::{self, CONTENT_TYPE};
use prometheus_client::encoding::{DescriptorEncoder, MetricEncoder, NoLabelSet, text as open_metrics};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::{Registry, Unit};
use tokio::sync::Mutex;

use crate::metrics::{Kind, METRICS, Metric};
use crate::process;
use crate::sample::{Sample, Value};
use crate::secrecy::is_same_secret;
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

/// The media type by which a scraper requests OpenMetrics.
const OPEN_METRICS: &str = "application/openmetrics-text";

/// The most bytes of a token file.
const TOKEN_BYTES: u64 = 4096;

/// The state that a daemon reports through its admin server.
pub trait Admin: Send + Sync + 'static {
    /// `Ok` while the loop that does the daemon's job runs; otherwise the reason. Nothing else may fail it, because the
    /// kubelet kills a daemon that is not healthy.
    fn healthy(&self) -> Result<(), String>;

    /// `Ok` while the daemon can do its job; otherwise the reason.
    fn ready(&self) -> Result<(), String>;

    /// All metrics of the daemon, without the names of what users have made. Called for each scrape; must not block.
    fn samples(&self) -> Vec<Sample>;

    /// The same with these names, for scrapers that present the token.
    fn named_samples(&self) -> Vec<Sample> {
        self.samples()
    }

    /// Metrics that must be queried from elsewhere for each scrape.
    fn read(&self) -> impl Future<Output = Vec<Sample>> + Send {
        std::future::ready(Vec::new())
    }
}

/// Where the admin server of a daemon is, and who may see names there.
#[derive(Clone, Debug)]
pub struct AdminAddress {
    /// The address to listen at.
    pub address: SocketAddr,
    /// The file with the token of the scrapers that may see the names of what users have made. None: nobody may. Read
    /// for each scrape that presents a token, so it can be replaced.
    pub names_token: Option<PathBuf>,
}

impl From<SocketAddr> for AdminAddress {
    fn from(address: SocketAddr) -> Self {
        Self { address, names_token: None }
    }
}

/// Serves until `stop` completes. Errors: the address cannot be bound.
pub async fn serve(
    address: impl Into<AdminAddress>,
    admin: Arc<impl Admin>,
    stop: impl Future<Output = ()> + Send + 'static,
) -> io::Result<()> {
    serve_with(address, admin, Router::new(), stop).await
}

/// Like [`serve`], with additional routes in `more`. Their handlers can extract the client's address
/// (`ConnectInfo<SocketAddr>`).
pub async fn serve_with(
    address: impl Into<AdminAddress>,
    admin: Arc<impl Admin>,
    more: Router,
    stop: impl Future<Output = ()> + Send + 'static,
) -> io::Result<()> {
    let AdminAddress { address, names_token } = address.into();
    let server = Server::bind(address, LIMITS).await?;
    server.serve(Plain, router(admin, names_token).merge(more), || {}, stop).await;
    Ok(())
}

fn router<A: Admin>(admin: Arc<A>, names_token: Option<PathBuf>) -> Router {
    let (token, turn) = (names_token.map(Arc::<Path>::from), Arc::new(Mutex::new(())));
    Router::new()
        .route(
            "/metrics",
            get(move |State(admin): State<Arc<A>>, head: HeaderMap| {
                let (token, turn) = (token.clone(), Arc::clone(&turn));
                async move { scraped(&*admin, token.as_deref(), &turn, &head).await }
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

/// The answer to a scrape. One at a time has its `turn`: clients that scrape again and again take one CPU from the
/// daemon's work at most.
async fn scraped(admin: &impl Admin, token: Option<&Path>, turn: &Mutex<()>, head: &HeaderMap) -> Response {
    let with_names = match may_see_names(token, head).await {
        Ok(with_names) => with_names,
        Err((status, why)) => return (status, format!("{why}\n")).into_response(),
    };
    let read = admin.read().await;
    let _turn = turn.lock().await;
    let mut samples = if with_names { admin.named_samples() } else { admin.samples() };
    samples.extend(read);
    samples.extend(process::samples());
    let accepts = |value: &header::HeaderValue| value.to_str().is_ok_and(|accepted| accepted.contains(OPEN_METRICS));
    let format = if head.get_all(header::ACCEPT).iter().any(accepts) { Format::OpenMetrics } else { Format::Text };
    ([(header::CONTENT_TYPE, format.content_type())], text(samples, format)).into_response()
}

/// True if a scraper presents the token of this file. Errors: it presents another one, or the file cannot be used.
async fn may_see_names(file: Option<&Path>, head: &HeaderMap) -> Result<bool, (StatusCode, String)> {
    let (Some(file), Some(presented)) = (file, head.get(header::AUTHORIZATION)) else { return Ok(false) };
    let path = file.to_owned();
    // A file on a filesystem that hangs holds one thread that may block.
    let read = tokio::task::spawn_blocking(move || token(path)).await.unwrap_or_else(|panic| Err(panic.into()));
    let token = read.map_err(|error| {
        (
            StatusCode::SERVICE_UNAVAILABLE,
            format!("cannot read the token of the metrics in {}: {error}", file.display()),
        )
    })?;
    match presented.as_bytes().strip_prefix(b"Bearer ") {
        Some(presented) if is_same_secret(presented.trim_ascii(), token.trim_ascii()) => Ok(true),
        _ => Err((StatusCode::UNAUTHORIZED, "the bearer token is not that of the metrics".to_owned())),
    }
}

fn token(file: PathBuf) -> io::Result<Vec<u8>> {
    let mut token = Vec::new();
    std::fs::File::open(file)?.take(TOKEN_BYTES).read_to_end(&mut token)?;
    if token.trim_ascii().is_empty() { Err(io::Error::other("it is empty")) } else { Ok(token) }
}

/// The text formats of a scrape.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Format {
    /// Prometheus' own, as 0.1.0 served it.
    Text,
    OpenMetrics,
}

impl Format {
    fn content_type(self) -> &'static str {
        match self {
            Self::Text => CONTENT_TYPE,
            Self::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
        }
    }
}

/// Encodes samples. Every name is prefixed with `larder_`, unless it is one that all programs have.
fn text(mut samples: Vec<Sample>, format: Format) -> String {
    // Both formats want the samples of a metric together.
    samples.sort_by_key(|sample| sample.name);
    let mut registry = Registry::default();
    registry.register_collector(Box::new(Samples(samples)));
    let mut text = String::new();
    // Writing to a String cannot fail.
    let _ = match format {
        Format::Text => prometheus_text::encode(&mut text, &registry),
        Format::OpenMetrics => open_metrics::encode(&mut text, &registry),
    };
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
            // The encoder adds the suffix of a counter, and the unit before it.
            let name = metric.name.trim_end_matches("_total");
            let (name, unit) = [("_seconds", Unit::Seconds), ("_bytes", Unit::Bytes)]
                .into_iter()
                .find_map(|(suffix, unit)| Some((name.strip_suffix(suffix)?, Some(unit))))
                .unwrap_or((name, None));
            let kind = match metric.kind {
                Kind::Counter => MetricType::Counter,
                Kind::Gauge => MetricType::Gauge,
                Kind::Histogram => MetricType::Histogram,
            };
            let prefix = if name.starts_with("process_") { "" } else { "larder_" };
            let (name, help) = (format!("{prefix}{name}"), format!("{} ({})", metric.meaning, metric.unit));
            let mut family = encoder.encode_descriptor(&name, &help, unit.as_ref(), kind)?;
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
        (Value::Time(time), Kind::Counter) => encoder.encode_counter::<NoLabelSet, _, u64>(&time.as_secs_f64(), None),
        (Value::Time(time), _) => encoder.encode_gauge(&time.as_secs_f64()),
        (Value::Fraction(number), Kind::Counter) => encoder.encode_counter::<NoLabelSet, _, u64>(number, None),
        (Value::Fraction(number), _) => encoder.encode_gauge(number),
        (Value::Histogram { buckets, sum }, _) => {
            let count = buckets.iter().map(|(_, values)| values).sum();
            encoder.encode_histogram::<NoLabelSet>(sum.as_secs_f64(), count, buckets, None)
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

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

        fn named_samples(&self) -> Vec<Sample> {
            vec![Sample::with("fs_reads_total", [("dataset", "secret")], 7)]
        }
    }

    async fn started(daemon: Arc<Daemon>) -> SocketAddr {
        started_with(daemon, None).await
    }

    async fn started_with(daemon: Arc<impl Admin>, names_token: Option<PathBuf>) -> SocketAddr {
        let address = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        tokio::spawn(serve(AdminAddress { address, names_token }, daemon, std::future::pending()));
        while TcpStream::connect(address).await.is_err() {
            tokio::task::yield_now().await;
        }
        address
    }

    async fn get(address: SocketAddr, path: &str) -> String {
        get_with(address, path, "").await
    }

    /// With more lines in the head of the request.
    async fn get_with(address: SocketAddr, path: &str, head: &str) -> String {
        let mut stream = TcpStream::connect(address).await.unwrap();
        let request = format!("GET {path} HTTP/1.1\r\nhost: x\r\n{head}connection: close\r\n\r\n");
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

    /// A daemon that takes a while to count.
    #[derive(Default)]
    struct Slow {
        counting: AtomicUsize,
        most: AtomicUsize,
    }

    impl Admin for Slow {
        fn healthy(&self) -> Result<(), String> {
            Ok(())
        }

        fn ready(&self) -> Result<(), String> {
            Ok(())
        }

        fn samples(&self) -> Vec<Sample> {
            let counting = self.counting.fetch_add(1, Ordering::SeqCst) + 1;
            self.most.fetch_max(counting, Ordering::SeqCst);
            std::thread::sleep(Duration::from_millis(5));
            self.counting.fetch_sub(1, Ordering::SeqCst);
            Vec::new()
        }
    }

    // SEMANTICS: P6
    #[tokio::test(flavor = "multi_thread", worker_threads = 4)]
    async fn clients_that_scrape_all_at_the_same_time_take_one_thread() {
        let slow = Arc::new(Slow::default());
        let address = started_with(Arc::clone(&slow), None).await;
        let scrapes: Vec<_> = (0..32).map(|_| tokio::spawn(get(address, "/metrics"))).collect();
        for scrape in scrapes {
            assert!(scrape.await.unwrap().starts_with("HTTP/1.1 200"));
        }
        assert_eq!(slow.most.load(Ordering::SeqCst), 1);
    }

    // SEMANTICS: P9
    #[tokio::test]
    async fn names_are_shown_to_those_who_present_the_token_and_to_nobody_else() {
        let folder = tempfile::tempdir().unwrap();
        let token = folder.path().join("token");
        std::fs::write(&token, "s3cret\n").unwrap();
        let bearer = |token: &str| format!("authorization: Bearer {token}\r\n");
        let open = started(Arc::default()).await;
        for head in [String::new(), bearer("s3cret"), bearer("")] {
            let answer = get_with(open, "/metrics", &head).await;
            assert!(answer.contains("larder_fs_reads_total 7\n") && !answer.contains("secret"), "{answer}");
        }

        let address = started_with(Arc::<Daemon>::default(), Some(token.clone())).await;
        let answer = get(address, "/metrics").await;
        assert!(answer.contains("larder_fs_reads_total 7\n") && !answer.contains("secret"), "{answer}");
        let answer = get_with(address, "/metrics", &bearer("s3cret")).await;
        assert!(answer.contains("larder_fs_reads_total{dataset=\"secret\"} 7\n"), "{answer}");
        for wrong in ["s3cre", "s3cret2", "", "S3CRET"] {
            let answer = get_with(address, "/metrics", &bearer(wrong)).await;
            assert!(answer.starts_with("HTTP/1.1 401") && !answer.contains("dataset"), "{wrong}: {answer}");
        }

        // It is replaced while the program runs. An empty one is nobody's.
        std::fs::write(&token, "other").unwrap();
        assert!(get_with(address, "/metrics", &bearer("s3cret")).await.starts_with("HTTP/1.1 401"));
        assert!(get_with(address, "/metrics", &bearer("other")).await.starts_with("HTTP/1.1 200"));
        std::fs::write(&token, "\n").unwrap();
        assert!(get_with(address, "/metrics", &bearer("")).await.starts_with("HTTP/1.1 503"));
    }

    #[tokio::test]
    async fn a_scraper_that_accepts_open_metrics_gets_it_with_units_and_an_end() {
        let address = started(Arc::default()).await;
        let accept = "accept: application/openmetrics-text;version=1.0.0;q=0.5,text/plain;version=0.0.4;q=0.3\r\n";
        let answer = get_with(address, "/metrics", accept).await;
        assert!(answer.contains("content-type: application/openmetrics-text; version=1.0.0"), "{answer}");
        assert!(answer.contains("# TYPE larder_fs_reads counter\nlarder_fs_reads_total 7\n"), "{answer}");
        assert!(answer.contains("# UNIT process_start_time_seconds seconds\n"), "{answer}");
        assert!(answer.contains("larder_build_info{"), "{answer}");
        assert!(answer.ends_with("# EOF\n"), "{answer}");
        let answer = get(address, "/metrics").await;
        assert!(answer.contains("text/plain; version=0.0.4") && !answer.contains("# EOF"), "{answer}");
    }

    #[test]
    fn a_time_is_served_in_seconds() {
        let samples =
            vec![Sample::of("stall_seconds_total", [("cause", "disk")], Value::Time(Duration::from_millis(250)))];
        let text = text(samples, Format::Text);
        assert!(text.ends_with("\nlarder_stall_seconds_total{cause=\"disk\"} 0.25\n"), "{text}");
    }

    #[test]
    fn only_metrics_of_the_table_are_served_with_their_meaning() {
        let samples = vec![Sample::new("fs_reads_total", 7), Sample::new("not_in_the_table", 1)];
        assert_eq!(
            text(samples, Format::Text),
            "# HELP larder_fs_reads_total READ requests (requests)\n# TYPE larder_fs_reads_total counter\n\
             larder_fs_reads_total 7\n"
        );
    }

    #[test]
    fn every_counter_is_served_under_the_name_in_the_table() {
        for metric in METRICS.iter().filter(|metric| metric.kind == Kind::Counter) {
            let text = text(vec![Sample::new(metric.name, 7)], Format::Text);
            let prefix = if metric.name.starts_with("process_") { "" } else { "larder_" };
            assert!(text.contains(&format!("\n{prefix}{} 7\n", metric.name)), "{text}");
        }
    }

    #[test]
    fn samples_with_labels_share_one_head_and_quote_what_others_wrote() {
        let of = |source, value| Sample::with("fs_reads_total", [("source", source)], value);
        assert_eq!(
            text(vec![of("a", 1), of("b\\c\"d\ne", 2)], Format::Text),
            "# HELP larder_fs_reads_total READ requests (requests)\n# TYPE larder_fs_reads_total counter\n\
             larder_fs_reads_total{source=\"a\"} 1\nlarder_fs_reads_total{source=\"b\\\\c\\\"d\\ne\"} 2\n"
        );
    }

    #[test]
    fn a_histogram_counts_values_up_to_the_end_of_each_range() {
        let of = |verb: &str, values| Sample {
            name: "scheduler_request_seconds",
            labels: vec![("verb", verb.to_owned())],
            value: Value::Histogram {
                buckets: vec![(0.001, values), (1.0, 0), (f64::INFINITY, 1)],
                sum: Duration::from_millis(250),
            },
        };
        let text = text(vec![of("filter", 3), of("preempt", 0)], Format::Text);
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
