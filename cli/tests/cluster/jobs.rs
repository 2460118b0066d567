//! `larder job` except its logs, and `larder explain job`.

use serde_json::{Value, json};

use crate::server::{Server, out, run, said, status};

const JOBS: &str = "/apis/larder.dev/v1alpha1/namespaces/team-a/trainingjobs";

fn path(name: &str) -> String {
    format!("{JOBS}/{name}")
}

/// A job of the cluster, with this status.
pub(crate) fn job(name: &str, status: Value) -> Value {
    json!({
        "apiVersion": "larder.dev/v1alpha1",
        "kind": "TrainingJob",
        "metadata": {
            "namespace": "team-a", "name": name, "uid": format!("uid-{name}"), "resourceVersion": "7",
            "creationTimestamp": "2026-01-31T09:00:00Z",
        },
        "spec": {"type": "single", "queue": "vision", "roles": [{
            "name": "worker", "replicas": 4,
            "template": {"spec": {"containers": [{"name": "c", "resources": {"limits": {"nvidia.com/gpu": "1"}}}]}},
        }]},
        "status": status,
    })
}

pub(crate) fn list(kind: &str, items: &[Value]) -> String {
    json!({"apiVersion": "v1", "kind": format!("{kind}List"), "metadata": {}, "items": items}).to_string()
}

const MANIFEST: &str = "apiVersion: larder.dev/v1alpha1\nkind: TrainingJob\nmetadata: {name: resnet}\n\
                        spec: {type: single, roles: [{name: worker, template: {spec: {containers: [{name: c}]}}}]}\n";

#[test]
fn a_job_is_applied_with_every_field_checked() {
    let server =
        Server::start().answers(&format!("PATCH {}", path("resnet")), 201, &job("resnet", json!(null)).to_string());
    let output = server.larder_with(&["job", "submit", "-"], MANIFEST);
    assert!(output.status.success(), "{}", said(&output));
    assert_eq!(out(&output), "team-a/resnet submitted\n");
    // The first request is a dry run.
    let [first, asked] = &server.asked()[..] else { panic!("{:?}", server.asked()) };
    assert!(first.line.contains("dryRun=All") && first.body == asked.body, "{first:?}");
    for part in ["fieldManager=larder", "fieldValidation=Strict"] {
        assert!(asked.line.contains(part), "{part}: {}", asked.line);
    }
    assert!(!asked.line.contains("dryRun") && !asked.line.contains("force"), "{}", asked.line);
    let body: Value = serde_json::from_str(&asked.body).unwrap();
    assert_eq!(body["metadata"], json!({"name": "resnet", "namespace": "team-a"}));
}

#[test]
fn flags_alone_make_a_job() {
    let server = Server::start().answers(&format!("PATCH {}", path("x")), 201, &job("x", json!(null)).to_string());
    let words = "job submit --type pytorch --name x --image i --replicas 4 --gpus 8 --dataset imagenet:/data --queue q -- \
                 python train.py";
    let output = server.larder(&words.split_whitespace().collect::<Vec<_>>());
    assert!(output.status.success(), "{}", said(&output));
    let body: Value = serde_json::from_str(&server.asked()[0].body).unwrap();
    assert_eq!(body["spec"]["roles"][0]["template"]["spec"]["containers"][0]["command"], json!(["python", "train.py"]));
    assert_eq!((&body["spec"]["queue"], &body["spec"]["datasets"][0]["name"]), (&json!("q"), &json!("imagenet")));
}

#[test]
fn a_job_of_kubeflow_is_converted_and_says_so() {
    let tf = "apiVersion: kubeflow.org/v1\nkind: TFJob\nmetadata: {name: resnet}\n\
              spec: {successPolicy: AllWorkers, tfReplicaSpecs: {Worker: {template: {spec: {containers: [{name: tensorflow}]}}}}}\n";
    let server =
        Server::start().answers(&format!("PATCH {}", path("resnet")), 201, &job("resnet", json!(null)).to_string());
    let output = server.larder_with(&["job", "submit", "-"], tf);
    assert!(output.status.success(), "{}", said(&output));
    let notes = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(notes.contains("converted a TFJob to a TrainingJob") && notes.contains("spec.successPolicy"), "{notes}");
    // Conversion without a cluster prints the same.
    let output = run(&["job", "convert", "-"], tf);
    assert!(output.status.success() && out(&output).contains("kind: TrainingJob\n"), "{}", said(&output));
    assert!(!out(&output).contains("status"), "{}", out(&output));
    let again = run(&["job", "convert", "-"], &out(&output));
    assert_eq!(out(&again), out(&output), "{}", said(&again));
    let json = run(&["job", "convert", "-", "--json"], tf);
    let json: Value = serde_json::from_slice(&json.stdout).unwrap();
    assert_eq!((&json[0]["was"], &json[0]["job"]["spec"]["type"]), (&json!("TFJob"), &json!("tensorflow")));
}

