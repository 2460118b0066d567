//! TrainingJobs, Queues and JobTypes with mistakes are rejected at apply, with the name of the field. Valid ones are
//! accepted.

use larder_api::names::SETTINGS;
use larder_testkit::repository;
use serde_json::{Value, json};

use crate::{Server, TIMEOUT, said};

fn object(mut base: Value, fields: Value) -> Value {
    base.as_object_mut().expect("an object").extend(fields.as_object().expect("an object").clone());
    base
}

/// A valid job of one pod, with these fields in its spec.
pub(super) fn job(namespace: &str, fields: Value) -> Value {
    let spec = object(json!({"type": "single", "roles": [role(json!({}))]}), fields);
    let metadata = json!({"namespace": namespace, "name": "j"});
    json!({"apiVersion": "larder.dev/v1alpha1", "kind": "TrainingJob", "metadata": metadata, "spec": spec})
}

/// The job's role, with these fields.
fn role(fields: Value) -> Value {
    object(json!({"name": "worker", "template": template(json!({}))}), fields)
}

fn template(container: Value) -> Value {
    json!({"spec": {"containers": [object(json!({"name": "main", "image": "image"}), container)]}})
}

/// A pod with these labels.
pub(super) fn pod(namespace: &str, labels: Value) -> Value {
    let metadata = json!({"namespace": namespace, "name": "p", "labels": labels});
    object(template(json!({})), json!({"apiVersion": "v1", "kind": "Pod", "metadata": metadata}))
}

fn limits(limits: Value) -> Value {
    json!({"roles": [role(json!({"template": template(json!({"resources": {"limits": limits}}))}))]})
}

fn queue(spec: Value) -> Value {
    json!({"apiVersion": "larder.dev/v1alpha1", "kind": "Queue", "metadata": {"name": "q"}, "spec": spec})
}

fn job_type(fields: Value) -> Value {
    let spec = object(json!({"roles": [{"name": "worker"}], "success": {"roles": ["worker"]}}), fields);
    json!({"apiVersion": "larder.dev/v1alpha1", "kind": "JobType", "metadata": {"name": "t"}, "spec": spec})
}

impl Server {
    /// Sets whether jobs need a queue.
    fn allow_jobs_without_queue(&self, may: bool) {
        let spec = json!({"spec": {"jobsWithoutQueue": may}}).to_string();
        self.cluster.kubectl_ok(&["patch", "lardersettings", SETTINGS, "--type=merge", "-p", &spec]);
    }

    /// Applies Larder's JobTypes and the policies about jobs.
    fn define_jobs(&self) {
        let folder = repository().join("deploy/components/jobs");
        let kinds = ["jobtypes", "queues", "trainingjobs"].map(|kind| format!("crd/{kind}.larder.dev"));
        let mut wait = vec!["wait", "--for=condition=Established"];
        wait.extend(kinds.iter().map(String::as_str));
        self.cluster.kubectl_ok(&wait);
        self.cluster.kubectl_ok(&["apply", "-k", &folder.join("types").display().to_string()]);
        self.cluster.kubectl_ok(&["apply", "-f", &folder.join("base/policies.yaml").display().to_string()]);
        // As the controller does.
        let types = json!({"status": {"jobTypes": ["single", "pytorch", "mpi"]}}).to_string();
        self.cluster.kubectl_ok(&[
            "patch",
            "lardersettings",
            SETTINGS,
            "--subresource=status",
            "--type=merge",
            "-p",
            &types,
        ]);
    }
}

/// A server with Larder's JobTypes, on which the policies for jobs are in effect.
pub(super) fn start(namespace: &str) -> Server {
    let server = Server::start(namespace);
    server.allow_jobs_without_queue(true);
    server.cluster.once("definitions-of-jobs", || server.define_jobs());
    // A policy takes effect some time after it was applied.
    server.cluster.wait_for("the policies about jobs count", TIMEOUT, || {
        let refused = |fields: Value| !server.try_apply(&job(namespace, fields)).status.success();
        refused(json!({"roles": [role(json!({"name": "chief"}))]}))
            && refused(limits(json!({"a.b/c": "500m"})))
            && refused(json!({"clusters": ["mars"]}))
            && !refused(json!({}))
            && !server.try_apply(&pod(namespace, json!({"larder.dev/job": "j"}))).status.success()
    });
    server
}

