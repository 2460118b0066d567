//! A real Prometheus scrapes a real larderd: each alert is silent, fires once its fault is there, and stops after it.
//! Then the queries of the board have answers.
//!
//! Windows, the times for which a fault must last, and the longest wait of a read are shortened, since nobody waits for
//! minutes here. The conditions are those of `deploy/components/monitoring`.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use larder_e2e::{Lab, Larderd, Mount};
use larder_testkit::{Fault, RequestHead, seeded_bytes};
use serde_json::{Value, json};

use crate::floods::free_port;
use crate::monitoring::{alerts, queries};

/// Long enough for everything that ends at all, on the slowest machine.
const NOT_HANGING: Duration = Duration::from_secs(120);
const TOKEN: &str = "correct-horse-battery-staple";
const FILES: u64 = 8;

/// An alert that fires at once: with windows of ten seconds.
fn hastened(alert: &Value) -> Value {
    let mut alert = alert.clone();
    let expression = alert["expr"].as_str().unwrap();
    let expression = ["[5m]", "[10m]", "[15m]", "[1h]"]
        .iter()
        .fold(expression.to_owned(), |expression, window| expression.replace(window, "[10s]"));
    alert["expr"] =
        expression.replace("larder_read_oldest_wait_seconds) > 30", "larder_read_oldest_wait_seconds) > 3").into();
    alert["for"] = "1s".into();
    alert
}

/// A running Prometheus.
struct Prometheus {
    child: Child,
    url: String,
}

impl Prometheus {
    /// `None` if it is not installed, which only CI must have.
    fn start(folder: &Path, target: &str) -> Option<Self> {
        let path = |name: &str| folder.join(name).to_str().unwrap().to_owned();
        let rules: Vec<Value> = alerts().iter().map(hastened).collect();
        std::fs::write(path("rules.yaml"), json!({"groups": [{"name": "larder", "rules": rules}]}).to_string())
            .unwrap();
        std::fs::write(path("token"), TOKEN).unwrap();
        let config = json!({
            "global": {"scrape_interval": "1s", "scrape_timeout": "1s", "evaluation_interval": "1s"},
            "rule_files": [path("rules.yaml")],
            "scrape_configs": [{
                "job_name": "larder",
                "authorization": {"credentials_file": path("token")},
                "static_configs": [{"targets": [target], "labels": {"namespace": "larder-system", "pod": "larderd-1"}}],
            }],
        });
        std::fs::write(path("prometheus.yaml"), config.to_string()).unwrap();
        let address = format!("127.0.0.1:{}", free_port());
        let child = Command::new("prometheus")
            .arg(format!("--config.file={}", path("prometheus.yaml")))
            .arg(format!("--storage.tsdb.path={}", path("tsdb")))
            .arg(format!("--web.listen-address={address}"))
            .args(["--log.level=error", "--query.lookback-delta=5s"])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn();
        match child {
            Ok(child) => Some(Self { child, url: format!("http://{address}") }),
            Err(error) => {
                assert!(std::env::var_os("CI").is_none(), "prometheus does not run: {error}");
                eprintln!("skipped: prometheus is not installed (apt-get install prometheus)");
                None
            }
        }
    }

    /// The answer of its API; null while it starts.
    fn get(&self, path: &str, query: &[String]) -> Value {
        let mut curl = Command::new("curl");
        curl.args(["-sG", &format!("{}{path}", self.url)]);
        for part in query {
            curl.args(["--data-urlencode", part]);
        }
        serde_json::from_slice(&curl.output().unwrap().stdout).unwrap_or_default()
    }

    fn firing(&self) -> BTreeSet<String> {
        let answer = self.get("/api/v1/alerts", &[]);
        let alerts = answer["data"]["alerts"].as_array().cloned().unwrap_or_default();
        let firing = alerts.iter().filter(|alert| alert["state"] == "firing");
        firing.map(|alert| alert["labels"]["alertname"].as_str().unwrap().to_owned()).collect()
    }

    fn wait_until(&self, what: &str, done: impl Fn(&BTreeSet<String>) -> bool) {
        let started = Instant::now();
        loop {
            let firing = self.firing();
            if done(&firing) {
                return;
            }
            assert!(started.elapsed() < NOT_HANGING, "waited in vain until {what}; {firing:?} fire");
            std::thread::sleep(Duration::from_millis(200));
        }
    }

    /// How many series a query has; 0 also if it is not valid, or while Prometheus starts.
    fn series(&self, query: &str) -> usize {
        let answer = self.get("/api/v1/query", &[format!("query={query}")]);
        answer["data"]["result"].as_array().map_or(0, Vec::len)
    }
}

