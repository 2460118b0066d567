//! The component `monitoring` for Prometheus and Grafana: alerts that fire with their fault and stop after it, and a
//! board, over metrics that exist. Prometheus' own checks accept the metrics of all programs.

use std::collections::BTreeSet;
use std::fs::File;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use larder_csi_api::csi::node_client::NodeClient;
use larder_e2e::{Lab, Larderd, Plugin, wait_until};
use larder_telemetry::{Kind, METRICS};
use larder_testkit::machine::{FakeMachine, MachinePlan};
use larder_testkit::{kustomize, repository};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::csi::{bytes, publish};
use crate::floods::{Program, free_port, get, get_with, start_others};

fn folder() -> PathBuf {
    repository().join("deploy/components/monitoring")
}

/// The groups of rules, as Prometheus itself reads them.
fn groups() -> Value {
    let text = std::fs::read_to_string(folder().join("base/rules.yaml")).unwrap();
    serde_yaml_ng::from_str::<Value>(&text).unwrap()["spec"].clone()
}

pub(crate) fn alerts() -> Vec<Value> {
    let groups = groups();
    let groups = groups["groups"].as_array().unwrap();
    groups.iter().flat_map(|group| group["rules"].as_array().unwrap().clone()).collect()
}

fn board() -> Value {
    let text = std::fs::read_to_string(folder().join("base/dashboard.json")).unwrap();
    serde_json::from_str(&text).unwrap()
}

/// The queries of the board.
pub(crate) fn queries() -> Vec<String> {
    let board = board();
    let panels = board["panels"].as_array().unwrap().iter();
    let targets = panels.flat_map(|panel| panel["targets"].as_array().cloned().unwrap_or_default());
    targets.map(|target| target["expr"].as_str().unwrap().to_owned()).collect()
}

/// The metrics that an expression names.
fn named(expression: &str) -> BTreeSet<&str> {
    let is_part = |c: char| c.is_ascii_alphanumeric() || c == '_';
    expression
        .split(|c| !is_part(c))
        .filter(|word| word.starts_with("larder_") || word.starts_with("process_"))
        .collect()
}

/// The names at `/metrics`.
fn served() -> BTreeSet<String> {
    let names = METRICS.iter().flat_map(|metric| {
        let name = match metric.name.starts_with("process_") {
            true => metric.name.to_owned(),
            false => format!("larder_{}", metric.name),
        };
        let parts: &[&str] = if metric.kind == Kind::Histogram { &["_bucket", "_sum", "_count"] } else { &[""] };
        parts.iter().map(move |part| format!("{name}{part}"))
    });
    names.collect()
}

#[test]
fn alerts_and_the_board_use_metrics_that_are_served_and_say_what_to_do() {
    let (served, mut used) = (served(), 0);
    let alerts = alerts();
    let expressions = alerts.iter().map(|alert| alert["expr"].as_str().unwrap().to_owned()).chain(queries());
    for expression in expressions {
        for name in named(&expression) {
            assert!(served.contains(name), "{name} in {expression}");
            used += 1;
        }
    }
    assert!(used > 40, "{used}");
    for alert in &alerts {
        let text = |path: &str| alert.pointer(path).and_then(Value::as_str).unwrap_or_default();
        assert!(["info", "warning", "critical"].contains(&text("/labels/severity")), "{alert:#}");
        assert!(text("/annotations/summary").ends_with('.') && text("/annotations/action").ends_with('.'), "{alert:#}");
    }
}

#[test]
fn the_board_is_what_its_script_prints() {
    let printed = Command::new(folder().join("board")).output().expect("python3 runs");
    assert!(printed.status.success(), "{}", String::from_utf8_lossy(&printed.stderr));
    let file = folder().join("base/dashboard.json");
    if std::env::var_os("LARDER_WRITE_GOLDEN").is_some() {
        std::fs::write(&file, &printed.stdout).unwrap();
    }
    assert!(std::fs::read(file).unwrap() == printed.stdout, "run this test with LARDER_WRITE_GOLDEN=1");
    let ids: Vec<u64> =
        board()["panels"].as_array().unwrap().iter().map(|panel| panel["id"].as_u64().unwrap()).collect();
    assert_eq!(ids.iter().collect::<BTreeSet<_>>().len(), ids.len(), "two panels have the same id");
}

/// `promtool` with these arguments. `None` if it is not installed, which only CI must have.
fn promtool(arguments: &[&str]) -> Option<Output> {
    promtool_on(Stdio::null(), arguments)
}

/// The same, with this standard input.
fn promtool_on(input: Stdio, arguments: &[&str]) -> Option<Output> {
    match Command::new("promtool").args(arguments).stdin(input).output() {
        Ok(output) => Some(output),
        Err(error) => {
            assert!(std::env::var_os("CI").is_none(), "promtool does not run: {error}");
            eprintln!("skipped: promtool is not installed (apt-get install prometheus)");
            None
        }
    }
}

