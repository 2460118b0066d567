//! `larder job top`, `larder job events` and `larder job diff`.

use serde_json::{Value, json};

use crate::jobs::{job, list};
use crate::server::{Server, out, said, status};

const JOB: &str = "/apis/larder.dev/v1alpha1/namespaces/team-a/trainingjobs/resnet";
const PODS: &str = "/api/v1/namespaces/team-a/pods";
const METRICS: &str = "/apis/metrics.k8s.io/v1beta1/namespaces/team-a/pods";
const EVENTS: &str = "/api/v1/namespaces/team-a/events";

fn pod(job: &str, index: u32, uid: &str, phase: &str) -> Value {
    let limits = json!({"cpu": "4", "memory": "8Gi", "nvidia.com/gpu": "2"});
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {
            "namespace": "team-a", "name": format!("{job}-worker-{index}-0"),
            "labels": {"larder.dev/job": job, "larder.dev/job-uid": uid},
        },
        "spec": {"nodeName": format!("n{index}"), "containers": [{"name": "c", "resources": {"limits": limits}}]},
        "status": {"phase": phase},
    })
}

fn usage(job: &str, index: u32, cpu: &str, memory: &str) -> Value {
    json!({
        "metadata": {"namespace": "team-a", "name": format!("{job}-worker-{index}-0")},
        "containers": [{"name": "c", "usage": {"cpu": cpu, "memory": memory}}],
    })
}

/// The words of each line.
fn lines(text: &str) -> Vec<String> {
    text.lines().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")).collect()
}

fn running(pods: &[Value], usages: &[Value]) -> Server {
    Server::start()
        .answers(&format!("GET {JOB}"), 200, &job("resnet", json!({"phase": "Running"})).to_string())
        .answers(&format!("GET {PODS}"), 200, &list("Pod", pods))
        .answers(&format!("GET {METRICS}"), 200, &list("PodMetrics", usages))
}

#[test]
fn top_shows_what_the_pods_of_a_job_use_of_what_they_request() {
    let pods = [
        pod("resnet", 0, "uid-resnet", "Running"),
        pod("resnet", 1, "uid-resnet", "Running"),
        pod("resnet", 2, "uid-resnet", "Succeeded"),
        pod("resnet", 3, "of an earlier job", "Running"),
    ];
    let server = running(&pods, &[usage("resnet", 0, "1500000000n", "2097152Ki")]);
    let output = server.larder(&["job", "top", "resnet"]);
    assert!(output.status.success(), "{}", said(&output));
    assert_eq!(
        lines(&out(&output)),
        [
            "NAME NODE CPU(cores) CPU% MEMORY(bytes) MEMORY% GPUS",
            "resnet-worker-0-0 n0 1500m 37% 2048Mi 25% 2",
            "resnet-worker-1-0 n1 <unknown> <unknown> 2",
        ]
    );
    let asked = server.asked();
    let selects = |path: &str| {
        asked.iter().any(|asked| asked.line.contains(path) && asked.line.contains("larder.dev%2Fjob%3Dresnet"))
    };
    assert!(selects(PODS) && selects(METRICS), "{asked:?}");
    let output = running(&pods[..1], &[]).larder(&["job", "top", "resnet", "--json"]);
    let rows: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(
        rows,
        json!([{
            "job": "team-a/resnet", "pod": "resnet-worker-0-0", "node": "n0", "pods": 1, "cpuMillicores": null,
            "cpuRequestedMillicores": 4_000, "memoryBytes": null, "memoryRequestedBytes": 8_u64 << 30, "gpus": 2,
        }])
    );
}

#[test]
fn top_without_a_job_adds_up_the_pods_of_each() {
    let pods = [pod("bert", 0, "u", "Running"), pod("resnet", 0, "v", "Running"), pod("resnet", 1, "v", "Running")];
    let usages = [usage("resnet", 0, "1", "1Gi"), usage("resnet", 1, "3", "1Gi"), usage("bert", 0, "2", "4Gi")];
    let output = running(&pods, &usages).larder(&["job", "top"]);
    assert!(output.status.success(), "{}", said(&output));
    assert_eq!(
        lines(&out(&output)),
        [
            "NAME PODS CPU(cores) CPU% MEMORY(bytes) MEMORY% GPUS",
            "bert 1 2000m 50% 4096Mi 50% 2",
            "resnet 2 4000m 50% 2048Mi 12% 4",
        ]
    );
}