#[test]
fn a_job_of_a_type_that_is_not_known_yet_is_accepted_with_a_warning() {
    const NAMESPACE: &str = "early-jobs";
    let server = start(NAMESPACE);
    server.cluster.wait_for("the policy about types counts", TIMEOUT, || {
        let applied = server.try_apply(&job(NAMESPACE, json!({"type": "nobody-knows"})));
        assert!(applied.status.success(), "{}", said(&applied));
        said(&applied).contains("spec.type: there is no JobType nobody-knows yet: the job waits until it is created, or correct the name; existing JobTypes: single")
    });
}

#[test]
fn a_bad_job_is_refused_at_apply_by_its_field() {
    const NAMESPACE: &str = "bad-jobs";
    let server = start(NAMESPACE);
    let roles = |roles: Value| json!({"roles": roles});
    let dataset = |fields: Value| json!({"datasets": [object(json!({"name": "d", "mountPath": "/d"}), fields)]});
    let many: Vec<_> = (0..17).map(|at| role(json!({"name": format!("r{at}")}))).collect();
    let script = json!([role(json!({"template": template(json!({"args": ["x".repeat(65_536)]}))}))]);
    let mut long = template(json!({}));
    long["spec"]["terminationGracePeriodSeconds"] = 3601.into();
    let bad: &[(&str, &str, Value)] = &[
        ("spec.roles[].template", "at most 65536 characters together, and these have 65", roles(script)),
        (
            "spec.roles[].template.spec.terminationGracePeriodSeconds",
            "must be at most 3600",
            roles(json!([role(json!({"template": long}))])),
        ),
        ("spec.type", "must be the name", json!({"type": "No Body"})),
        ("spec.type", "Required value", json!({"type": null})),
        ("spec.roles", "at least 1", roles(json!([]))),
        ("spec.roles", "at most 16", roles(json!(many))),
        ("spec.roles[1]", "Duplicate value", roles(json!([role(json!({})), role(json!({}))]))),
        ("spec.roles", "have worker", roles(json!([role(json!({})), role(json!({"name": "chief"}))]))),
        ("spec.roles", "lacks worker", json!({"type": "mpi", "roles": [role(json!({"name": "launcher"}))]})),
        ("spec.roles[].min", "must not be more", roles(json!([role(json!({"replicas": 2, "min": 3}))]))),
        ("spec.roles[].max", "must not be less", roles(json!([role(json!({"replicas": 2, "max": 1}))]))),
        ("spec.roles[0].min", "greater than or equal to 1", roles(json!([role(json!({"min": 0}))]))),
        ("spec.roles[0].replicas", "greater than or equal to 1", roles(json!([role(json!({"replicas": 0}))]))),
        ("spec.roles[].name", "must begin with a letter", roles(json!([role(json!({"name": "1a"}))]))),
        (
            "spec.roles[].startsAfter[].role",
            "another role",
            roles(json!([role(json!({"startsAfter": [{"role": "worker"}]}))])),
        ),
        (
            "spec.restart.rules[].roles",
            "names of spec.roles",
            json!({"restart": {"rules": [{"roles": ["chief"], "action": "fail"}]}}),
        ),
        (
            "spec.restart.rules[].exitCodes",
            "such as 2,126-127",
            json!({"restart": {"rules": [{"exitCodes": "1;2", "action": "fail"}]}}),
        ),
        ("spec.restart.rules[0].action", "supported values", json!({"restart": {"rules": [{"action": "explode"}]}})),
        ("spec.restart.forgiveAfter", "such as 6h", json!({"restart": {"forgiveAfter": "soon"}})),
        ("spec.sweep", "one of grid, list and random", json!({"sweep": {}})),
        (
            "spec.sweep",
            "one of grid, list and random",
            json!({"sweep": {"list": [{"LR": "1"}], "grid": [{"name": "LR", "values": ["1"]}]}}),
        ),
        (
            "spec.sweep.random.trials",
            "less than or equal to 10000",
            json!({"sweep": {"random": {"trials": 1_000_000_000, "parameters": [{"name": "LR", "values": ["1"]}]}}}),
        ),
        (
            "spec.sweep.random.parameters[]",
            "either values, or min and max",
            json!({"sweep": {"random": {"trials": 1, "parameters": [{"name": "LR", "min": "1"}]}}}),
        ),
        (
            "spec.sweep.grid[].name",
            "name of a variable",
            json!({"sweep": {"grid": [{"name": "a-b", "values": ["1"]}]}}),
        ),
        (
            "spec.sweep",
            "at most 131072 characters, and this one has 16",
            json!({"sweep": {"list": vec![json!({"LR": "x".repeat(256)}); 600]}}),
        ),
        (
            "spec.parameters",
            "cannot be combined with spec.sweep",
            json!({"sweep": {"list": [{"LR": "1"}]}, "parameters": [{"name": "BS", "value": "1"}]}),
        ),
        (
            "spec.roles[0].template.spec.containers",
            "at least 1",
            roles(json!([role(json!({"template": {"spec": {"containers": []}}}))])),
        ),
        ("spec.roles[0].template.spec", "Required value", roles(json!([role(json!({"template": {}}))]))),
        ("spec.roles[0].template", "Required value", roles(json!([{"name": "worker"}]))),
        ("nvidia.com/gpu", "greater than or equal to 0", limits(json!({"nvidia.com/gpu": -1}))),
        ("nvidia.com/gpu", "should match", limits(json!({"nvidia.com/gpu": "-1"}))),
        ("spec.roles[].template", "whole", limits(json!({"nvidia.com/gpu": "500m"}))),
        ("spec.roles[].template", "whole", limits(json!({"amd.com/gpu": "0.5"}))),
        ("limits.cpu", "should match", limits(json!({"cpu": "many"}))),
        ("spec.datasets[].name", "must be the name", dataset(json!({"name": "A"}))),
        ("spec.datasets[].mountPath", "absolute path", dataset(json!({"mountPath": "data"}))),
        ("spec.datasets[].mountPath", "absolute path", dataset(json!({"mountPath": "/a/../b"}))),
        ("spec.datasets[0].minWarm", "less than or equal to 100", dataset(json!({"minWarm": 101}))),
        ("spec.datasets[].warmTimeout", "must be a time", dataset(json!({"warmTimeout": "0s"}))),
        (
            "spec.datasets[].warmTimeout",
            "must be at most 1h without spec.queue",
            dataset(json!({"warmTimeout": "61m"})),
        ),
        ("spec.gang.timeout", "must be at most 1h without spec.queue", json!({"gang": {"timeout": "1d"}})),
        ("spec.gang.timeout", "must be at most 30d", json!({"gang": {"timeout": "31d"}, "queue": "vision"})),
        (
            "spec.datasets[].mountPath",
            "different for each",
            json!({"datasets": [{"name": "a", "mountPath": "/d"}, {"name": "b", "mountPath": "/d"}]}),
        ),
        ("spec.queue", "must be the name", json!({"queue": "My Queue"})),
        ("spec.gang.backend", "supported values", json!({"gang": {"backend": "volcano"}})),
        ("spec.gang.timeout", "must be a time", json!({"gang": {"timeout": "soon"}})),
        ("spec.gang.topologyKey", "key of a label", json!({"gang": {"topologyKey": "a b"}})),
        ("spec.restart.scope", "supported values", json!({"restart": {"scope": "pod"}})),
        ("spec.restart.nodeLostAfter", "must be a time", json!({"restart": {"nodeLostAfter": "0s"}})),
        (
            "spec.restart.nodeLostAfter",
            "cannot be combined",
            json!({"restart": {"nodeLostAfter": "5m", "atMostOnce": true}}),
        ),
        ("spec.activeDeadline", "must be a time", json!({"activeDeadline": "0h"})),
        ("spec.ttlAfterFinished", "must be a time", json!({"ttlAfterFinished": "1w"})),
        ("spec.keepPods", "supported values", json!({"keepPods": "some"})),
        ("spec.managedBy", "with its domain", json!({"managedBy": "me"})),
        ("spec.clusters", "\"any\" alone", json!({"clusters": ["any", "west"]})),
        ("spec.clusters", "there is no Cluster mars", json!({"clusters": ["here", "mars"]})),
        ("spec.clusters", "names of Clusters", json!({"clusters": ["West Coast"]})),
        ("spec.clusters", "one of them moves the job", json!({"clusters": ["west"], "managedBy": "example.org/x"})),
        ("spec.failover", "a time of at least 2m", json!({"clusters": ["west"], "failover": "119s"})),
        ("spec.failover", "a time of at least 2m", json!({"clusters": ["west"], "failover": "1m"})),
        ("spec.failover", "requires spec.clusters", json!({"failover": "10m"})),
        ("spec.quue", "unknown field", json!({"quue": "vision"})),
        (
            "spec.roles[0].template.spec.containers[0].comand",
            "unknown field",
            roles(json!([role(json!({"template": template(json!({"comand": ["a"]}))}))])),
        ),
    ];
    for (field, what, fields) in bad {
        let output = server.try_apply(&job(NAMESPACE, fields.clone()));
        let said = said(&output);
        assert!(!output.status.success() && said.contains(field) && said.contains(what), "{field} {what}: {said}");
    }
    let mut two_queues = job(NAMESPACE, json!({"queue": "vision"}));
    two_queues["metadata"]["labels"] = json!({"kueue.x-k8s.io/queue-name": "main"});
    let output = server.try_apply(&two_queues);
    assert!(!output.status.success() && said(&output).contains("spec.queue cannot be combined"), "{}", said(&output));
    for name in ["1a", "a.b", &"n".repeat(64)] {
        let named = object(job(NAMESPACE, json!({})), json!({"metadata": {"namespace": NAMESPACE, "name": name}}));
        let output = server.try_apply(&named);
        assert!(!output.status.success() && said(&output).contains("metadata.name"), "{name}: {}", said(&output));
    }
}

