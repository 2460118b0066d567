//! `larder explain pod`

use std::io::{BufRead, BufReader, Write};
use std::net::TcpListener;

use serde_json::{Value, json};

use crate::forward::Port;
use crate::jobs::list;
use crate::server::{NOBODY, Server, out, said, status};

/// The extender's golden file of decisions.
const SERVED: &str = include_str!("../../../scheduler-ext/tests/golden/decisions.json");
const PODS: &str = "GET /api/v1/namespaces/larder-system/pods";
const NOTEBOOK: &str = "GET /api/v1/namespaces/team-a/pods/notebook";
const EXPLAIN: [&str; 3] = ["explain", "pod", "notebook"];
const SENTENCE: &str =
    "team-a/notebook went to n7, which holds 98 % of team-a/imagenet: the best of 5 candidate nodes\n";

fn notebook() -> String {
    let claim = json!([{"name": "data", "persistentVolumeClaim": {"claimName": "imagenet"}}]);
    json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"namespace": "team-a", "name": "notebook"},
        "spec": {"nodeName": "n7", "schedulerName": "larder", "containers": [], "volumes": claim},
        "status": {"phase": "Running"},
    })
    .to_string()
}

fn extender(name: &str, ready: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"namespace": "larder-system", "name": name},
        "spec": {"containers": []}, "status": {"conditions": [{"type": "Ready", "status": ready}]},
    })
}

fn forward(name: &str) -> String {
    format!("{PODS}/{name}/portforward")
}