#[test]
fn a_dry_run_has_the_cluster_check_and_prints_what_it_would_submit() {
    let server =
        Server::start().answers(&format!("PATCH {}", path("resnet")), 200, &job("resnet", json!(null)).to_string());
    let output = server.larder_with(&["job", "submit", "-", "--dry-run"], MANIFEST);
    assert!(output.status.success(), "{}", said(&output));
    assert!(
        out(&output).contains("kind: TrainingJob") && said(&output).contains("nothing was submitted"),
        "{}",
        said(&output)
    );
    assert!(server.asked()[0].line.contains("dryRun=All"), "{}", server.asked()[0].line);
}

#[test]
fn nothing_is_submitted_if_one_of_the_jobs_is_invalid() {
    let bad = MANIFEST.replace("name: worker", "name: worker, min: 2");
    let server = Server::start();
    let output = server.larder_with(&["job", "submit", "-"], &format!("{MANIFEST}---\n{bad}"));
    assert_eq!(output.status.code(), Some(1));
    let said = said(&output);
    assert!(said.contains("object 2: spec.roles[worker].min"), "{said}");
    assert!(server.asked().is_empty(), "{:?}", server.asked());
}

#[test]
fn each_rejection_of_a_job_has_an_error_with_advice() {
    let ended = job("resnet", json!({"phase": "Failed"})).to_string();
    let mut deleted = job("resnet", json!({"phase": "Running"}));
    deleted["metadata"]["deletionTimestamp"] = json!("2026-01-31T09:00:00Z");
    const UNTYPED: &str =
        "failed to create typed patch object (team-a/bad): .spec.priority: field not declared in schema";
    let unknown = "strict decoding error: unknown field \"spec.priority\"";
    for (code, body, words) in [
        (
            400,
            status(400, "BadRequest", unknown),
            "the cluster rejects team-a/resnet: strict decoding error: unknown field",
        ),
        (500, status(500, "", UNTYPED), "the cluster rejects team-a/resnet: failed to create typed patch object"),
        (
            404,
            status(404, "NotFound", "namespaces \"team-a\" not found"),
            "error: standard input, object 1: there is no namespace team-a: create it",
        ),
        (422, status(422, "Invalid", "spec.type is \u{1b}[31mred"), "rejects team-a/resnet: spec.type is ?[31mred"),
        (
            403,
            status(403, "Forbidden", "no"),
            "you may not submit or change TrainingJobs in team-a: ask an administrator for permission to `patch`",
        ),
        (
            404,
            "404 page not found\n".to_owned(),
            "does not serve TrainingJobs: an administrator enables them with the components `datasets` and `jobs`",
        ),
        (
            409,
            status(409, "Conflict", "kubectl set .spec.suspend"),
            "team-a/resnet has fields that another program manages",
        ),
        (
            200,
            ended,
            "has ended before (Failed) and does not start again: `larder job cancel team-a/resnet --wait --kubeconfig ",
        ),
        (200, deleted.to_string(), "is being deleted: submit it again once it is gone"),
    ] {
        let server = Server::start().answers(&format!("PATCH {}", path("resnet")), code, &body);
        let output = server.larder_with(&["job", "submit", "-"], MANIFEST);
        let said = said(&output);
        assert_eq!(output.status.code(), Some(1), "{said}");
        assert!(said.contains(words) && !said.contains('\u{1b}') && !said.contains("hunter2"), "{code}: {said}");
        // Only dry runs were sent.
        let asked = server.asked();
        assert!(asked.iter().all(|asked| asked.line.contains("dryRun=All")), "{asked:?}");
    }
    let elsewhere = MANIFEST.replace("name: resnet", "name: resnet, namespace: team-b");
    let output = Server::start().larder_with(&["job", "submit", "-", "-n", "team-a"], &elsewhere);
    assert!(said(&output).contains("metadata.namespace is team-b but --namespace is team-a"), "{}", said(&output));
}

