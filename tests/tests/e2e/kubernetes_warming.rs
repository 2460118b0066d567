//! How fast the pods of the controller warm a node, beside `larder warm` on it.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use larder_e2e::platform::{Platform, TIMEOUT};
use larder_testkit::larder_binary;
use serde_json::json;

const FILES: usize = 6_000;
const FILE_BYTES: usize = 100_000;
const ROUNDS: usize = 5;

/// GETs of manifests, which a mount makes before its pod's containers are started. There are fewer.
const OTHER_GETS: u64 = 20;

/// The time in which `run` fetches the files: starting pods is left out.
fn fetching(platform: &Platform, run: impl FnOnce()) -> Duration {
    let ended = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let watching = scope.spawn(|| {
            let gets = || platform.server.counters().gets;
            let before = gets();
            let (mut seen, mut first, mut last) = (before, None, Instant::now());
            while !ended.load(Ordering::Relaxed) {
                let now = gets();
                if now != seen {
                    (seen, last) = (now, Instant::now());
                    first = first.or_else(|| (now > before + OTHER_GETS).then_some(last));
                }
                std::thread::sleep(Duration::from_millis(2));
            }
            last - first.expect("nothing was fetched")
        });
        run();
        ended.store(true, Ordering::Relaxed);
        watching.join().unwrap()
    })
}

/// Where the node has the dataset mounted that its pods do not have yet.
fn new_mount(platform: &Platform, before: &[String]) -> String {
    let mut found = None;
    platform.cluster.wait_for("the dataset is mounted", TIMEOUT, || {
        found = platform.mounts(1).into_iter().find(|line| !before.contains(line));
        found.is_some()
    });
    found.unwrap().split(' ').nth(4).unwrap().to_owned()
}

#[test]
#[ignore = "a measurement of minutes, which prints its figures"]
fn pods_of_the_controller_warm_a_node_as_fast_as_larder_warm_does() {
    let platform = Platform::start_datasets("warming");
    platform.cluster.apply(&platform.secret(platform.namespace()));
    let object = |name: &str, count: u32| {
        let spec = json!({
            "origin": {"source": platform.source(name), "endpoint": platform.endpoint(), "secretRef": {"name": "origin"}},
            "nodes": {"count": count, "selector": {"kubernetes.io/hostname": "n1"}},
        });
        let metadata = json!({"name": name, "namespace": platform.namespace()});
        json!({"apiVersion": "larder.dev/v1alpha1", "kind": "Dataset", "metadata": metadata, "spec": spec}).to_string()
    };
    let ready = |name: &str| {
        platform.cluster.wait_for(&format!("{name} is ready"), TIMEOUT, || {
            let column = "jsonpath={.status.conditions[?(@.type=='Ready')].status}";
            platform.kubectl(&["get", "dset", name, "-o", column]) == "True"
        });
    };
    let put = |name: &str, seed: usize| {
        platform.put_dataset(name, FILES, |i| vec![(i * 31 + seed) as u8; FILE_BYTES]);
    };
    let rate = |took: Duration| (FILES * FILE_BYTES) as f64 / 1e6 / took.as_secs_f64();
    let mut ratios = Vec::new();
    for round in 0..ROUNDS {
        let (by_pod, by_hand) = (format!("pod{round}"), format!("hand{round}"));
        put(&by_pod, 2 * round);
        put(&by_hand, 2 * round + 1);
        let pod = fetching(&platform, || {
            platform.cluster.apply(&object(&by_pod, 1));
            ready(&by_pod);
        });

        platform.cluster.apply(&object(&by_hand, 0));
        ready(&by_hand);
        let before = platform.mounts(1);
        platform.cluster.apply(&platform.pod(&by_hand, 1, &[&by_hand], "sleep 3600"));
        let mount = new_mount(&platform, &before);
        let larder = larder_binary();
        let hand = fetching(&platform, || {
            let warmed = platform.cluster.exec_on_node(1, &[larder.to_str().unwrap(), "warm", &mount, "--wait"]);
            assert!(
                warmed.status.success(),
                "{}: {}",
                Path::new(&mount).display(),
                String::from_utf8_lossy(&warmed.stderr)
            );
        });
        platform.delete_readers();
        platform.kubectl(&["delete", "dset", &by_pod, &by_hand]);
        println!("by pod {:.0} MB/s, larder warm {:.0} MB/s", rate(pod), rate(hand));
        ratios.push(hand.as_secs_f64() / pod.as_secs_f64());
    }
    ratios.sort_by(f64::total_cmp);
    println!("by pod: {:.2} of larder warm ({:.2}..{:.2})", ratios[ROUNDS / 2], ratios[0], ratios[ROUNDS - 1]);
}