fn answer(body: &str) -> Port {
    Port::Says(format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{body}", body.len()))
}

/// A cluster with these replicas of the extender.
fn server(extenders: &[Value]) -> Server {
    Server::start().answers(NOTEBOOK, 200, &notebook()).answers(PODS, 200, &list("Pod", extenders))
}

fn one() -> Server {
    server(&[extender("a", "True")])
}

/// The decisions of the golden file at these positions.
fn served(places: &[usize]) -> String {
    let all: Value = serde_json::from_str(SERVED).unwrap();
    let these: Vec<&Value> = places.iter().map(|at| &all["decisions"][at]).collect();
    json!({"decisions": these}).to_string()
}

#[test]
fn every_ready_replica_is_queried_through_the_api_server() {
    let replicas = [extender("a", "True"), extender("b", "True"), extender("c", "False")];
    let server = server(&replicas)
        .forwards(&forward("a"), answer(&served(&[1, 2])))
        .forwards(&forward("b"), answer(&served(&[0])));
    let output = server.larder(&EXPLAIN);
    assert!(output.status.success(), "{}", said(&output));
    let text = said(&output);
    assert!(text.starts_with(SENTENCE) && text.contains("\nn7    8      9 "), "{text}");
    let asked = server.asked();
    assert!(asked[1].line.contains("labelSelector=app.kubernetes.io%2Fname%3Dlarder-scheduler"), "{}", asked[1].line);
    assert!(asked[2..].iter().all(|asked| asked.line.ends_with("portforward?&ports=9468")), "{asked:?}");

    let output = server.larder(&["explain", "pod", "team-a/notebook", "--json"]);
    let json: Value = serde_json::from_slice(&output.stdout).unwrap();
    let all: Value = serde_json::from_str(SERVED).unwrap();
    assert_eq!((&json["node"], &json["pod"]), (&json!("n7"), &json!("team-a/notebook")));
    assert_eq!(format!("{}\n", json["sentence"].as_str().unwrap()), SENTENCE);
    // The decisions of both replicas, sorted by time and otherwise unchanged.
    assert_eq!(json["decisions"], all["decisions"]);
}

#[test]
fn a_replica_that_does_not_answer_is_reported_and_the_others_suffice() {
    let replicas = [extender("a", "True"), extender("b", "True")];
    let server = server(&replicas)
        .forwards(&forward("a"), answer(SERVED))
        .forwards(&forward("b"), Port::Refuses("connect: connection refused".to_owned()));
    let output = server.larder(&EXPLAIN);
    assert!(output.status.success() && out(&output).starts_with(SENTENCE), "{}", said(&output));
    let words = "cannot ask b in larder-system: connect: connection refused: its decisions are missing here";
    assert!(said(&output).contains(words), "{}", said(&output));
}

#[test]
fn each_failure_to_reach_the_extender_has_an_error_with_advice() {
    let refused = |code, reason| one().answers(&forward("a"), code, &status(code, reason, "\u{1b}[31mno"));
    let says = |text: &str| one().forwards(&forward("a"), Port::Says(text.to_owned()));
    let denied =
        Server::start().answers(NOTEBOOK, 200, &notebook()).answers(PODS, 403, &status(403, "Forbidden", "no"));
    for (server, words) in [
        (
            refused(403, "Forbidden"),
            "cannot reach a: needs `get` and `create` on pods/portforward in larder-system, or --extender URL (?[31mno)",
        ),
        (refused(404, "NotFound"), "cannot reach a: there is no Pod larder-system/a"),
        (refused(500, "InternalError"), "cannot reach a: the cluster at http://"),
        (
            one().answers(&forward("a"), 200, "{}"),
            "cannot reach a: the API server, or a proxy in front of it, does not forward ports",
        ),
        (
            denied,
            "cannot find the extender's pods; use --extender URL to name an extender: you may not read Pods in larder-system",
        ),
        (server(&[]), "Larder's scheduler does not run in larder-system"),
        (
            server(&[extender("a", "False")]),
            "none of the pods app.kubernetes.io/name=larder-scheduler in larder-system",
        ),
        (
            one().forwards(&forward("a"), Port::Refuses("nobody\n".to_owned())),
            "cannot ask a in larder-system: nobody\n",
        ),
        (says(""), "cannot ask a in larder-system: the response is not HTTP"),
        (says("SSH-2.0\r\n"), "cannot ask a in larder-system: the response is not HTTP"),
        (
            says("HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\n{"),
            "cannot ask a in larder-system: the response was cut off",
        ),
        (
            says("HTTP/1.1 404 X\r\ncontent-length: 2\r\n\r\nno"),
            "cannot ask a in larder-system: the response is 404 no",
        ),
        (
            one().forwards(&forward("a"), answer("[]")),
            "cannot ask a in larder-system: the response is not an extender's",
        ),
        (
            one().forwards(&forward("a"), answer(r#"{"decisions": [{"verb": "bind"}]}"#)),
            "the extender's decisions cannot be decoded; use the `larder` of the extender's release",
        ),
        (Server::start().answers(NOTEBOOK, 403, &status(403, "Forbidden", "no")), "you may not read Pods in team-a"),
    ] {
        let output = server.larder(&EXPLAIN);
        assert_eq!(output.status.code(), Some(1), "{}", said(&output));
        assert!(said(&output).starts_with(&format!("error: {words}")), "{words}\n{}", said(&output));
        assert!(out(&output).is_empty() && !said(&output).contains("hunter2"), "{}", said(&output));
    }
}

#[test]
fn no_more_than_32_mib_of_a_response_are_read() {
    let body = format!(r#"{{"decisions": [], "more": "{}"}}"#, "x".repeat(33 << 20));
    let output = one().forwards(&forward("a"), answer(&body)).larder(&EXPLAIN);
    assert!(
        said(&output).starts_with("error: cannot ask a in larder-system: the response is larger than"),
        "{}",
        said(&output)
    );
}

#[test]
fn a_complete_response_suffices_while_the_connection_stays_open() {
    let Port::Says(text) = answer(SERVED) else { unreachable!() };
    let output = one().forwards(&forward("a"), Port::Hangs(text)).larder(&EXPLAIN);
    assert!(output.status.success() && out(&output).starts_with(SENTENCE), "{}", said(&output));
}

#[test]
fn a_deleted_pod_is_explained_while_the_extender_remembers_it() {
    let gone = || {
        Server::start().answers(NOTEBOOK, 404, &status(404, "NotFound", "pods \"notebook\" not found")).answers(
            PODS,
            200,
            &list("Pod", &[extender("a", "True")]),
        )
    };
    let output = gone().forwards(&forward("a"), answer(SERVED)).larder(&EXPLAIN);
    let words = "team-a/notebook no longer exists; at its last scheduling attempt, n7, which holds 98 % of";
    assert!(output.status.success() && out(&output).starts_with(words), "{}", said(&output));
    let output = gone().forwards(&forward("a"), answer(r#"{"decisions": []}"#)).larder(&EXPLAIN);
    assert_eq!(output.status.code(), Some(1), "{}", said(&output));
    assert!(said(&output).contains("there is no Pod team-a/notebook, and no decision about it"), "{}", said(&output));
}

#[test]
fn an_extender_elsewhere_is_queried_directly() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let thread = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let lines = BufReader::new(stream.try_clone().unwrap()).lines();
        let head: Vec<String> = lines.map(Result::unwrap).take_while(|line| !line.is_empty()).collect();
        let head_of_answer = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n", SERVED.len());
        stream.write_all(&[head_of_answer.as_bytes(), SERVED.as_bytes()].concat()).unwrap();
        head[0].clone()
    });
    let server = Server::start().answers(NOTEBOOK, 200, &notebook());
    let output = server.larder(&["explain", "pod", "notebook", "--extender", &url]);
    assert!(output.status.success() && out(&output).starts_with(SENTENCE), "{}", said(&output));
    assert_eq!(thread.join().unwrap(), "GET /decisions?pod=team-a/notebook HTTP/1.1");
    assert_eq!(server.lines(), [NOTEBOOK]);

    let output = server.larder(&["explain", "pod", "notebook", "--extender", NOBODY]);
    let words = format!("error: cannot ask --extender {NOBODY}: Connection refused");
    assert!(said(&output).starts_with(&words), "{}", said(&output));
    let output = server.larder(&["explain", "pod", "notebook", "--extender", "https://x:1"]);
    assert_eq!(output.status.code(), Some(2), "{}", said(&output));
}

/// The metadata of an object, with its controller.
fn owned(name: &str, uid: &str, owner: Option<(&str, &str, &str, &str)>) -> Value {
    let mut metadata = json!({"namespace": "team-a", "name": name, "uid": uid});
    if let Some((version, kind, name, uid)) = owner {
        let owner = json!({"apiVersion": version, "kind": kind, "name": name, "uid": uid, "controller": true});
        metadata["ownerReferences"] = json!([owner]);
    }
    json!({"apiVersion": "v1", "kind": "Object", "metadata": metadata})
}

const WORKLOADS: &str = "GET /apis/kueue.x-k8s.io/v1beta2/namespaces/team-a/workloads";

/// The cluster of [`one`], in which a Job of a JobSet of a TrainJob has made the pod.
fn of_a_train_job() -> Server {
    let job = ("batch/v1", "Job", "bert-node-0", "job");
    let mut pod: Value = serde_json::from_str(&notebook()).unwrap();
    pod["metadata"] = owned("notebook", "pod", Some(job))["metadata"].clone();
    let set = Some(("jobset.x-k8s.io/v1alpha2", "JobSet", "bert", "set"));
    let train = Some(("trainer.kubeflow.org/v1alpha1", "TrainJob", "bert", "train"));
    Server::start()
        .answers(NOTEBOOK, 200, &pod.to_string())
        .answers("GET /apis/batch/v1/namespaces/team-a/jobs/bert-node-0", 200, &owned("x", "job", set).to_string())
        .answers(
            "GET /apis/jobset.x-k8s.io/v1alpha2/namespaces/team-a/jobsets/bert",
            200,
            &owned("x", "set", train).to_string(),
        )
        .answers(PODS, 200, &list("Pod", &[extender("a", "True")]))
        .forwards(&forward("a"), answer(SERVED))
}

const TRAIN_JOB: &str = "GET /apis/trainer.kubeflow.org/v1alpha1/namespaces/team-a/trainjobs/bert";

#[test]
fn the_job_of_any_kind_that_a_pod_belongs_to_is_named_with_its_workload() {
    let workload = |name: &str, created: &str, conditions: Value| {
        let mut workload = owned(name, name, Some(("trainer.kubeflow.org/v1alpha1", "TrainJob", "bert", "train")));
        workload["metadata"]["creationTimestamp"] = created.into();
        workload["spec"] = json!({"queueName": "gpus"});
        workload["status"] = json!({"conditions": conditions,
            "admissionChecks": [{"name": "data", "state": "Pending", "message": "team-a/imagenet 45 % on 4 of 8 nodes"}]});
        workload
    };
    let is = |kind: &str| json!([{"type": kind, "status": "True", "reason": "R", "message": "m"}]);
    let workloads = [
        workload("earlier", "2026-01-31T07:00:00Z", is("Finished")),
        workload("now", "2026-01-31T08:00:00Z", is("QuotaReserved")),
        owned("of-another", "w", Some(("batch/v1", "Job", "other", "other"))),
    ];
    let server = of_a_train_job().answers(TRAIN_JOB, 200, &owned("bert", "train", None).to_string()).answers(
        WORKLOADS,
        200,
        &list("Workload", &workloads),
    );
    let output = server.larder(&EXPLAIN);
    assert!(output.status.success() && said(&output).starts_with(SENTENCE), "{}", said(&output));
    let lines = "  job       TrainJob bert > JobSet bert > Job bert-node-0\n  \
                 queue     gpus of Kueue, as Workload now: it has quota and waits for the check data: \
                 team-a/imagenet 45 % on 4 of 8 nodes\n";
    assert!(out(&output).ends_with(lines), "{}", out(&output));
    let output = server.larder(&["explain", "pod", "notebook", "--json"]);
    let json: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(
        json["owners"][0],
        json!({"apiVersion": "trainer.kubeflow.org/v1alpha1", "kind": "TrainJob", "name": "bert"})
    );
    assert_eq!((json["owners"].as_array().unwrap().len(), &json["workload"]["name"]), (3, &json!("now")));
}

#[test]
fn a_job_is_named_as_far_as_the_user_may_read_its_owners() {
    let denied = status(403, "Forbidden", "no");
    let older = "GET /apis/kueue.x-k8s.io/v1beta1/namespaces/team-a/workloads";
    let server = of_a_train_job().answers(TRAIN_JOB, 403, &denied);
    let server = server.answers(WORKLOADS, 403, &denied).answers(older, 403, &denied);
    let output = server.larder(&EXPLAIN);
    assert!(said(&output).starts_with(SENTENCE), "{}", said(&output));
    assert!(
        out(&output).ends_with("\n  job       TrainJob bert > JobSet bert > Job bert-node-0\n"),
        "{}",
        out(&output)
    );
    // Another object of the same name is not its owner, and a server that fails is reported.
    let server = of_a_train_job()
        .answers(TRAIN_JOB, 200, &owned("bert", "new", Some(("v1", "Other", "o", "o"))).to_string())
        .answers(WORKLOADS, 500, &status(500, "InternalError", "no conversion"));
    let output = server.larder(&EXPLAIN);
    assert!(
        output.status.success()
            && out(&output).ends_with("\n  job       TrainJob bert > JobSet bert > Job bert-node-0\n")
    );
    assert!(said(&output).contains("Kueue's Workloads cannot be read: "), "{}", said(&output));
}

/// The notebook with a uid, by which its mounts are found.
fn mounted() -> String {
    let mut pod: Value = serde_json::from_str(&notebook()).unwrap();
    pod["metadata"]["uid"] = json!("1234");
    pod.to_string()
}

const CSI_PODS: &str =
    "GET /api/v1/namespaces/larder-system/pods?&labelSelector=app.kubernetes.io%2Fname%3Dlarder-csi&limit=500";

#[test]
fn the_mounts_of_a_pod_are_explained_even_without_an_extender() {
    let mount = |pod: &str, sentence: &str| {
        let dir = format!("/var/lib/kubelet/pods/{pod}/volumes/x/mount");
        json!({"mount": dir, "sentence": sentence, "passes": []})
    };
    let printed = json!([mount("1234", "it waits for a slow origin."), mount("12345", "it is another pod's.")]);
    let csi = |name: &str, node: &str, phase: &str| {
        json!({
            "apiVersion": "v1", "kind": "Pod", "metadata": {"namespace": "larder-system", "name": name},
            "spec": {"nodeName": node, "containers": []}, "status": {"phase": phase},
        })
    };
    let all = [csi("csi-6", "n6", "Running"), csi("csi-7", "n7", "Running"), csi("evicted", "n7", "Failed")];
    let server = || {
        Server::start().answers(NOTEBOOK, 200, &mounted()).answers(CSI_PODS, 200, &list("Pod", &all)).answers(
            PODS,
            200,
            &list("Pod", &[]),
        )
    };
    let exec = format!("{PODS}/csi-7/exec");
    let with = server().forwards(&exec, Port::Prints(printed.to_string()));
    let output = with.larder(&EXPLAIN);
    assert!(output.status.success(), "{}", said(&output));
    assert!(out(&output).ends_with("\nit waits for a slow origin.\n"), "{}", said(&output));
    assert!(said(&output).contains("its placement is not explained: Larder's scheduler does not run"));
    let output = with.larder(&["explain", "pod", "notebook", "--json"]);
    let json: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(json["mounts"], json!([printed[0]]));

    let denied = server().answers(&exec, 403, &status(403, "Forbidden", "no"));
    let output = denied.larder(&EXPLAIN);
    assert_eq!(output.status.code(), Some(1), "nothing is left to explain: {}", said(&output));
    let words = "its mounts are not explained: needs `get` and `create` on pods/exec in larder-system";
    assert!(said(&output).contains(words), "{}", said(&output));
}