fn event(kind: &str, job: &Value) -> String {
    json!({"type": kind, "object": job}).to_string() + "\n"
}

#[test]
fn waiting_follows_a_job_to_its_end_and_returns_its_result() {
    let queued = job("resnet", json!({"phase": "Queued", "waitingFor": "queue vision uses 6 of 8 GPUs, needs 4"}));
    let running = job("resnet", json!({"phase": "Running", "shown": {"ready": "4/4"}}));
    for (end, code, words) in [
        (json!({"phase": "Succeeded"}), 0, "team-a/resnet succeeded: it has finished.\n"),
        (json!({"phase": "Failed", "restarts": {"crashed": 4}}), 1, "lost so far: 4 pods (4 crashed)"),
    ] {
        let ended = job("resnet", end);
        let server = Server::start()
            .answers(&format!("PATCH {}", path("resnet")), 201, &job("resnet", json!(null)).to_string())
            .answers(&format!("GET {}", path("resnet")), 200, &queued.to_string())
            // The first watch ends, the second reports that the version is too old, and the third brings the job's end.
            .answers_once(&format!("GET {JOBS}"), 200, &event("MODIFIED", &running))
            .answers_once(
                &format!("GET {JOBS}"),
                200,
                &event("ERROR", &serde_json::from_str(&status(410, "Expired", "old")).unwrap()),
            )
            .answers_once(&format!("GET {JOBS}"), 200, &event("MODIFIED", &ended));
        let output = server.larder_with(&["job", "submit", "-", "--wait"], MANIFEST);
        assert_eq!(output.status.code(), Some(code), "{}", said(&output));
        assert!(out(&output).contains(words), "{}", out(&output));
        let notes = String::from_utf8_lossy(&output.stderr).into_owned();
        let expected = "team-a/resnet  Queued  queue vision uses 6 of 8 GPUs, needs 4\nteam-a/resnet  Running  4/4\n";
        assert!(notes.starts_with(expected), "{notes}");
        let watch = server.asked().into_iter().find(|asked| asked.line.contains("watch=true")).unwrap().line;
        assert!(
            watch.contains("fieldSelector=metadata.name%3Dresnet") && watch.contains("resourceVersion=7"),
            "{watch}"
        );
    }
}

#[test]
fn waiting_for_a_job_that_is_deleted_or_replaced_fails() {
    let running = job("resnet", json!({"phase": "Running"}));
    let mut another = running.clone();
    another["metadata"]["uid"] = json!("other");
    for last in [event("DELETED", &running), event("ADDED", &another)] {
        let server = Server::start()
            .answers(&format!("PATCH {}", path("resnet")), 201, &running.to_string())
            .answers(&format!("GET {}", path("resnet")), 200, &running.to_string())
            .answers(&format!("GET {JOBS}"), 200, &last);
        let output = server.larder_with(&["job", "submit", "-", "--wait"], MANIFEST);
        assert_eq!(output.status.code(), Some(1), "{}", said(&output));
        assert!(said(&output).contains("team-a/resnet was deleted before it ended"), "{}", said(&output));
    }
}

#[test]
fn the_result_of_a_job_can_come_with_its_deletion() {
    let running = job("resnet", json!({"phase": "Running"}));
    let succeeded = job("resnet", json!({"phase": "Succeeded"}));
    let server = Server::start()
        .answers(&format!("PATCH {}", path("resnet")), 201, &running.to_string())
        .answers(&format!("GET {}", path("resnet")), 200, &running.to_string())
        .answers(&format!("GET {JOBS}"), 200, &event("DELETED", &succeeded));
    let output = server.larder_with(&["job", "submit", "-", "--wait"], MANIFEST);
    assert!(output.status.success(), "{}", said(&output));
}

