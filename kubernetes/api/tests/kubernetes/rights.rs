//! Even if RBAC grants more, larderd may write only the status of its own node's NodeCache, and the controller only
//! dataset labels.

use larder_api::names::{CONTROLLER_ACCOUNT, LARDERD_ACCOUNT, SYSTEM_NAMESPACE};
use larder_testkit::Cluster;
use serde_json::{Value, json};

use crate::{Server, TIMEOUT, bad_jobs, said};

impl Server {
    /// Grants an account every verb on a resource for this test, so that only the policies can reject a request.
    pub(crate) fn grant(&self, account: &str, group: &str, resource: &str) -> Granted<'_> {
        let name = format!("test-{account}-{resource}");
        self.apply(&json!({
            "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "metadata": {"name": name},
            "rules": [{"apiGroups": [group], "resources": [resource, format!("{resource}/status")], "verbs": ["*"]}]
        }));
        self.apply(&json!({
            "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding", "metadata": {"name": name},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": name},
            "subjects": [{"kind": "ServiceAccount", "name": account, "namespace": SYSTEM_NAMESPACE}]
        }));
        Granted { server: self, name }
    }

    /// A token of an account. With a pod, it is bound to the pod, like the token that the kubelet gives it.
    pub(crate) fn token(&self, account: &str, pod: Option<&str>) -> String {
        let mut args = vec!["create", "token", account, "-n", SYSTEM_NAMESPACE];
        if let Some(pod) = pod {
            args.extend(["--bound-object-kind", "Pod", "--bound-object-name", pod]);
        }
        self.cluster.kubectl_ok(&args).trim().to_owned()
    }

    /// Runs kubectl with a token. It must succeed, or fail with the policy message `refused`.
    pub(crate) fn expect(&self, token: &str, args: &[&str], refused: Option<&str>) {
        let output = self.cluster.kubectl(&[&["--token", token], args].concat());
        let said = said(&output);
        match refused {
            None => assert!(output.status.success(), "{args:?}: {said}"),
            Some(message) => assert!(!output.status.success() && said.contains(message), "{args:?}: {said}"),
        }
    }
}

pub(crate) struct Granted<'a> {
    server: &'a Server,
    name: String,
}

impl Drop for Granted<'_> {
    fn drop(&mut self) {
        self.server.cluster.kubectl(&["delete", "clusterrole,clusterrolebinding", &self.name]);
    }
}

fn node_cache(node: u32, spec: Value) -> Value {
    let metadata = json!({"name": format!("n{node}")});
    json!({"apiVersion": "larder.dev/v1alpha1", "kind": "NodeCache", "metadata": metadata, "spec": spec})
}