// SEMANTICS: J13
#[test]
fn a_job_needs_a_queue_which_its_namespace_or_the_administrator_may_spare_it() {
    const NAMESPACE: &str = "unqueued-jobs";
    let server = start(NAMESPACE);
    let file = repository().join("deploy/components/jobs/base/default-queue.yaml").display().to_string();
    server.cluster.kubectl_ok(&["apply", "-f", &file]);
    server.allow_jobs_without_queue(false);
    let refused = "spec.queue: name a Queue of the namespace unqueued-jobs";
    let applies = |job: &Value| {
        server.with_file(job, |file| server.cluster.kubectl(&["apply", "--dry-run=server", "-o", "json", "-f", file]))
    };
    server.cluster.wait_for("the policy counts", TIMEOUT, || {
        let output = applies(&job(NAMESPACE, json!({})));
        !output.status.success() && said(&output).contains(refused)
    });
    let mut of_kueue = job(NAMESPACE, json!({}));
    of_kueue["metadata"]["labels"] = json!({"kueue.x-k8s.io/queue-name": "main"});
    let of_others = job(NAMESPACE, json!({"managedBy": "example.org/other"}));
    for job in [&job(NAMESPACE, json!({"queue": "vision"})), &of_kueue, &of_others] {
        let output = applies(job);
        assert!(output.status.success(), "{job}: {}", said(&output));
    }
    // A job does not leave Kueue's queue either.
    server.apply(&of_kueue);
    let unlabel = ["label", "tj", "j", "-n", NAMESPACE, "kueue.x-k8s.io/queue-name-"];
    let output = server.cluster.kubectl(&unlabel);
    assert!(!output.status.success() && said(&output).contains(refused), "{}", said(&output));
    server.cluster.kubectl_ok(&["delete", "tj", "j", "-n", NAMESPACE]);
    // The namespace names a queue for its jobs.
    server.cluster.kubectl_ok(&["annotate", "namespace", NAMESPACE, "larder.dev/default-queue=vision"]);
    let queue_of = |job: &Value| {
        let output = applies(job);
        let applied: Value = serde_json::from_slice(&output.stdout).unwrap_or_default();
        applied["spec"]["queue"].as_str().map(str::to_owned)
    };
    server.cluster.wait_for("the job gets its queue", TIMEOUT, || {
        queue_of(&job(NAMESPACE, json!({}))).as_deref() == Some("vision")
    });
    assert_eq!(queue_of(&job(NAMESPACE, json!({"queue": "speech"}))).as_deref(), Some("speech"));
    assert_eq!(queue_of(&of_kueue), None);
    // The administrator allows jobs without a queue.
    server.cluster.kubectl_ok(&["annotate", "namespace", NAMESPACE, "larder.dev/default-queue-"]);
    server.allow_jobs_without_queue(true);
    server.cluster.wait_for("a job needs no queue", TIMEOUT, || {
        let output = applies(&job(NAMESPACE, json!({})));
        let applied: Value = serde_json::from_slice(&output.stdout).unwrap_or_default();
        output.status.success() && applied["spec"]["queue"].is_null()
    });
}