/// `larder` itself sets `spec.suspend` apart from the manifest.
#[test]
fn a_manifest_may_set_fields_that_larder_managed_before() {
    let conflict = |managers: &[&str]| {
        let cause = |manager: &&str| {
            json!({"reason": "FieldManagerConflict", "field": ".spec.suspend",
                "message": format!("conflict with \"{manager}\" using larder.dev/v1alpha1")})
        };
        json!({
            "kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "Conflict", "code": 409,
            "message": "Apply failed with 1 conflict", "details": {"causes": managers.iter().map(cause).collect::<Vec<_>>()},
        })
        .to_string()
    };
    let applied = job("resnet", json!(null)).to_string();
    let patch = format!("PATCH {}", path("resnet"));
    let server = Server::start().answers_once(&patch, 409, &conflict(&["larder"])).answers(&patch, 200, &applied);
    let output = server.larder_with(&["job", "submit", "-"], MANIFEST);
    assert!(output.status.success(), "{}", said(&output));
    let forced: Vec<bool> = server.asked().iter().map(|asked| asked.line.contains("force=true")).collect();
    assert_eq!(forced, [false, true, true]);
    for managers in [&["kubectl"][..], &["larder", "kubectl"], &["larderette"], &[]] {
        let server = Server::start().answers_once(&patch, 409, &conflict(managers)).answers(&patch, 200, &applied);
        let output = server.larder_with(&["job", "submit", "-"], MANIFEST);
        assert!(said(&output).contains("team-a/resnet has fields that another program manages"), "{}", said(&output));
        assert_eq!(server.asked().len(), 1);
    }
}

#[test]
fn jobs_are_listed_by_namespace_and_queue_over_all_pages() {
    let mut other = job("bert", json!({"phase": "Queued", "shown": {"why": "a\u{1b}[2J"}}));
    other["spec"]["queue"] = json!("speech");
    let first = json!({"apiVersion": "v1", "kind": "L", "metadata": {"continue": "more"}, "items": [job("resnet", json!({"phase": "Running"}))]});
    let server = Server::start()
        .answers_once(&format!("GET {JOBS}"), 200, &first.to_string())
        .answers_once(&format!("GET {JOBS}"), 200, &list("TrainingJob", std::slice::from_ref(&other)))
        .answers_once(&format!("GET {JOBS}"), 200, &list("TrainingJob", &[other, job("resnet", json!(null))]))
        .answers("GET /apis/larder.dev/v1alpha1/trainingjobs", 200, &list("TrainingJob", &[]));
    let output = server.larder(&["job", "list"]);
    let said_all = said(&output);
    let names: Vec<&str> = said_all.lines().filter_map(|line| line.split_whitespace().next()).collect();
    assert_eq!(names, ["NAME", "resnet", "bert"], "{said_all}");
    assert!(!said_all.contains('\u{1b}') && server.asked()[1].line.contains("continue=more"), "{said_all:?}");
    let output = server.larder(&["job", "list", "--queue", "speech", "--json"]);
    let json: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(
        (json.as_array().unwrap().len(), &json[0]["job"], &json[0]["why"]),
        (1, &json!("team-a/bert"), &json!("a\u{1b}[2J"))
    );
    assert!(!out(&output).contains('\u{1b}'));
    assert!(said(&server.larder(&["job", "list", "-A"])).contains("there is no job"));
}

#[test]
fn cancel_deletes_the_job_that_it_read_and_prints_its_record() {
    let running = job("resnet", json!({"phase": "Running"})).to_string();
    let server = Server::start().answers(&format!("GET {}", path("resnet")), 200, &running).answers(
        &format!("DELETE {}", path("resnet")),
        200,
        &running,
    );
    let output = server.larder(&["job", "cancel", "resnet"]);
    assert_eq!(out(&output), "team-a/resnet cancelled; it was Running\n", "{}", said(&output));
    let body: Value = serde_json::from_str(&server.asked()[1].body).unwrap();
    assert_eq!(
        (&body["propagationPolicy"], &body["preconditions"]["uid"]),
        (&json!("Foreground"), &json!("uid-resnet"))
    );
    let output = server.larder(&["job", "cancel", "resnet", "--json"]);
    let json: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(json[0]["status"]["phase"], "Running");
    // A job that does not exist, and a job that exists.
    let missing = status(404, "NotFound", "no");
    let server = server.answers(&format!("GET {}", path("none")), 404, &missing);
    let output = server.larder(&["job", "cancel", "none", "resnet"]);
    assert_eq!(output.status.code(), Some(1));
    let said = said(&output);
    assert!(said.contains("there is no TrainingJob team-a/none: `larder job list -n team-a --kubeconfig "), "{said}");
    assert!(said.contains("team-a/resnet cancelled"), "{said}");
}