// SEMANTICS: K12
#[test]
fn a_larderd_writes_the_status_of_its_own_node_cache_and_nothing_else() {
    let server = Server::start("node-caches");
    let _granted = server.grant(LARDERD_ACCOUNT, "larder.dev", "nodecaches");
    let snapshot = "ab".repeat(32);
    let promise =
        json!({"uid": "u1", "name": "team-a/pets", "owner": "u1", "snapshot": snapshot, "bytes": 1_u64 << 40});
    let clean = json!({"snapshot": snapshot, "owner": "u1", "before": "2026-01-31T09:00:00Z"});
    for node in [1, 2] {
        server.apply(&node_cache(node, json!({"datasets": [promise], "clean": [clean]})));
    }
    server.apply(&json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "of-n1", "namespace": SYSTEM_NAMESPACE},
        "spec": {
            "nodeName": "n1", "serviceAccountName": LARDERD_ACCOUNT, "terminationGracePeriodSeconds": 0,
            "containers": [{
                "name": "main", "image": Cluster::BUSYBOX, "imagePullPolicy": "Never", "command": ["sleep", "3600"]
            }]
        }
    }));
    let own = server.token(LARDERD_ACCOUNT, Some("of-n1"));
    let of_no_pod = server.token(LARDERD_ACCOUNT, None);
    // A write of the status ignores changes of the spec.
    let status = json!({"spec": {"clean": []}, "status": {
        "capacityBytes": 5_u64 << 40, "promisedBytes": 1_u64 << 40, "freeBytes": 4_u64 << 40,
        "snapshots": [{"snapshot": snapshot, "bytes": 7, "wantedBytes": 9, "reservedBytes": 9, "mounts": 2}]
    }})
    .to_string();
    let patch = |name: &'static str, more: &[&'static str], patch: &str| -> Vec<String> {
        let args = [&["patch", "nodecache", name, "--type=merge"], more, &["-p", patch]].concat();
        args.into_iter().map(str::to_owned).collect()
    };
    let on_status = &["--subresource=status"][..];
    let empty = json!({"spec": {"datasets": []}}).to_string();
    let acted = json!({"spec": {"clean": null}}).to_string();
    let not_own = "larderd writes the NodeCache of its own node only";
    let not_status = "larderd writes the status of a NodeCache and nothing else";
    for (token, args, refused) in [
        (&own, patch("n1", on_status, &status), None),
        (&own, patch("n2", on_status, &status), Some(not_own)),
        (&of_no_pod, patch("n1", on_status, &status), Some(not_own)),
        (&own, patch("n1", &[], &empty), Some(not_status)),
        (&own, patch("n1", &[], &acted), Some(not_status)),
        (&own, vec!["delete".into(), "nodecache".into(), "n1".into()], Some(not_status)),
    ] {
        server.expect(token, &args.iter().map(String::as_str).collect::<Vec<_>>(), refused);
    }
    let kept = server.cluster.get_json(&["nodecache", "n1"]);
    assert_eq!((&kept["status"]["snapshots"][0]["mounts"], &kept["spec"]["datasets"][0]), (&json!(2), &promise));
    assert_eq!(kept["spec"]["clean"], json!([clean]));
    assert_eq!(server.cluster.get_json(&["nodecache", "n2"])["status"], Value::Null);
    server.cluster.kubectl_ok(&["delete", "nodecache", "n1", "n2"]);
    server.cluster.kubectl_ok(&["delete", "pod", "of-n1", "-n", SYSTEM_NAMESPACE, "--force", "--grace-period=0"]);
}

#[test]
fn an_entry_without_an_owner_is_the_one_of_the_empty_owner() {
    let server = Server::start("node-cache-owners");
    let snapshot = "ab".repeat(32);
    let before = |hour: u32| format!("2026-01-31T{hour:02}:00:00Z");
    let of_none = |hour: u32| json!({"snapshot": snapshot, "before": before(hour)});
    let of_one = json!({"snapshot": snapshot, "owner": "u1", "before": before(9)});
    for clean in [json!([of_none(8)]), json!([of_none(9), of_one])] {
        server.with_file(&node_cache(7, json!({"clean": clean})), |file| {
            server.cluster.kubectl_ok(&["apply", "--server-side", "--field-manager=larder-controller", "-f", file])
        });
    }
    let clean = server.cluster.get_json(&["nodecache", "n7"])["spec"]["clean"].clone();
    assert_eq!(clean, json!([{"snapshot": snapshot, "owner": "", "before": before(9)}, of_one]));
    server.cluster.kubectl_ok(&["delete", "nodecache", "n7"]);
}