#[test]
fn a_good_job_is_accepted_and_what_its_pods_have_cannot_be_changed() {
    const NAMESPACE: &str = "good-jobs";
    let server = start(NAMESPACE);
    let full = json!({
        "type": "pytorch",
        "roles": [role(json!({"replicas": 4, "min": 2, "max": 8, "template": template(json!({"resources": {
            "limits": {"cpu": 4, "memory": "8Gi", "nvidia.com/gpu": 1, "hugepages-2Mi": "1Gi"}, "requests": {"cpu": "3500m"}
        }}))}))],
        "datasets": [{"name": "pets", "mountPath": "/data", "minWarm": 0, "warmTimeout": "30m"}],
        "queue": "vision", "gang": {"backend": "builtin", "timeout": "1m", "topologyKey": "topology.kubernetes.io/zone"},
        "restart": {
            "scope": "worker", "maxCrashes": 0, "nodeLostAfter": "5m", "atMostOnce": false, "forgiveAfter": "1h",
            "inPlace": 3, "rules": [{"roles": ["worker"], "exitCodes": "2, 126-127", "action": "restartRole"}],
        },
        "parameters": [{"name": "LR", "value": "0.1"}],
        "activeDeadline": "7d", "ttlAfterFinished": "0s",
        "keepPods": "all", "managedBy": "kueue.x-k8s.io/multikueue",
    });
    let applied = server.try_apply(&job(NAMESPACE, full.clone()));
    // kubectl prints no warnings about the definitions, such as an unknown format.
    assert!(applied.status.success() && applied.stderr.is_empty(), "{}", said(&applied));
    server.apply(&job(NAMESPACE, full));
    let patched = |patch: Value| {
        let patch = patch.to_string();
        server.cluster.kubectl(&["patch", "tj", "j", "-n", NAMESPACE, "--type=merge", "-p", &patch])
    };
    let stored = server.cluster.get_json(&["tj", "j", "-n", NAMESPACE])["spec"]["roles"][0].clone();
    let roles = |fields: Value| json!({"spec": {"roles": [object(stored.clone(), fields)]}});
    for (said_of, patch) in [
        ("spec.type cannot be changed", json!({"spec": {"type": "single"}})),
        ("spec.queue cannot be changed", json!({"spec": {"queue": null}})),
        ("spec.managedBy cannot be changed", json!({"spec": {"managedBy": "a.b/c"}})),
        ("spec.datasets cannot be changed", json!({"spec": {"datasets": []}})),
        ("spec.gang cannot be changed", json!({"spec": {"gang": {"timeout": "2m"}}})),
        ("spec.parameters cannot be changed", json!({"spec": {"parameters": null}})),
        ("spec.sweep cannot be added", json!({"spec": {"parameters": null, "sweep": {"list": [{"LR": "1"}]}}})),
        ("spec.roles[].template cannot be changed", roles(json!({"template": template(json!({"image": "other"}))}))),
        ("spec.roles cannot get or lose a role", roles(json!({"name": "master"}))),
    ] {
        let output = patched(patch);
        assert!(!output.status.success() && said(&output).contains(said_of), "{said_of}: {}", said(&output));
    }
    for patch in [
        json!({"spec": {"suspend": true, "activeDeadline": null, "restart": {"maxCrashes": 5}}}),
        roles(json!({"replicas": 3, "min": 1, "max": 3})),
        json!({"metadata": {"annotations": {"a": "b"}}}),
    ] {
        let output = patched(patch.clone());
        assert!(output.status.success(), "{patch}: {}", said(&output));
    }
    let columns = server.cluster.kubectl_ok(&["get", "tj", "-n", NAMESPACE]);
    let head = columns.lines().next().unwrap_or_default().split_whitespace().collect::<Vec<_>>();
    assert_eq!(head, ["NAME", "TYPE", "QUEUE", "PHASE", "READY", "DATA", "RESTARTS", "WHY", "AGE"]);
    server.cluster.kubectl_ok(&["delete", "tj", "j", "-n", NAMESPACE]);
}