#[test]
fn cancel_waits_until_the_job_is_gone() {
    let running = job("resnet", json!({"phase": "Running"}));
    let server = Server::start()
        .answers_once(&format!("GET {}", path("resnet")), 200, &running.to_string())
        .answers_once(&format!("DELETE {}", path("resnet")), 200, &running.to_string())
        .answers_once(&format!("GET {}", path("resnet")), 200, &running.to_string())
        .answers_once(&format!("GET {JOBS}"), 200, &event("MODIFIED", &running))
        .answers(&format!("GET {}", path("resnet")), 404, &status(404, "NotFound", "gone"));
    let output = server.larder(&["job", "cancel", "resnet", "--wait"]);
    assert!(output.status.success(), "{}", said(&output));
    let lines = server.lines();
    assert_eq!(lines.last(), Some(&format!("GET {}", path("resnet"))), "{lines:?}");
    assert_eq!(lines.len(), 5, "{lines:?}");
}

#[test]
fn the_records_of_cancelled_jobs_are_printed_even_if_waiting_fails() {
    let denied = status(403, "Forbidden", "no");
    let server = ["resnet", "bert"].into_iter().fold(Server::start(), |server, name| {
        let running = job(name, json!({"phase": "Running"})).to_string();
        server
            .answers_once(&format!("GET {}", path(name)), 200, &running)
            .answers(&format!("DELETE {}", path(name)), 200, &running)
            .answers(&format!("GET {}", path(name)), 403, &denied)
    });
    let output = server.larder(&["job", "cancel", "resnet", "bert", "--json", "--wait"]);
    assert_eq!(output.status.code(), Some(1), "{}", said(&output));
    let json: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((&json[0]["metadata"]["name"], &json[1]["metadata"]["name"]), (&json!("resnet"), &json!("bert")));
    // The command waits for each job, even if waiting for the first fails.
    for name in ["resnet", "bert"] {
        let asked = server.lines().iter().filter(|line| **line == format!("GET {}", path(name))).count();
        assert_eq!(asked, 2, "{name}: {:?}", server.lines());
    }
}

#[test]
fn waiting_for_suspension_ends_when_the_pods_have_ended() {
    let suspended = |active: u32| {
        let role = json!({"name": "worker", "desired": 0, "active": active, "ready": 0, "done": 0});
        job("resnet", json!({"phase": "Suspended", "roles": [role]}))
    };
    let running = job("resnet", json!({"phase": "Running"})).to_string();
    let server = Server::start()
        .answers_once(&format!("GET {}", path("resnet")), 200, &running)
        .answers(&format!("PATCH {}", path("resnet")), 200, &running)
        .answers(&format!("GET {}", path("resnet")), 200, &suspended(4).to_string())
        .answers_once(&format!("GET {JOBS}"), 200, &event("MODIFIED", &suspended(1)))
        .answers_once(&format!("GET {JOBS}"), 200, &event("MODIFIED", &suspended(0)));
    let output = server.larder(&["job", "cancel", "resnet", "--suspend", "--wait"]);
    assert!(output.status.success(), "{}", said(&output));
    let watches = server.lines().iter().filter(|line| **line == format!("GET {JOBS}")).count();
    assert_eq!(watches, 2, "{:?}", server.lines());
}

