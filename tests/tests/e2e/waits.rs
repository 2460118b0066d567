//! The view of an administrator: why readers waited, the passes of yesterday's mounts, metrics that name datasets to those
//! who hold the token, and the spans of a read.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use larder_daemon_api::v1;
use larder_e2e::{Keeper, Lab, Larderd, Mount, wait_until};
use larder_testkit::{Fault, seeded_bytes};
use opentelemetry_proto::tonic::collector::trace::v1::trace_service_server::{TraceService, TraceServiceServer};
use opentelemetry_proto::tonic::collector::trace::v1::{ExportTraceServiceRequest, ExportTraceServiceResponse};
use opentelemetry_proto::tonic::trace::v1::Span;
use tonic::{Request, Response, Status};

use crate::floods::free_port;
use crate::takeover::prepare;

const FILE_BYTES: u64 = 300_000;

/// The seconds for which readers of a mount waited for a cause.
fn waited(mount: &Mount, cause: &str) -> f64 {
    mount.stats()["stalls"]["by_cause"][cause].as_f64().unwrap_or_else(|| panic!("no cause {cause}"))
}

/// The files of this name below a folder.
fn found(folder: &Path, name: &str) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let below = entries.flat_map(|entry| match entry.file_type().is_ok_and(|kind| kind.is_dir()) {
        true => found(&entry.path(), name),
        false => vec![entry.path()],
    });
    below.filter(|path| path.ends_with(name)).collect()
}

// SEMANTICS: A6
#[test]
fn stalls_have_causes_and_passes_have_hits_and_outlive_the_mount() {
    let lab = Lab::new();
    let files = ["slow", "throttled", "failing"];
    files.iter().for_each(|name| lab.put(name, seeded_bytes(1, FILE_BYTES)));
    let mount = lab.mount("m", &lab.url(), &[]);
    let read_all = || {
        for name in files {
            assert!(mount.read_fresh(name).unwrap() == seeded_bytes(1, FILE_BYTES), "wrong bytes of {name}");
        }
    };
    let (throttled, failing) = (AtomicU32::new(0), AtomicU32::new(0));
    lab.proxy.set_hook(move |request| {
        let is_of = |name: &str| request.path.ends_with(&format!("/{name}"));
        if is_of("slow") {
            Fault::Delay(Duration::from_millis(500))
        } else if is_of("throttled") && throttled.fetch_add(1, Ordering::Relaxed) < 2 {
            Fault::Status { status: 503, code: "SlowDown" }
        } else if is_of("failing") && failing.fetch_add(1, Ordering::Relaxed) == 0 {
            Fault::Status { status: 500, code: "InternalError" }
        } else {
            Fault::None
        }
    });
    read_all();
    // A reader joins its fetch a moment after that has begun.
    assert!(waited(&mount, "origin") > 0.4, "{:#}", mount.stats()["stalls"]);
    // The first two pauses last 25 and 50 ms, at least.
    assert!(waited(&mount, "throttled") > 0.05, "{:#}", mount.stats()["stalls"]);
    assert!(waited(&mount, "origin_errors") > 0.02, "{:#}", mount.stats()["stalls"]);
    let stats = mount.stats();
    let retries = &stats["origin_retries"];
    assert_eq!((&retries["throttled"], &retries["error"]), (&2.into(), &1.into()));
    assert_eq!(stats["origin_answers"]["throttled"]["count"], 2);
    let (seconds, uptime) = (stats["stalls"]["seconds"].as_f64(), stats["process"]["uptime_seconds"].as_f64());
    assert!(seconds.unwrap() <= uptime.unwrap() + 1.0, "no moment is counted twice");
    assert_eq!((&stats["stalls"]["reads_waiting"], &stats["stalls"]["oldest_wait_seconds"]), (&0.into(), &0.0.into()));

    mount.settle();
    let complete = |mount: &Mount| {
        let stats = mount.stats();
        let passes = stats["passes"].as_array().unwrap().clone();
        passes.into_iter().filter(|pass| pass["complete"] == true).collect::<Vec<_>>()
    };
    mount.wait_until("the first pass is over", |mount| complete(mount).len() == 1);
    read_all();
    mount.wait_until("the second pass is over", |mount| complete(mount).len() == 2);
    let passes = complete(&mount);
    assert!(passes[0]["hit_ratio"].as_f64().unwrap() < 1.0, "{:#}", passes[0]);
    assert_eq!((&passes[1]["hit_ratio"], &passes[1]["promised_ratio"]), (&1.0.into(), &1.0.into()));
    mount.read_fresh("slow").unwrap();

    let dir = mount.dir().display().to_string();
    lab.larder_ok(&["umount", &dir]);
    let written = || {
        let text: String =
            found(lab.folder(), "history.jsonl").iter().map(|it| std::fs::read_to_string(it).unwrap()).collect();
        let lines = text.lines().filter(|line| !line.is_empty()).map(|line| serde_json::from_str(line).unwrap());
        lines.collect::<Vec<serde_json::Value>>()
    };
    wait_until("the passes are written down", || written().len() == 3);
    let records = written();
    let ended: Vec<_> =
        records.iter().map(|it| (it["pass"]["number"].as_u64(), it["pass"]["complete"] == true)).collect();
    assert_eq!(ended, [(Some(1), true), (Some(2), true), (Some(3), false)]);
    assert_eq!(records[1]["pass"], passes[1]);
}