// SEMANTICS: J25
#[test]
fn two_flavors_of_a_node_are_refused_at_apply() {
    let server = start("flavors");
    let patched = |flavors: Value| {
        let spec = json!({"spec": {"flavors": flavors}}).to_string();
        server.cluster.kubectl(&["patch", "lardersettings", SETTINGS, "--type=merge", "--dry-run=server", "-p", &spec])
    };
    let flavor = |name: &str, labels: Value| json!({"name": name, "nodeLabels": labels});
    let h100 = flavor("h100", json!({"gpu": "h100", "pool": "reserved"}));
    let output =
        patched(json!([h100, flavor("a100", json!({"gpu": "a100"})), flavor("spot", json!({"pool": "spot"}))]));
    assert!(
        !output.status.success() && said(&output).contains("a node may be of one flavor only"),
        "{}",
        said(&output)
    );
    let output = patched(json!([flavor("all", json!({}))]));
    assert!(!output.status.success() && said(&output).contains("nodeLabels"), "{}", said(&output));
    for other in [flavor("a100", json!({"gpu": "a100"})), flavor("spot", json!({"pool": "spot"}))] {
        let output = patched(json!([h100, other]));
        assert!(output.status.success(), "{}", said(&output));
    }
}

#[test]
fn the_trials_of_a_sweep_cannot_be_changed_but_how_many_run() {
    const NAMESPACE: &str = "sweeps";
    let server = start(NAMESPACE);
    let parameters = json!([
        {"name": "LR", "min": "1e-5", "max": "0.1", "scale": "log"}, {"name": "BS", "values": ["32", "64"]},
    ]);
    let random = json!({"trials": 10_000, "seed": 7, "parameters": parameters});
    let objective = json!({"goal": "minimize", "target": "0.01", "patience": 20});
    let sweep = json!({"random": random, "parallelism": 3, "objective": objective, "maxFailed": 5});
    server.apply(&job(NAMESPACE, json!({"sweep": sweep})));
    for (refused, patch) in [
        (Some("spec.sweep.random cannot be changed"), json!({"spec": {"sweep": {"random": {"seed": 8}}}})),
        (Some("spec.sweep cannot be added or removed"), json!({"spec": {"sweep": null}})),
        (Some("objective.goal cannot be changed"), json!({"spec": {"sweep": {"objective": {"goal": "maximize"}}}})),
        (Some("objective cannot be added or removed"), json!({"spec": {"sweep": {"objective": null}}})),
        (None, json!({"spec": {"sweep": {"objective": {"target": "0.02", "patience": 5}}}})),
        (None, json!({"spec": {"sweep": {"parallelism": 30, "maxFailed": 7}}})),
    ] {
        let text = patch.to_string();
        let output = server.cluster.kubectl(&["patch", "tj", "j", "-n", NAMESPACE, "--type=merge", "-p", &text]);
        assert_eq!(output.status.success(), refused.is_none(), "{patch}: {}", said(&output));
        assert!(refused.is_none_or(|words| said(&output).contains(words)), "{patch}: {}", said(&output));
    }
    server.cluster.kubectl_ok(&["delete", "tj", "j", "-n", NAMESPACE]);
}