fn assert_passes(what: &str, output: &Output) {
    let said = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert!(output.status.success(), "{what}: {}{}", said(&output.stdout), said(&output.stderr));
}

#[test]
fn each_alert_is_silent_before_its_fault_fires_and_is_silent_after_it() {
    let temporary = tempfile::tempdir().unwrap();
    let path = |name: &str| temporary.path().join(name).to_str().unwrap().to_owned();
    let (rules, tests) = (path("rules.yaml"), path("tests.yaml"));
    std::fs::write(&rules, groups().to_string()).unwrap();
    let made = Command::new(folder().join("test-rules")).args([&rules, &rules]).output().expect("python3 runs");
    assert_passes("each alert has a fault", &made);
    std::fs::write(&tests, made.stdout).unwrap();
    let Some(checked) = promtool(&["check", "rules", &rules]) else { return };
    assert_passes("the rules are valid", &checked);
    assert_passes("the alerts follow their faults", &promtool(&["test", "rules", &tests]).unwrap());
}

#[test]
fn the_queries_of_the_board_are_valid() {
    let temporary = tempfile::NamedTempFile::with_suffix(".yaml").unwrap();
    // Recording rules stand for queries, with the board's variables replaced.
    let plain = |query: &String| query.replace("$__rate_interval", "5m").replace("$pod", ".*");
    let rules: Vec<Value> = queries()
        .iter()
        .zip(0..)
        .map(|(query, n)| json!({"record": format!("board:{n}"), "expr": plain(query)}))
        .collect();
    let groups = json!({"groups": [{"name": "board", "rules": rules}]});
    std::fs::write(temporary.path(), groups.to_string()).unwrap();
    if let Some(checked) = promtool(&["check", "rules", temporary.path().to_str().unwrap()]) {
        assert_passes("the queries are valid", &checked);
    }
}

/// The objects of an overlay with the component and these others.
fn rendered(components: &[&str]) -> Vec<Value> {
    let root = tempfile::tempdir().unwrap();
    let copied = Command::new("cp").arg("-r").arg(repository().join("deploy")).arg(root.path()).status();
    assert!(copied.unwrap().success(), "copy deploy");
    let ours = root.path().join("ours");
    std::fs::create_dir(&ours).unwrap();
    overlay(&ours, components);
    let output = kustomize(&ours);
    assert_passes("kustomize", &output);
    serde_yaml_ng::Deserializer::from_slice(&output.stdout).map(|object| Value::deserialize(object).unwrap()).collect()
}

fn overlay(ours: &Path, components: &[&str]) {
    let components: Vec<String> = components.iter().map(|name| format!("../deploy/components/{name}")).collect();
    let overlay = json!({
        "apiVersion": "kustomize.config.k8s.io/v1beta1", "kind": "Kustomization",
        "resources": ["../deploy"], "components": components,
    });
    std::fs::write(ours.join("kustomization.yaml"), overlay.to_string()).unwrap();
}

// SEMANTICS: P9
#[test]
fn the_component_gives_the_token_to_the_programs_whose_pods_are_scraped_with_it() {
    for components in [&["monitoring"][..], &["datasets", "jobs", "scheduler", "sharing", "devices", "monitoring"]] {
        let objects = rendered(components);
        let kind = |kind: &'static str| objects.iter().filter(move |object| object["kind"] == kind);
        let monitors: Vec<_> = kind("PodMonitor").collect();
        let with_token = monitors.iter().find(|it| it["metadata"]["name"] == "larder-names").unwrap();
        let authorization = &with_token["spec"]["podMetricsEndpoints"][0]["authorization"]["credentials"];
        assert_eq!(authorization, &json!({"name": "larder-metrics", "key": "token"}));
        let scraped = |monitor: &Value| monitor["spec"]["selector"]["matchExpressions"][0]["values"].clone();
        assert_eq!(scraped(with_token), json!(["larderd", "larder-controller"]));
        let all: BTreeSet<String> = monitors
            .iter()
            .flat_map(|monitor| scraped(monitor).as_array().unwrap().clone())
            .map(|name| name.as_str().unwrap().to_owned())
            .collect();
        for workload in kind("DaemonSet").chain(kind("Deployment")) {
            let pod = &workload["spec"]["template"];
            let label = pod["metadata"]["labels"]["app.kubernetes.io/name"].as_str().unwrap();
            assert!(all.contains(label), "{label} is not scraped");
            let has_token = pod.to_string().contains("--metrics-token=/etc/larder/metrics/token");
            assert_eq!(has_token, ["larderd", "larder-controller"].contains(&label), "{label}");
            assert_eq!(pod["spec"]["volumes"].to_string().contains("larder-metrics"), has_token, "{label}");
            // The file is for the group alone that the volume has.
            let group = &pod["spec"]["securityContext"]["fsGroup"];
            assert!(
                !has_token || (group.is_u64() && *group == pod["spec"]["securityContext"]["runAsGroup"]),
                "{label}"
            );
        }
        assert!(kind("ConfigMap").any(|it| it["metadata"]["labels"]["grafana_dashboard"] == "1"));
    }
}