/// The page of metrics for a scraper with these lines in the head of its request.
fn scrape(admin: SocketAddr, head: &str) -> String {
    let mut stream = TcpStream::connect(admin).unwrap();
    write!(stream, "GET /metrics HTTP/1.1\r\nhost: x\r\n{head}connection: close\r\n\r\n").unwrap();
    let mut page = String::new();
    stream.read_to_string(&mut page).unwrap();
    page
}

/// The sum of the series of a metric that have this label.
fn sum(page: &str, metric: &str, label: &str) -> u64 {
    let of_metric = page.lines().filter_map(|line| line.strip_prefix(&format!("larder_{metric}{{")));
    let series = of_metric.filter(|series| series.contains(label));
    series.map(|series| series.rsplit(' ').next().unwrap().parse::<u64>().unwrap()).sum()
}

// SEMANTICS: P9
#[test]
fn scrapers_learn_the_names_of_datasets_by_the_token_alone() {
    let lab = Lab::new();
    lab.put("file", seeded_bytes(1, FILE_BYTES));
    let admin = SocketAddr::from((Ipv4Addr::LOCALHOST, free_port()));
    let token = lab.folder().join("token");
    std::fs::write(&token, "s3cret\n").unwrap();
    let flags = [format!("--admin-address={admin}"), format!("--metrics-token={}", token.display())];
    let larderd = Larderd::start(&lab, "seen", &[&flags[0], &flags[1]]);
    let mut keeper = Keeper::new(larderd.run_dir());
    keeper.connect();
    let dataset = v1::Dataset { source: lab.url(), ..v1::Dataset::default() };
    let (prepared, dir) = (prepare(&lab, &larderd, &dataset), lab.folder().join("m"));
    keeper.mount(&prepared, dataset, &dir).unwrap();
    let mount = Mount::standing(dir);
    assert!(mount.read_fresh("file").unwrap() == seeded_bytes(1, FILE_BYTES));
    let name = mount.stats()["dataset"]["name"].as_str().unwrap().to_owned();
    wait_until("the metrics are served", || TcpStream::connect(admin).is_ok());

    let open = scrape(admin, "");
    assert_eq!(sum(&open, "read_bytes_total", ""), FILE_BYTES, "{open}");
    assert!(!open.contains("dataset=\"") && !open.contains(&format!("\"{name}\"")), "{open}");
    let names = scrape(admin, "authorization: Bearer s3cret\r\n");
    let label = format!("dataset=\"{name}\"");
    assert_eq!(sum(&names, "read_bytes_total", &label), FILE_BYTES, "{names}");
    assert_eq!(sum(&names, "dataset_bytes", &label), FILE_BYTES, "{names}");
    let wrong = scrape(admin, "authorization: Bearer secret\r\n");
    assert!(wrong.starts_with("HTTP/1.1 401") && !wrong.contains(&name), "{wrong}");
    let open_metrics = scrape(admin, "accept: application/openmetrics-text; version=1.0.0\r\n");
    assert!(open_metrics.ends_with("# EOF\n"), "{open_metrics}");
    // Every kind of metric that a node has is served.
    for metric in ["requests_total", "reads_total", "stall_seconds_total", "origin_retries_total", "build_info"] {
        assert!(open.contains(&format!("\nlarder_{metric}{{")), "{metric} is missing: {open}");
    }
}

/// A collector that keeps the spans that it gets.
#[derive(Clone, Default)]
struct Collector(Arc<Mutex<Vec<Span>>>);