#[test]
fn suspend_and_resume_change_one_field() {
    let running = job("resnet", json!({"phase": "Running"})).to_string();
    let succeeded = job("resnet", json!({"phase": "Succeeded"})).to_string();
    let server = Server::start()
        .answers_once(&format!("GET {}", path("resnet")), 200, &running)
        .answers_once(&format!("GET {}", path("resnet")), 200, &running)
        .answers(&format!("GET {}", path("resnet")), 200, &succeeded)
        .answers_once(
            &format!("PATCH {}", path("resnet")),
            200,
            &job("resnet", json!({"phase": "Running"})).to_string(),
        )
        .answers_once(
            &format!("PATCH {}", path("resnet")),
            200,
            &job("resnet", json!({"phase": "Suspended"})).to_string(),
        );
    let output = server.larder(&["job", "cancel", "resnet", "--suspend"]);
    assert_eq!(out(&output), "team-a/resnet suspended; it was Running\n", "{}", said(&output));
    assert_eq!(out(&server.larder(&["job", "resume", "resnet"])), "team-a/resnet is resumed and waits for room\n");
    let patches =
        || -> Vec<_> { server.asked().into_iter().filter(|asked| asked.line.starts_with("PATCH ")).collect() };
    let bodies: Vec<String> = patches().into_iter().map(|asked| asked.body).collect();
    assert_eq!(bodies, [r#"{"spec":{"suspend":true}}"#, r#"{"spec":{"suspend":false}}"#]);
    assert!(patches().iter().all(|asked| asked.line.contains("fieldManager=larder")), "{:?}", patches());
    let output = server.larder(&["job", "resume", "resnet"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(said(&output).contains("has ended (Succeeded): there is nothing to resume"), "{}", said(&output));
    assert_eq!(patches().len(), 2, "a job that has ended stays as it is");
}

#[test]
fn explain_names_the_missing_quota_and_the_job_that_ends_next() {
    let waits = json!({"type": "QuotaReserved", "status": "False", "reason": "QuotaUsed", "message": "",
        "lastTransitionTime": "2026-01-31T09:00:00Z"});
    let own = job("resnet", json!({"phase": "Queued", "conditions": [waits]}));
    let mut other = job("train-a", json!({"phase": "Running", "started": "2026-01-31T12:10:00Z"}));
    other["spec"]["activeDeadline"] = json!("2h");
    let queue = json!({
        "apiVersion": "larder.dev/v1alpha1", "kind": "Queue", "metadata": {"name": "vision"},
        "spec": {"namespaces": ["*"], "quota": {"nvidia.com/gpu": {"nominal": 8}}},
        "status": {"usage": {"nvidia.com/gpu": {"used": "6", "borrowed": "0"}}},
    });
    let denied = status(403, "Forbidden", "no");
    let of_job = |server: Server| server.answers(&format!("GET {}", path("resnet")), 200, &own.to_string());
    let server = of_job(Server::start())
        .answers("GET /apis/larder.dev/v1alpha1/trainingjobs", 200, &list("TrainingJob", &[own.clone(), other]))
        .answers("GET /apis/larder.dev/v1alpha1/queues", 200, &list("Queue", &[queue]))
        .answers("GET /apis/scheduling.k8s.io/v1/priorityclasses", 200, &list("PriorityClass", &[]));
    let output = server.larder(&["explain", "job", "resnet"]);
    let first = out(&output).lines().next().unwrap_or_default().to_owned();
    let expected = "team-a/resnet waits: queue vision uses 6 of 8 GPUs, needs 4; next to end: team-a/train-a (4), by 2026-01-31 \
                    14:10 UTC at its deadline.";
    assert_eq!(first, expected, "{}", said(&output));
    assert!(out(&output).contains("  QuotaReserved False QuotaUsed"), "{}", out(&output));
    let output = server.larder(&["explain", "job", "team-a/resnet", "--json"]);
    let json: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((&json["sentence"], &json["explanation"]["standing"]), (&json!(expected), &json!("waits")));
    // Without permission to read anything but the job, the explanation uses only the job.
    let server = of_job(Server::start())
        .answers("GET /apis/larder.dev/v1alpha1/trainingjobs", 403, &denied)
        .answers(&format!("GET {JOBS}"), 403, &denied)
        .answers("GET /apis/larder.dev/v1alpha1/queues", 403, &denied)
        .answers("GET /apis/scheduling.k8s.io/v1/priorityclasses", 403, &denied);
    let output = server.larder(&["explain", "job", "resnet"]);
    assert!(out(&output).starts_with("team-a/resnet waits: queue vision has no quota left."), "{}", said(&output));
    let missing = Server::start().answers(&format!("GET {}", path("resnet")), 404, &status(404, "NotFound", "no"));
    assert!(said(&missing.larder(&["explain", "job", "resnet"])).contains("there is no TrainingJob team-a/resnet"));
    let bad = missing.larder(&["explain", "job", "a/b/c"]);
    assert_eq!(bad.status.code(), Some(2));
    assert!(said(&bad).contains("NAME or NAMESPACE/NAME"), "{}", said(&bad));
}