/// Checks a program's metrics in both formats. `None` if `promtool` is not installed.
fn check_metrics(folder: &Path, program: &str, text: &str, open_metrics: &str) -> Option<()> {
    let path = |name: &str| folder.join(name).to_str().unwrap().to_owned();
    let file = path("metrics.txt");
    std::fs::write(&file, text).unwrap();
    let checked = promtool_on(File::open(&file).unwrap().into(), &["check", "metrics"])?;
    let said = [checked.stdout, checked.stderr].concat();
    let said = String::from_utf8(said).unwrap();
    assert!(said.is_empty(), "{program}: {said}");

    // Prometheus imports samples at a time only.
    let stamped: String = open_metrics
        .lines()
        .map(|line| if line.starts_with('#') { format!("{line}\n") } else { format!("{line} 1700000000\n") })
        .collect();
    std::fs::write(&file, stamped).unwrap();
    let imported = promtool(&["tsdb", "create-blocks-from", "openmetrics", &file, &path(program)])?;
    assert_passes(program, &imported);
    Some(())
}

#[test]
fn the_metrics_of_all_programs_pass_the_checks_of_prometheus() {
    const TOKEN: &str = "correct-horse-battery-staple";
    let lab = Lab::new();
    lab.put("f0", bytes(0));
    let token = lab.folder().join("names-token");
    std::fs::write(&token, TOKEN).unwrap();
    let ports @ [of_larderd, of_cachenode, of_csi, of_devices, of_controller, of_extender] =
        std::array::from_fn(|_| free_port());
    let flag = |port: u16| format!("--admin-address=127.0.0.1:{port}");
    let names = format!("--metrics-token={}", token.display());
    let larderd = Larderd::start(&lab, "metrics", &[&*flag(of_larderd), &*names]);
    let plugin = Plugin::start(&lab, &larderd, &[&flag(of_csi)]);
    let machine = FakeMachine::new(MachinePlan::eight_pairs()).unwrap();
    let _others = start_others(lab.folder(), &machine, [of_devices, of_controller, of_extender], free_port());
    std::fs::create_dir(lab.folder().join("cachenode")).unwrap();
    let in_folder = |flag: &str| format!("--{flag}={}", lab.folder().join("cachenode").join(flag).display());
    let flags = ["--dataset=file:///nowhere", "--peers=n1=127.0.0.1:1", "--node-name=n1", "--peer-listen=127.0.0.1:0"];
    let flags = flags.into_iter().chain(["--peer-plaintext"]).map(str::to_owned);
    let flags: Vec<String> = flags.chain([in_folder("cache-dir"), in_folder("home"), flag(of_cachenode)]).collect();
    let _cachenode = Program::start(lab.folder(), "cachenode", &flags);
    let local = |port: u16| SocketAddr::from((Ipv4Addr::LOCALHOST, port));
    for port in ports {
        wait_until("a program serves its admin port", || {
            lab.runtime().block_on(get(local(port), "/healthz")).starts_with("HTTP/1.1 200")
        });
    }
    // Histograms and labels have values once a pod has read.
    let target = plugin.path("kubelet/pods/a");
    let _in_runtime = lab.runtime().enter();
    let mut node = NodeClient::new(plugin.channel());
    wait_until("the volume is published", || {
        lab.runtime().block_on(node.node_publish_volume(publish(&lab, &target))).is_ok()
    });
    assert!(std::fs::read(target.join("f0")).unwrap() == bytes(0));

    let bearer = format!("authorization: Bearer {TOKEN}\r\n");
    let temporary = tempfile::tempdir().unwrap();
    for (program, port, head, some) in [
        ("larderd", of_larderd, "", "larder_read_seconds_bucket{"),
        ("larderd-with-names", of_larderd, &*bearer, "{dataset=\""),
        ("cachenode", of_cachenode, "", "larder_build_info{program=\"cachenode\""),
        ("larder-csi", of_csi, "", "larder_csi_publish_seconds_bucket{"),
        ("larder-devices", of_devices, "", "larder_devices_"),
        ("larder-controller", of_controller, "", "larder_controller_"),
        ("larder-scheduler-ext", of_extender, "", "larder_scheduler_"),
    ] {
        let scrape = |head: &str| {
            let answer = lab.runtime().block_on(get_with(local(port), "/metrics", head));
            let (head, body) = answer.split_once("\r\n\r\n").unwrap();
            assert!(head.starts_with("HTTP/1.1 200") && body.contains(some), "{program}: {answer}");
            body.to_owned()
        };
        let text = scrape(head);
        let open_metrics = scrape(&format!("{head}accept: application/openmetrics-text;version=1.0.0\r\n"));
        if check_metrics(temporary.path(), program, &text, &open_metrics).is_none() {
            return;
        }
    }
}