#[tonic::async_trait]
impl TraceService for Collector {
    async fn export(
        &self,
        request: Request<ExportTraceServiceRequest>,
    ) -> Result<Response<ExportTraceServiceResponse>, Status> {
        let resources = request.into_inner().resource_spans.into_iter();
        let spans = resources.flat_map(|resource| resource.scope_spans).flat_map(|scope| scope.spans);
        self.0.lock().unwrap().extend(spans);
        Ok(Response::new(ExportTraceServiceResponse::default()))
    }
}

impl Collector {
    /// A GET of a reader, the fetch that it is of, and the read that waited for it.
    fn read(&self) -> Option<[Span; 3]> {
        let spans = self.0.lock().unwrap();
        let parent = |of: &Span, name: &str| {
            let is_parent =
                |it: &&Span| it.name == name && it.span_id == of.parent_span_id && it.trace_id == of.trace_id;
            spans.iter().find(is_parent).cloned()
        };
        spans.iter().filter(|span| span.name == "get").find_map(|get| {
            let fetch = parent(get, "fetch")?;
            let read = parent(&fetch, "read")?;
            Some([get.clone(), fetch, read])
        })
    }
}

/// A larderd that sends all spans to this address, and its keeper with a mount of the lab's dataset.
fn traced(lab: &Lab, address: SocketAddr) -> (Larderd, Keeper, Mount) {
    let mut larderd = Larderd::start(lab, "traced", &[]);
    larderd.kill();
    larderd.set_variable("OTEL_EXPORTER_OTLP_ENDPOINT", &format!("http://{address}"));
    larderd.set_variable("OTEL_TRACES_SAMPLER_ARG", "1");
    larderd.set_variable("OTEL_BSP_SCHEDULE_DELAY", "100");
    larderd.set_variable("OTEL_BSP_MAX_QUEUE_SIZE", "64");
    larderd.restart();
    let mut keeper = Keeper::new(larderd.run_dir());
    keeper.connect();
    let dataset = v1::Dataset { source: lab.url(), ..v1::Dataset::default() };
    let (prepared, dir) = (prepare(lab, &larderd, &dataset), lab.folder().join("m"));
    keeper.mount(&prepared, dataset, &dir).unwrap();
    (larderd, keeper, Mount::standing(dir))
}

// SEMANTICS: P10
#[test]
fn a_collector_that_hangs_holds_up_no_read_and_no_stop() {
    let lab = Lab::new();
    let names: Vec<String> = (0..40).map(|number| format!("file-{number}")).collect();
    names.iter().for_each(|name| lab.put(name, seeded_bytes(1, FILE_BYTES)));
    // The kernel takes connections for it, and it takes none.
    let hung = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let (mut larderd, mut keeper, mount) = traced(&lab, hung.local_addr().unwrap());
    for name in &names {
        assert!(mount.read_fresh(name).unwrap() == seeded_bytes(1, FILE_BYTES), "wrong bytes of {name}");
    }
    larderd.terminate();
    larderd.restart();
    keeper.connect();
    assert!(mount.read_fresh(&names[0]).unwrap() == seeded_bytes(1, FILE_BYTES));
}

// SEMANTICS: P10
#[test]
fn a_read_that_waits_has_spans_and_none_waits_for_the_collector() {
    let lab = Lab::new();
    ["before", "after"].iter().for_each(|name| lab.put(name, seeded_bytes(1, FILE_BYTES)));
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, free_port()));
    // Nobody collects yet.
    let (_larderd, _keeper, mount) = traced(&lab, address);
    assert!(mount.read_fresh("before").unwrap() == seeded_bytes(1, FILE_BYTES));

    let collector = Collector::default();
    let service = TraceServiceServer::new(collector.clone());
    lab.runtime().spawn(tonic::transport::Server::builder().add_service(service).serve(address));
    wait_until("the collector listens", || TcpStream::connect(address).is_ok());
    assert!(mount.read_fresh("after").unwrap() == seeded_bytes(1, FILE_BYTES));
    wait_until("the read has its spans", || collector.read().is_some());
    let [get, _, read] = collector.read().unwrap();
    let dataset = mount.stats()["dataset"].clone();
    for (span, key, value) in [(&read, "dataset", &dataset["name"]), (&read, "snapshot", &dataset["snapshot"])] {
        let attribute = span.attributes.iter().find(|it| it.key == key).unwrap_or_else(|| panic!("no {key}: {span:?}"));
        assert!(format!("{attribute:?}").contains(value.as_str().unwrap()), "{attribute:?}");
    }
    assert!(get.attributes.iter().any(|it| it.key == "block"), "{get:?}");
}