#[test]
fn top_without_pods_or_without_metrics_says_so() {
    let output = running(&[], &[]).larder(&["job", "top", "resnet"]);
    assert!(output.status.success() && out(&output).is_empty(), "{}", said(&output));
    assert!(said(&output).contains("team-a/resnet has no running pods: "), "{}", said(&output));
    let server = Server::start().answers(&format!("GET {METRICS}"), 404, "404 page not found\n");
    let output = server.larder(&["job", "top"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(said(&output).contains("does not serve PodMetrics: an administrator enables them with the metrics-server"));
}

#[test]
fn events_of_a_job_and_its_pods_are_listed_the_oldest_first() {
    let event = |kind: &str, name: &str, at: &str, reason: &str, count: u32| {
        json!({
            "apiVersion": "v1", "kind": "Event", "metadata": {"namespace": "team-a", "name": format!("{name}.{reason}")},
            "involvedObject": {"kind": kind, "name": name}, "type": "Warning", "reason": reason,
            "message": format!("it is {reason}\u{1b}[31m"), "count": count, "lastTimestamp": at,
        })
    };
    let events = [
        event("Pod", "resnet-worker-0-0", "2026-01-31T10:05:00Z", "Later", 3),
        event("Pod", "resnet-2-worker-0-0", "2026-01-31T10:01:00Z", "Foreign", 1),
        event("TrainingJob", "resnet", "2026-01-31T10:00:00Z", "Earlier", 1),
    ];
    let server = Server::start().answers(&format!("GET {JOB}"), 200, &job("resnet", json!({})).to_string()).answers(
        &format!("GET {EVENTS}"),
        200,
        &list("Event", &events),
    );
    let output = server.larder(&["job", "events", "resnet"]);
    assert!(output.status.success(), "{}", said(&output));
    let text = out(&output);
    let shown = lines(&text);
    assert_eq!(shown[0], "LAST SEEN TYPE REASON OBJECT MESSAGE");
    assert_eq!(shown.len(), 3, "{text}");
    assert!(shown[1].ends_with("Warning Earlier TrainingJob/resnet it is Earlier [31m"), "{text}");
    assert!(shown[2].contains("(x3) Warning Later Pod/resnet-worker-0-0"), "{text}");
    assert!(!text.contains('\u{1b}'));
    let output = server.larder(&["job", "events", "resnet", "--json"]);
    let rows: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((&rows[0]["object"], &rows[1]["count"]), (&json!("TrainingJob/resnet"), &json!(3)));
    let server = Server::start().answers(&format!("GET {JOB}"), 200, &job("resnet", json!({})).to_string()).answers(
        &format!("GET {EVENTS}"),
        403,
        &status(403, "Forbidden", "no"),
    );
    let output = server.larder(&["job", "events", "resnet"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(said(&output).contains("you may not read Events in team-a"), "{}", said(&output));
}

#[test]
fn events_and_figures_of_a_job_in_another_cluster_are_those_there() {
    let event = |name: &str, at: &str, reason: &str| {
        json!({
            "apiVersion": "v1", "kind": "Event", "metadata": {"namespace": "team-a", "name": format!("{name}.{reason}")},
            "involvedObject": {"kind": "Pod", "name": name}, "type": "Normal", "reason": reason, "message": "it is so",
            "lastTimestamp": at,
        })
    };
    let away = job("resnet", json!({"phase": "Running", "placement": {"cluster": "west"}})).to_string();
    let before = event("resnet-worker-0-0", "2026-01-31T10:00:00Z", "Here");
    let home = Server::start().answers(&format!("GET {JOB}"), 200, &away).answers(
        &format!("GET {EVENTS}"),
        200,
        &list("Event", &[before]),
    );
    let pods = [pod("resnet", 0, "uid-resnet", "Running")];
    let west = running(&pods, &[usage("resnet", 0, "2", "1Gi")]).answers(
        &format!("GET {EVENTS}"),
        200,
        &list("Event", &[event("resnet-worker-0-1", "2026-01-31T10:05:00Z", "There")]),
    );
    let output = home.larder_beside("west", &west, &["job", "events", "resnet"]);
    assert!(output.status.success(), "{}", said(&output));
    let shown = lines(&out(&output));
    assert_eq!(shown.len(), 3, "{shown:?}");
    assert!(shown[1].contains("Normal Here Pod/resnet-worker-0-0"), "{shown:?}");
    assert!(shown[2].contains("Normal There Pod/resnet-worker-0-1"), "{shown:?}");
    let output = home.larder_beside("west", &west, &["job", "top", "resnet"]);
    assert!(out(&output).contains("resnet-worker-0-0"), "{}", said(&output));
    // Without a way to the other cluster, there are the events here.
    let output = home.larder_beside("cloud", &west, &["job", "events", "resnet"]);
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(lines(&out(&output)).len(), 2, "{}", out(&output));
    let why = "team-a/resnet is in cluster west, which is read with a context of that name in your kubeconfig";
    assert!(said(&output).contains(why), "{}", said(&output));
}

const MANIFEST: &str = "apiVersion: larder.dev/v1alpha1\nkind: TrainingJob\nmetadata: {name: resnet}\n\
                        spec: {type: single, roles: [{name: worker, template: {spec: {containers: [{name: c}]}}}]}\n";

#[test]
fn diff_shows_what_would_change_and_changes_nothing() {
    let live = job("resnet", json!({"phase": "Running"}));
    let mut merged = live.clone();
    merged["spec"]["queue"] = "speech".into();
    merged["metadata"]["resourceVersion"] = "8".into();
    let with = |live: Option<&Value>, code: u16, merged: &str| {
        let answer = live.map_or_else(|| (404, status(404, "NotFound", "no")), |live| (200, live.to_string()));
        let server = Server::start().answers(&format!("GET {JOB}"), answer.0, &answer.1);
        server.answers(&format!("PATCH {JOB}"), code, merged)
    };
    let diff = |server: &Server| server.larder_with(&["job", "diff", "-"], MANIFEST);

    let server = with(Some(&live), 200, &merged.to_string());
    let output = diff(&server);
    assert_eq!(output.status.code(), Some(1), "{}", said(&output));
    let text = out(&output);
    assert!(text.starts_with("--- live/team-a/resnet\n+++ merged/team-a/resnet\n"), "{text}");
    assert!(text.contains("\n-  queue: vision\n+  queue: speech\n"), "{text}");
    assert!(!text.contains("resourceVersion") && !text.contains("phase"), "{text}");
    assert!(server.asked().iter().all(|asked| asked.line.starts_with("GET ") || asked.line.contains("dryRun=All")));

    let output = diff(&with(Some(&live), 200, &live.to_string()));
    assert_eq!((output.status.code(), out(&output).as_str()), (Some(0), ""), "{}", said(&output));

    let output = diff(&with(None, 201, &merged.to_string()));
    assert_eq!(output.status.code(), Some(1), "{}", said(&output));
    assert!(out(&output).contains("\n+kind: TrainingJob\n") && !out(&output).contains("\n-kind"), "{}", out(&output));

    // As with kubectl, the exit code 1 is no failure.
    let output = diff(&with(Some(&live), 422, &status(422, "Invalid", "spec.type")));
    assert_eq!(output.status.code(), Some(2), "{}", said(&output));
    assert!(said(&output).contains("the cluster rejects team-a/resnet: spec.type"), "{}", said(&output));
}

#[test]
fn jobs_are_listed_by_name_and_one_that_does_not_exist_is_an_error() {
    let missing = JOB.replace("resnet", "bert");
    let server = Server::start()
        .answers(&format!("GET {JOB}"), 200, &job("resnet", json!({"phase": "Running"})).to_string())
        .answers(&format!("GET {missing}"), 404, &status(404, "NotFound", "no"));
    let output = server.larder(&["job", "get", "resnet"]);
    assert!(output.status.success(), "{}", said(&output));
    assert!(lines(&out(&output))[1].starts_with("resnet single vision Running"), "{}", out(&output));
    let output = server.larder(&["job", "get", "bert", "resnet", "--json"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(said(&output).contains("there is no TrainingJob team-a/bert"), "{}", said(&output));
    let rows: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((rows.as_array().unwrap().len(), &rows[0]["job"]), (1, &json!("team-a/resnet")));
}