// SEMANTICS: J36
#[test]
fn the_number_of_pods_that_have_shares_of_a_dataset_cannot_be_changed() {
    const NAMESPACE: &str = "shares";
    let server = start(NAMESPACE);
    let more = r#"[{"op":"replace","path":"/spec/roles/0/replicas","value":3}]"#;
    let patch = ["patch", "tj", "j", "-n", NAMESPACE, "--type=json", "-p", more];
    for split in [true, false] {
        let datasets = json!([{"name": "pets", "mountPath": "/data", "split": split}]);
        server.apply(&job(NAMESPACE, json!({"datasets": datasets})));
        let output = server.cluster.kubectl(&patch);
        assert_eq!(output.status.success(), !split, "{}", said(&output));
        assert!(!split || said(&output).contains("spec.roles[].replicas cannot be changed"), "{}", said(&output));
        server.cluster.kubectl_ok(&["delete", "tj", "j", "-n", NAMESPACE]);
    }
}

#[test]
fn a_bad_queue_or_type_is_refused_at_apply_by_its_field() {
    let server = start("bad-queues");
    let quota = |quota: Value| queue(json!({"cohort": "c", "quota": {"nvidia.com/gpu": quota}}));
    let flavor = |name: &str, quota: Value| json!({"name": name, "quota": {"nvidia.com/gpu": quota}});
    let launcher = json!({"role": "worker", "starts": ["worker"], "port": 7422});
    let environment =
        |fields: Value| job_type(json!({"environment": [object(json!({"name": "A", "value": ""}), fields)]}));
    let file = |fields: Value| job_type(json!({"files": [object(json!({"path": "/etc/a/b", "content": ""}), fields)]}));
    for (field, what, object) in [
        ("spec.namespaces", "names of namespaces", queue(json!({"namespaces": ["Team A"]}))),
        ("spec.cohort", "lower-case", queue(json!({"cohort": "A"}))),
        ("spec.cohort", "is missing", queue(json!({"quota": {"cpu": {"nominal": 1, "lend": 1}}}))),
        ("spec.cohort", "is missing", queue(json!({"flavors": [flavor("h100", json!({"nominal": 1, "borrow": 1}))]}))),
        ("spec.cohort", "cannot be combined", queue(json!({"cohort": "a", "parent": "b"}))),
        ("spec.parent", "must be another queue", queue(json!({"parent": "q"}))),
        ("spec.parent", "name of a Queue", queue(json!({"parent": "A"}))),
        ("spec.preemption.withinQueue", "supported values", queue(json!({"preemption": {"withinQueue": "any"}}))),
        ("spec.preemption.reclaim", "supported values", queue(json!({"preemption": {"reclaim": "some"}}))),
        ("spec.flavors[].quota", "must have the resources", queue(json!({"flavors": [{"name": "h100", "quota": {}}]}))),
        (
            "spec.flavors[1]",
            "Duplicate value",
            queue(json!({"flavors": [
            flavor("h100", json!({"nominal": 1})), flavor("h100", json!({"nominal": 1}))]})),
        ),
        ("spec.quota[].nominal", "at least 0", queue(json!({"flavors": [flavor("h100", json!({"nominal": -1}))]}))),
        ("spec.weight", "greater than or equal to 1", queue(json!({"weight": 0}))),
        ("spec.stop", "supported values", queue(json!({"stop": "now"}))),
        ("spec.quota[].nominal", "at least 0", quota(json!({"nominal": -1}))),
        ("spec.quota[].nominal", "at least 0", quota(json!({"nominal": "-1Gi"}))),
        ("spec.quota[].borrow", "at least 0", quota(json!({"nominal": 1, "borrow": -1}))),
        ("spec.quota[].lend", "at least 0", quota(json!({"nominal": 1, "lend": "-1"}))),
        ("nominal", "should match", quota(json!({"nominal": "many"}))),
        ("nominal", "Required value", quota(json!({}))),
        ("spec.qouta", "unknown field", queue(json!({"qouta": {}}))),
        ("spec.roles", "at least 1", job_type(json!({"roles": [], "success": {"roles": ["a"]}}))),
        ("spec.roles[1]", "Duplicate value", job_type(json!({"roles": [{"name": "worker"}, {"name": "worker"}]}))),
        ("spec.roles[].name", "must begin", job_type(json!({"roles": [{"name": "worker"}, {"name": "A"}]}))),
        (
            "spec.roles[].ports[].name",
            "must consist",
            job_type(json!({"roles": [
                {"name": "worker", "ports": [{"name": "A", "port": 1}]}
            ]})),
        ),
        ("spec.success", "Required value", job_type(json!({"success": null}))),
        ("spec.success.roles", "names of spec.roles", job_type(json!({"success": {"roles": ["chief"]}}))),
        (
            "spec.success.indexes",
            "supported values",
            job_type(json!({"success": {"roles": ["worker"], "indexes": "last"}})),
        ),
        (
            "spec.success.then",
            "supported values",
            job_type(json!({"success": {"roles": ["worker"], "then": "delete"}})),
        ),
        ("spec.environment[].name", "name of a variable", environment(json!({"name": "A-B"}))),
        ("spec.environment[].roles", "names of spec.roles", environment(json!({"roles": ["ps"]}))),
        ("spec.files[].path", "whole path", file(json!({"path": "/passwd"}))),
        ("spec.files[].path", "whole path", file(json!({"path": "/etc/../b"}))),
        ("spec.files[].roles", "names of spec.roles", file(json!({"roles": ["ps"]}))),
        ("spec.service", "is missing", job_type(json!({"launcher": launcher}))),
        (
            "spec.launcher.role",
            "names of spec.roles",
            job_type(json!({"service": {}, "launcher": object(launcher.clone(), json!({"role": "chief"}))})),
        ),
        ("spec.restart.scope", "supported values", job_type(json!({"restart": {"scope": "all"}}))),
        ("spec.performance.sharedMemory", "a percentage", job_type(json!({"performance": {"sharedMemory": "0%"}}))),
        ("spec.performance.memory", "a size", job_type(json!({"performance": {"memory": "0"}}))),
    ] {
        let output = server.try_apply(&object);
        let said = said(&output);
        assert!(!output.status.success() && said.contains(field) && said.contains(what), "{field} {what}: {said}");
    }
    let sound = queue(json!({
        "namespaces": ["team-a", "*"], "cohort": "research", "weight": 2, "stop": "drain",
        "quota": {"nvidia.com/gpu": {"nominal": 8, "borrow": "4", "lend": 0}, "memory": {"nominal": "1.5Ti"}}
    }));
    for object in [sound, queue(json!({})), job_type(json!({}))] {
        let output = server.try_apply(&object);
        assert!(output.status.success() && output.stderr.is_empty(), "{object}: {}", said(&output));
    }
}
