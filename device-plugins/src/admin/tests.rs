use std::collections::BTreeSet;
use std::path::Path;
use std::time::SystemTime;

use larder_telemetry::{Labels, METRICS, Value};

use super::*;
use crate::health::Fault;
use crate::node::samples;
use crate::nri::{Held, Key};

fn status(view: View) -> Status {
    let (_, view) = watch::channel(Arc::new(view));
    let pods = Arc::new(Pods::new(Path::new("/no/kubelet")));
    let usage = Usage { containers: watch::channel(Arc::default()).1, cgroup_root: "/no/cgroup".into() };
    Status { node: "n1".into(), view, pods, counters: Arc::default(), usage, heartbeat: Heartbeat::default() }
}

/// What a pod has of `mlx5_0` is 7 handles.
fn with_usage(root: &Path) -> Usage {
    std::fs::create_dir_all(root.join("rdma/pods/c1")).unwrap();
    std::fs::write(root.join("rdma/cgroup.procs"), "").unwrap();
    std::fs::write(root.join("rdma/pods/c1/rdma.current"), "mlx5_0 hca_handle=7\n").unwrap();
    let held = Held {
        id: "c1".into(),
        namespace: "a".into(),
        pod: "b".into(),
        cgroups_path: "/pods/c1".into(),
        hcas: vec!["mlx5_0".into()],
    };
    let key = Key { pod_uid: "u".into(), container: "c".into() };
    let containers = watch::channel(Arc::new([(key, held)].into())).1;
    Usage { containers, cgroup_root: root.to_owned() }
}

#[tokio::test]
async fn served_metrics_are_those_of_the_table() {
    let root = tempfile::tempdir().unwrap();
    let status = Status { usage: with_usage(root.path()), ..status(samples::view()) };
    let samples = [status.samples(), status.read().await].concat();
    let served: BTreeSet<&str> = samples.iter().map(|sample| sample.name).collect();
    let names = METRICS.iter().map(|metric| metric.name).filter(|name| name.starts_with("devices_"));
    assert_eq!(served, names.collect());
}

#[tokio::test]
async fn a_refused_configuration_counts_until_one_is_accepted() {
    let refused = |view: View| {
        let samples = status(view).samples();
        samples.iter().find(|sample| sample.name == "devices_config_refused").map(|sample| sample.value.clone())
    };
    let view = View { refused_config: Some("config.yaml, line 3: x".into()), ..samples::view() };
    assert_eq!((refused(view), refused(samples::view())), (Some(Value::Number(1)), Some(Value::Number(0))));
}

#[tokio::test]
async fn devices_are_counted_by_what_takes_them_out_of_service_and_back_to_nothing() {
    let fault = Fault {
        reason: Reason::PortDown,
        message: String::new(),
        since: SystemTime::UNIX_EPOCH,
        recovery: String::new(),
    };
    let down = View { faults: Arc::new([(samples::hca(0), fault)].into()), ..samples::view() };
    let count = |view: View, labels: &[(&'static str, &str)]| {
        let labels: Labels = labels.iter().map(|(label, value)| (*label, (*value).to_owned())).collect();
        let found = status(view).samples().into_iter().find(|it| it.labels == labels);
        found.map(|it| it.value)
    };
    let number = |value| Some(Value::Number(value));
    let of_ports = [("kind", "hca"), ("reason", "PortDown")];
    assert_eq!(count(down.clone(), &of_ports), number(1));
    assert_eq!(count(samples::view(), &of_ports), number(0));
    assert_eq!(count(down, &[("kind", "gpu"), ("reason", "PortDown")]), number(0));
    assert_eq!(count(samples::view(), &[("kind", "gpu")]), number(2));
}

// SEMANTICS: D24
#[tokio::test]
async fn pods_show_what_they_have_of_an_hca() {
    let root = tempfile::tempdir().unwrap();
    let read = Status { usage: with_usage(root.path()), ..status(samples::view()) }.read().await;
    let labels = [("namespace", "a"), ("pod", "b"), ("hca", "mlx5_0"), ("object", "hca_handle")];
    assert_eq!(read, [Sample::with("devices_rdma_current", labels, 7)]);
}

// SEMANTICS: D24
#[tokio::test]
async fn a_report_is_for_the_loopback_alone() {
    let status = Arc::new(status(samples::view()));
    for (from, code) in [("127.0.0.1:9", 200), ("[::1]:9", 200), ("[::ffff:127.0.0.1]:9", 200), ("10.0.0.1:9", 403)] {
        let answer = devices(State(Arc::clone(&status)), ConnectInfo(from.parse().unwrap())).await;
        assert_eq!(answer.status(), code, "{from}");
    }
    let answer = devices(State(status), ConnectInfo("127.0.0.1:9".parse().unwrap())).await;
    let body = axum::body::to_bytes(answer.into_body(), 1 << 20).await.unwrap();
    let report: serde_json::Value = serde_json::from_slice(&body).unwrap();
    assert_eq!((&report["node"], report["devices"].as_array().unwrap().len()), (&serde_json::json!("n1"), 4));
    assert!(report["podsTrouble"].as_str().unwrap().contains("/no/kubelet/pod-resources"), "{report}");
}

#[tokio::test]
async fn the_server_serves_the_report_beside_the_metrics() {
    let address = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let server = tokio::spawn(serve(address, Arc::new(status(samples::view())), std::future::pending()));
    let ask = async |path: &str| {
        use tokio::io::{AsyncReadExt, AsyncWriteExt};
        let mut stream = loop {
            match tokio::net::TcpStream::connect(address).await {
                Ok(stream) => break stream,
                Err(_) => tokio::task::yield_now().await,
            }
        };
        let request = format!("GET {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        answer
    };
    assert!(ask("/devices").await.contains("\"id\":\"GPU-0\""));
    assert!(ask("/metrics").await.contains("larder_devices_known{kind=\"gpu\"} 2"));
    assert!(ask("/readyz").await.starts_with("HTTP/1.1 200"));
    server.abort();
}