#[test]
fn the_controller_changes_labels_of_datasets_and_nothing_else_of_a_node() {
    let server = Server::start("node-labels");
    let _granted = server.grant(CONTROLLER_ACCOUNT, "", "nodes");
    let token = server.token(CONTROLLER_ACCOUNT, None);
    let other_labels =
        "of a Node's labels, larder-controller changes those that begin with dataset.larder.dev/ and no others";
    let not_labels = "larder-controller changes labels of a Node and nothing else";
    let status = r#"{"status":{"phase":"Pending"}}"#;
    for (args, refused) in [
        (&["label", "node", "n1", "dataset.larder.dev/team-a.pets=90"][..], None),
        (&["label", "node", "n1", "dataset.larder.dev/team-a.pets=100", "--overwrite"], None),
        (&["label", "node", "n1", "gpu=a100"], Some(other_labels)),
        (&["label", "node", "n1", "kubernetes.io/hostname=n2", "--overwrite"], Some(other_labels)),
        (&["label", "node", "n1", "kubernetes.io/hostname-"], Some(other_labels)),
        (&["label", "node", "n1", "dataset.larder.dev.evil/x=1"], Some(other_labels)),
        (&["annotate", "node", "n1", "x=y"], Some(not_labels)),
        (&["patch", "node", "n1", "-p", r#"{"spec":{"unschedulable":true}}"#], Some(not_labels)),
        (
            &["patch", "node", "n1", "--subresource=status", "-p", status],
            Some("labels Nodes and does nothing else to them"),
        ),
        (&["delete", "node", "n1"], Some("labels Nodes and does nothing else to them")),
        (&["label", "node", "n1", "dataset.larder.dev/team-a.pets-"], None),
    ] {
        server.expect(&token, args, refused);
    }
    // Other users are not restricted.
    server.cluster.kubectl_ok(&["label", "node", "n1", "gpu=a100"]);
    server.cluster.kubectl_ok(&["label", "node", "n1", "gpu-"]);
}

// SEMANTICS: J3
#[test]
fn pods_of_jobs_are_made_by_the_controller_alone() {
    const NAMESPACE: &str = "job-pods";
    let server = bad_jobs::start(NAMESPACE);
    let _granted = server.grant(CONTROLLER_ACCOUNT, "", "pods");
    let token = server.token(CONTROLLER_ACCOUNT, None);
    let refused = "larder.dev/job is set by larder-controller alone";
    let of_job = bad_jobs::pod(NAMESPACE, json!({"larder.dev/job": "j"}));
    let output = server.try_apply(&of_job);
    assert!(!output.status.success() && said(&output).contains(refused), "{}", said(&output));
    server.apply(&bad_jobs::job(NAMESPACE, json!({})));
    let job = server.cluster.get_json(&["trainingjob", "j", "-n", NAMESPACE]);
    let mut own = of_job;
    own["metadata"]["labels"]["app.kubernetes.io/managed-by"] = "larder-controller".into();
    own["metadata"]["labels"]["larder.dev/job-uid"] = job["metadata"]["uid"].clone();
    own["metadata"]["labels"]["larder.dev/job-queue"] = "q".into();
    own["metadata"]["ownerReferences"] = json!([{
        "apiVersion": "larder.dev/v1alpha1",
        "kind": "TrainingJob",
        "name": "j",
        "uid": job["metadata"]["uid"],
        "controller": true,
    }]);
    server.with_file(&own, |file| server.expect(&token, &["create", "-f", file], None));
    // An administrator cannot do this, but can do everything else as before.
    let admin = |args: &[&str]| server.cluster.kubectl(&[&["-n", NAMESPACE], args].concat());
    for args in
        [&["label", "pod", "p", "larder.dev/job-"][..], &["label", "pod", "p", "larder.dev/job=k", "--overwrite"]]
    {
        let output = admin(args);
        assert!(!output.status.success() && said(&output).contains(refused), "{args:?}: {}", said(&output));
    }
    // Every label by which the pod counts, and its owner.
    for (label, value) in [
        ("larder.dev/job-uid", "larder.dev/job-uid-"),
        ("larder.dev/job-uid", "larder.dev/job-uid=u"),
        ("larder.dev/job-queue", "larder.dev/job-queue-"),
        ("larder.dev/job-queue", "larder.dev/job-queue=other"),
        ("larder.dev/job-flavor", "larder.dev/job-flavor=a100"),
        ("larder.dev/job-role", "larder.dev/job-role=ps"),
        ("larder.dev/job-index", "larder.dev/job-index=7"),
        ("larder.dev/job-attempt", "larder.dev/job-attempt=7"),
        ("larder.dev/job-serving", "larder.dev/job-serving=true"),
    ] {
        let output = admin(&["label", "pod", "p", value, "--overwrite"]);
        let refused = format!("{label} is set by larder-controller alone");
        assert!(!output.status.success() && said(&output).contains(&refused), "{value}: {}", said(&output));
    }
    let disown = ["patch", "pod", "p", "--type=merge", "-p", r#"{"metadata":{"ownerReferences":null}}"#];
    let output = admin(&disown);
    let of_owner = "larder-controller sets the owner of the pods of a TrainingJob";
    assert!(!output.status.success() && said(&output).contains(of_owner), "{}", said(&output));
    let collector = "--as=system:serviceaccount:kube-system:generic-garbage-collector";
    let as_collector = [&disown[..], &[collector, "--as-group=system:masters", "--dry-run=server"]].concat();
    let output = admin(&as_collector);
    assert!(output.status.success(), "the garbage collector: {}", said(&output));
    // No pod keeps its quota for ever.
    server.cluster.wait_for("the policy about deletions counts", TIMEOUT, || {
        let output = admin(&["delete", "pod", "p", "--grace-period=3601", "--wait=false", "--dry-run=server"]);
        !output.status.success() && said(&output).contains("at most 3600 seconds to end")
    });
    for args in [&["label", "pod", "p", "mine=1"][..], &["delete", "pod", "p", "--force", "--grace-period=0"]] {
        let output = admin(args);
        assert!(output.status.success(), "{args:?}: {}", said(&output));
    }
    server.apply(&bad_jobs::pod(NAMESPACE, json!({})));
    let output = admin(&["label", "pod", "p", "larder.dev/job=j"]);
    assert!(!output.status.success() && said(&output).contains(refused), "{}", said(&output));
    server.cluster.kubectl_ok(&["delete", "pod", "p", "-n", NAMESPACE, "--force", "--grace-period=0"]);
    server.cluster.kubectl_ok(&["delete", "trainingjob", "j", "-n", NAMESPACE]);
}

// SEMANTICS: J26
#[test]
fn only_the_controller_releases_a_pod_that_a_queue_holds() {
    const NAMESPACE: &str = "queued-pods";
    let server = bad_jobs::start(NAMESPACE);
    let _granted = server.grant(CONTROLLER_ACCOUNT, "", "pods");
    let token = server.token(CONTROLLER_ACCOUNT, None);
    let mut pod = bad_jobs::pod(NAMESPACE, json!({"larder.dev/queue": "vision"}));
    server.cluster.wait_for("the policy counts", TIMEOUT, || {
        let output = server.with_file(&pod, |file| server.cluster.kubectl(&["apply", "--dry-run=server", "-f", file]));
        !output.status.success() && said(&output).contains("spec.schedulingGates must have larder.dev/queue")
    });
    pod["spec"]["schedulingGates"] = json!([{"name": "larder.dev/queue"}]);
    pod["spec"]["containers"][0]["resources"] = json!({"requests": {"cpu": "1"}});
    for (field, value, refused) in [
        ("resourceClaims", json!([{"name": "gpu", "resourceClaimName": "gpu"}]), "cannot count their devices"),
        ("terminationGracePeriodSeconds", json!(3601), "must be at most 3600"),
    ] {
        let mut odd = pod.clone();
        odd["spec"][field] = value;
        let output = server.try_apply(&odd);
        assert!(!output.status.success() && said(&output).contains(refused), "{field}: {}", said(&output));
    }
    server.apply(&pod);
    let more = r#"{"spec":{"containers":[{"name":"main","resources":{"requests":{"cpu":"2"}}}]}}"#;
    let release = ["patch", "pod", "p", "-n", NAMESPACE, "--type=merge", "-p", r#"{"spec":{"schedulingGates":[]}}"#];
    for (args, refused) in [
        (&release[..], "spec.schedulingGates[larder.dev/queue] is removed by larder-controller alone"),
        (&["patch", "pod", "p", "-n", NAMESPACE, "--subresource=resize", "-p", more], "cannot be resized"),
        (&["label", "pod", "p", "-n", NAMESPACE, "larder.dev/queue-"], "larder.dev/queue is set when a pod is created"),
        (
            &["label", "pod", "p", "-n", NAMESPACE, "larder.dev/priority=urgent"],
            "larder.dev/priority is set when a pod is created",
        ),
    ] {
        let output = server.cluster.kubectl(args);
        assert!(!output.status.success() && said(&output).contains(refused), "{args:?}: {}", said(&output));
    }
    server.cluster.kubectl_ok(&["label", "pod", "p", "-n", NAMESPACE, "mine=1"]);
    server.expect(&token, &release, None);
    // A pod that has no node yet ends at once, whatever is asked for.
    server.cluster.wait_for("it has a node, and the policy about deletions counts", TIMEOUT, || {
        let delete = ["delete", "pod", "p", "-n", NAMESPACE, "--grace-period=3601", "--wait=false", "--dry-run=server"];
        let output = server.cluster.kubectl(&delete);
        !output.status.success() && said(&output).contains("at most 3600 seconds to end")
    });
    server.cluster.kubectl_ok(&["delete", "pod", "p", "-n", NAMESPACE, "--force", "--grace-period=0"]);
}