impl Drop for Prometheus {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Sets its flag when it is dropped, also by a panic.
struct Stop<'a>(&'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// A larderd that shows the names of datasets to this Prometheus, and its admin address.
fn start_larderd(lab: &Lab, more_flags: &[&str]) -> (Larderd, String) {
    let (admin, token) = (format!("127.0.0.1:{}", free_port()), lab.folder().join("names-token"));
    std::fs::write(&token, TOKEN).unwrap();
    let flags = [format!("--admin-address={admin}"), format!("--metrics-token={}", token.display())];
    let larderd = Larderd::start(lab, "one", &[&flags.each_ref().map(String::as_str)[..], more_flags].concat());
    larderd.wait_until_it_answers();
    (larderd, admin)
}

/// Every second request for an object.
fn every_second(head: &RequestHead) -> bool {
    head.is_get_object() && head.seq.is_multiple_of(2)
}

#[test]
fn each_alert_about_data_fires_with_its_fault_and_stops_after_it() {
    let lab = Lab::new();
    for n in 0..FILES {
        lab.put(&format!("{n}"), seeded_bytes(n, 10_000));
    }
    let (mut larderd, admin) = start_larderd(&lab, &[]);
    let folder = tempfile::tempdir().unwrap();
    let Some(prometheus) = Prometheus::start(folder.path(), &admin) else { return };
    let dir = lab.folder().join("mnt");
    std::fs::create_dir(&dir).unwrap();
    let run_dir = larderd.run_dir().to_str().unwrap().to_owned();
    let url = lab.url();
    let mount = || {
        let flags = ["--cache-size", "0", "--read-deadline", "60s"];
        let args = [&["mount", &url, dir.to_str().unwrap(), "--cache-dir", &run_dir][..], &flags].concat();
        lab.larder_ok(&args);
        Mount::standing(dir.clone())
    };
    let mut mounted = mount();
    // Of the controller there is nothing, so the alert about its leader is not among those that matter.
    let ours = |firing: &BTreeSet<String>| firing.iter().any(|alert| alert != "LarderNoLeader");
    prometheus.wait_until("it scrapes", |_| prometheus.series("larder_build_info") > 0);

    type FaultOf = fn(&RequestHead) -> Fault;
    let faults: [(&str, FaultOf); 5] = [
        ("LarderOriginSlow", |head| match head.is_get_object() {
            true => Fault::Delay(Duration::from_millis(1_500)),
            false => Fault::None,
        }),
        ("LarderOriginThrottles", |head| match every_second(head) {
            true => Fault::Status { status: 503, code: "SlowDown" },
            false => Fault::None,
        }),
        ("LarderOriginFails", |head| if every_second(head) { Fault::Reset } else { Fault::None }),
        ("LarderReadsStalled", |head| if head.is_get_object() { Fault::StallBeforeHead } else { Fault::None }),
        ("LarderReadErrors", |head| match head.is_get_object() {
            true => Fault::Status { status: 403, code: "AccessDenied" },
            false => Fault::None,
        }),
    ];
    for (alert, fault) in faults {
        prometheus.wait_until("nothing fires", |firing| !ours(firing));
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            for reader in 0..4 {
                let (mounted, stop) = (&mounted, &stop);
                scope.spawn(move || {
                    while !stop.load(Ordering::Relaxed) {
                        let file = format!("{}", reader * 2 % FILES);
                        // A read that is stalled for a minute may fail.
                        let _ = mounted.read_fresh(file);
                    }
                });
            }
            let _stop = Stop(&stop);
            lab.proxy.set_hook(fault);
            prometheus.wait_until(&format!("{alert} fires"), |firing| firing.contains(alert));
            lab.proxy.set_hook(|_| Fault::None);
            prometheus.wait_until(&format!("{alert} stops"), |firing| !firing.contains(alert));
        });
    }

    // None that the readers have read just now, which the window may still have.
    lab.put("7", seeded_bytes(99, 10_000));
    assert!(mounted.read_fresh("7").is_err());
    let stale = "LarderStaleObjects";
    prometheus.wait_until("stale objects are noticed", |firing| firing.contains(stale));
    prometheus.wait_until("they are read no more", |firing| !firing.contains(stale));

    // All that a larderd without peers serves is on the board.
    mounted.read_fresh("1").unwrap();
    let others = ["larder_controller_", "larder_csi_", "larder_devices_", "peer_", "larder_pass_"];
    for query in queries().iter().filter(|query| !others.iter().any(|other| query.contains(other))) {
        let query = query.replace("$__rate_interval", "1h").replace("$pod", ".*");
        assert!(prometheus.series(&query) > 0, "{query} has no answer");
    }

    larderd.kill();
    drop(mounted);
    prometheus.wait_until("its end is noticed", |firing| firing.contains("LarderDown"));
    larderd.restart();
    larderd.wait_until_it_answers();
    mounted = mount();
    prometheus.wait_until("it is back", |firing| !firing.contains("LarderDown"));
    drop(mounted);
}

#[test]
fn a_dataset_with_too_little_room_and_hits_below_the_promise_are_noticed() {
    const MANY: u64 = 40;
    let lab = Lab::new();
    for n in 0..MANY {
        lab.put(&format!("{n}"), seeded_bytes(n, 100_000));
    }
    // Room for half of them.
    let (larderd, admin) = start_larderd(&lab, &["--cache-size", "2000000"]);
    let folder = tempfile::tempdir().unwrap();
    let Some(prometheus) = Prometheus::start(folder.path(), &admin) else { return };
    let dir = lab.folder().join("mnt");
    std::fs::create_dir(&dir).unwrap();
    let run_dir = larderd.run_dir().to_str().unwrap();
    lab.larder_ok(&["mount", &lab.url(), dir.to_str().unwrap(), "--cache-dir", run_dir, "--policy", "lru"]);
    let mounted = Mount::standing(dir);
    let [starved, below] = ["LarderCacheStarved", "LarderHitsBelowPromise"];
    prometheus.wait_until("it wants more room", |firing| firing.contains(starved));
    let (stop, files) = (AtomicBool::new(false), AtomicU64::new(MANY));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                for n in 0..files.load(Ordering::Relaxed) {
                    mounted.read_fresh(format!("{n}")).unwrap();
                }
            }
        });
        let _stop = Stop(&stop);
        // In this order, the policy always replaces what is read next.
        prometheus.wait_until("the policy hits nothing", |firing| firing.contains(below));
        files.store(5, Ordering::Relaxed);
        prometheus.wait_until("it hits all", |firing| !firing.contains(below));
    });
    drop(mounted);
    prometheus.wait_until("nothing is mounted", |firing| !firing.contains(starved));
}
