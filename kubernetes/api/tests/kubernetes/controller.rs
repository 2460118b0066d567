//! Policies hold the account of larder-controller to its work, even if RBAC grants more: each refuses the theft that it
//! is for, and accepts what the controller does. That the controller's own objects pass is tested with the controller.

use larder_api::names::{CONTROLLER_ACCOUNT, SYSTEM_NAMESPACE};
use larder_testkit::repository;
use serde_json::{Value, json};

use crate::{Server, TIMEOUT, bad_jobs, dataset, said};

/// A change of an object.
type Change = fn(&mut Value);

impl Server {
    /// Tries to create an object with a token, as a dry run. It must be accepted, or refused with the message.
    fn creates(&self, token: &str, object: &Value, refused: Option<&str>) {
        self.with_file(object, |file| self.expect(token, &["create", "--dry-run=server", "-f", file], refused));
    }

    /// As [`Self::creates`], with the sound object and with thefts: changes of it that a message refuses.
    fn creates_only(&self, token: &str, sound: &Value, thefts: &[(Change, &str)]) {
        let changed = |change: &Change| {
            let mut object = sound.clone();
            change(&mut object);
            object
        };
        // A policy takes effect some time after it was applied.
        if let Some((change, message)) = thefts.first() {
            self.cluster.wait_for("the policy counts", TIMEOUT, || {
                let output = self.with_file(&changed(change), |file| {
                    self.cluster.kubectl(&["--token", token, "create", "--dry-run=server", "-f", file])
                });
                !output.status.success() && said(&output).contains(message)
            });
        }
        for (change, message) in thefts {
            self.creates(token, &changed(change), Some(message));
        }
        self.creates(token, sound, None);
        // Other users are not restricted.
        for (change, _) in thefts {
            let output = self
                .with_file(&changed(change), |file| self.cluster.kubectl(&["create", "--dry-run=server", "-f", file]));
            assert!(!said(&output).contains("larder-controller-"), "{}", said(&output));
        }
    }

    /// Runs kubectl in a namespace with a token. It must succeed, or be refused with the message.
    fn runs(&self, token: &str, namespace: &str, args: &[&str], refused: Option<&str>) {
        self.expect(token, &[&["-n", namespace], args].concat(), refused);
    }
}

/// The metadata of an object that the controller creates for a Dataset.
fn of_dataset(namespace: &str, role: &str) -> Value {
    json!({
        "name": "theft", "namespace": namespace,
        "labels": {
            "app.kubernetes.io/managed-by": "larder-controller", "app.kubernetes.io/part-of": "larder",
            "larder.dev/dataset-uid": "u", "larder.dev/role": role,
        },
        "ownerReferences": [{
            "apiVersion": "larder.dev/v1alpha1", "kind": "Dataset", "name": "pets", "uid": "u", "controller": true,
        }],
    })
}

/// The metadata of an object that the controller creates for a TrainingJob.
fn of_job(namespace: &str) -> Value {
    json!({
        "name": "theft", "namespace": namespace,
        "labels": {"app.kubernetes.io/managed-by": "larder-controller", "larder.dev/job": "j", "larder.dev/job-uid": "u"},
        "ownerReferences": [{
            "apiVersion": "larder.dev/v1alpha1", "kind": "TrainingJob", "name": "j", "uid": "u", "controller": true,
        }],
    })
}

fn attributes_of(volume: &mut Value) -> &mut Value {
    &mut volume["spec"]["csi"]["volumeAttributes"]
}

// SEMANTICS: K19
#[test]
fn volumes_are_of_larders_driver() {
    let server = Server::start("controller-volumes");
    let _granted = server.grant(CONTROLLER_ACCOUNT, "", "persistentvolumes");
    let token = server.token(CONTROLLER_ACCOUNT, None);
    let mut metadata = of_dataset("", "volume");
    metadata.as_object_mut().expect("an object").retain(|field, _| field == "name" || field == "labels");
    metadata["annotations"] = json!({"larder.dev/dataset": "controller-volumes/pets"});
    let volume = json!({
        "apiVersion": "v1", "kind": "PersistentVolume", "metadata": metadata,
        "spec": {
            "storageClassName": "larder", "accessModes": ["ReadOnlyMany"], "capacity": {"storage": "1Pi"},
            "persistentVolumeReclaimPolicy": "Retain",
            "csi": {
                "driver": "csi.larder.dev", "volumeHandle": "v", "readOnly": true,
                "volumeAttributes": {
                    "source": "s3://b", "endpoint": "http://s3:9000", "region": "r", "cacheSize": "1GiB", "policy": "nr",
                    "placement": "local", "identity": "secret", "owner": "u", "datasetNamespace": "controller-volumes",
                },
                "nodePublishSecretRef": {"namespace": "controller-volumes", "name": "keys"},
            },
        },
    });
    let others = "larder-controller writes PersistentVolumes of csi.larder.dev with its label and no others";
    let more = "volumes that are read-only and name at most the Secret that they are read with";
    let attributes = "volumes with the attributes of a Dataset, which do not include an identity of pods";
    let secret = "volumes that are read with a Secret of their Dataset's namespace";
    server.creates_only(
        &token,
        &volume,
        &[
            (
                |volume| {
                    let spec = volume["spec"].as_object_mut().expect("an object");
                    spec.remove("csi");
                    spec.insert("hostPath".to_owned(), json!({"path": "/"}));
                },
                others,
            ),
            (|volume| volume["spec"]["csi"]["driver"] = "smb.csi.k8s.io".into(), others),
            (|volume| volume["metadata"]["labels"] = json!({}), others),
            (|volume| volume["spec"]["csi"]["readOnly"] = false.into(), more),
            (|volume| volume["spec"]["mountOptions"] = json!(["suid"]), more),
            (
                |volume| {
                    volume["spec"]["csi"]["nodeStageSecretRef"] = json!({"namespace": "kube-system", "name": "s"});
                },
                more,
            ),
            (|volume| attributes_of(volume)["identity"] = "pod".into(), attributes),
            (|volume| attributes_of(volume)["stsEndpoint"] = "https://evil".into(), attributes),
            (|volume| attributes_of(volume)["roleArn"] = "arn:aws:iam::1:role/r".into(), attributes),
            (|volume| attributes_of(volume)["audience"] = "evil".into(), attributes),
            (|volume| volume["spec"]["csi"]["nodePublishSecretRef"]["namespace"] = "kube-system".into(), secret),
            (|volume| volume["spec"]["csi"]["nodePublishSecretRef"]["namespace"] = "controller".into(), secret),
            (|volume| volume["metadata"]["annotations"] = json!({}), secret),
        ],
    );
    // The administrator's own volumes, of any driver.
    let mut own = volume;
    own["metadata"] = json!({"name": "controller-volumes-own"});
    server.apply(&own);
    server.expect(&token, &["delete", "pv", "controller-volumes-own"], Some(others));
    let label = ["label", "pv", "controller-volumes-own", "larder.dev/dataset-uid=u"];
    server.expect(&token, &label, Some("creates and deletes PersistentVolumes and changes none"));
    server.cluster.kubectl_ok(&["delete", "pv", "controller-volumes-own"]);
}

// SEMANTICS: K19
#[test]
fn claims_are_to_datasets() {
    const NAMESPACE: &str = "controller-claims";
    let server = Server::start(NAMESPACE);
    let _granted = server.grant(CONTROLLER_ACCOUNT, "", "persistentvolumeclaims");
    let token = server.token(CONTROLLER_ACCOUNT, None);
    let claim = json!({
        "apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": of_dataset(NAMESPACE, "volume"),
        "spec": {
            "storageClassName": "larder", "accessModes": ["ReadOnlyMany"],
            "resources": {"requests": {"storage": "1Mi"}},
        },
    });
    let others = "larder-controller creates claims of the class larder with its label and no others";
    server.creates_only(
        &token,
        &claim,
        &[
            (|claim| claim["spec"]["storageClassName"] = "standard".into(), others),
            (|claim| claim["metadata"]["labels"] = json!({}), others),
            (|claim| claim["metadata"]["namespace"] = "kube-system".into(), "writes no persistentvolumeclaims of the"),
        ],
    );
    let mut of_user = claim;
    of_user["metadata"] = json!({"name": "mine", "namespace": NAMESPACE});
    server.apply(&of_user);
    let deletes = "larder-controller deletes the claims that it created and no others";
    server.runs(&token, NAMESPACE, &["delete", "pvc", "mine"], Some(deletes));
    let changes = "larder-controller creates and deletes claims and changes none";
    server.runs(&token, NAMESPACE, &["label", "pvc", "mine", "larder.dev/dataset-uid=u"], Some(changes));
    server.cluster.kubectl_ok(&["delete", "pvc", "mine", "-n", NAMESPACE]);
}

/// The image that the LarderSettings of `deploy` list.
fn listed_image() -> Value {
    let file = repository().join("deploy/components/datasets/base/settings.yaml");
    let text = std::fs::read_to_string(file).expect("a file");
    let settings: Value = serde_yaml_ng::from_str(&text).expect("YAML");
    settings["spec"]["containers"][0]["image"].clone()
}

/// A Job that imports, as the controller creates it.
fn import(namespace: &str) -> Value {
    json!({
        "apiVersion": "batch/v1", "kind": "Job", "metadata": of_dataset(namespace, "import"),
        "spec": {"template": {"spec": {
            "restartPolicy": "OnFailure", "automountServiceAccountToken": false,
            "securityContext": {"runAsNonRoot": true, "runAsUser": 65532},
            "containers": [{
                "name": "larder", "image": listed_image(), "command": ["larder"],
                "args": [
                    "import", "s3://b", "--to", "s3://b/{snapshot}.manifest", "--to", "s3://b/m",
                    "--unless-published", "s3://b/m", "--report", "/dev/termination-log",
                    "--endpoint", "http://s3:9000", "--region", "r",
                    "--origin-credentials-dir=/etc/larder/origin", "--require-credentials",
                ],
                "env": [{"name": "HOME", "value": "/tmp"}],
                "volumeMounts": [
                    {"name": "tmp", "mountPath": "/tmp"},
                    {"name": "origin", "mountPath": "/etc/larder/origin", "readOnly": true},
                ],
                "securityContext": {"allowPrivilegeEscalation": false, "capabilities": {"drop": ["ALL"]}},
            }],
            "volumes": [
                {"name": "tmp", "emptyDir": {}},
                {"name": "origin", "secret": {"secretName": "keys", "optional": true}},
            ],
        }}},
    })
}

/// A Job that copies to a mirror, as the controller creates it.
fn sync(namespace: &str) -> Value {
    let mut job = import(namespace);
    job["metadata"] = of_dataset(namespace, "sync");
    pod_of(&mut job)["containers"][0]["args"] = json!([
        "sync",
        "s3://b/.larder/s.manifest",
        "gs://c/copy",
        "--report",
        "/dev/termination-log",
        "--endpoint",
        "http://s3:9000",
        "--to-region",
        "r-1",
        "--to-credentials-dir",
        "/etc/larder/origin",
        "--to-credentials-prefix",
        "near.",
        "--origin-credentials-dir=/etc/larder/origin",
    ]);
    job
}

/// A Job that warms a node, as the controller creates it.
fn warm(namespace: &str) -> Value {
    let mut job = import(namespace);
    job["metadata"] = of_dataset(namespace, "warm");
    let claim = json!({"claimName": "pets", "readOnly": true});
    pod_of(&mut job)["volumes"] = json!([{"name": "data", "persistentVolumeClaim": claim}]);
    let container = &mut pod_of(&mut job)["containers"][0];
    container["args"] = json!(["warm", "/data", "--wait"]);
    container["volumeMounts"] = json!([{"name": "data", "mountPath": "/data", "readOnly": true}]);
    container.as_object_mut().expect("an object").remove("env");
    job
}

/// A probe or a hook that would write the keys of the pod into a bucket.
fn packs() -> Value {
    json!({"exec": {"command": ["larder", "pack", "file:///etc/larder/origin", "--to", "s3://b"]}})
}

fn mounts_of(job: &mut Value) -> &mut Value {
    &mut pod_of(job)["containers"][0]["volumeMounts"]
}

fn pod_of(job: &mut Value) -> &mut Value {
    &mut job["spec"]["template"]["spec"]
}

// SEMANTICS: K19
#[test]
fn jobs_run_larder_alone_and_have_no_token() {
    const NAMESPACE: &str = "controller-jobs";
    let server = Server::start(NAMESPACE);
    let _granted = server.grant(CONTROLLER_ACCOUNT, "batch", "jobs");
    let token = server.token(CONTROLLER_ACCOUNT, None);
    let of_others = "larder-controller creates Jobs that belong to a Dataset and no others";
    let image = "runs the images that spec.containers of the LarderSettings larder lists, and";
    let program = "larder-controller runs `larder` in Jobs and nothing else";
    let arguments =
        "runs `larder import` and `larder sync` of object stores and `larder warm` in Jobs and nothing else";
    let token_of = "Jobs of larder-controller have no token, and no volumes but an emptyDir, the keys of an origin and";
    let paths = "Jobs of larder-controller mount whole volumes at /tmp, /data and /etc/larder/origin and nowhere else";
    let node = "Jobs of larder-controller have no rights on their node";
    server.creates_only(
        &token,
        &import(NAMESPACE),
        &[
            (|job| pod_of(job)["containers"][0]["image"] = "evil".into(), image),
            (|job| job["metadata"]["namespace"] = "kube-system".into(), "writes no jobs of the namespace kube-system"),
            (|job| job["metadata"]["ownerReferences"] = json!([]), of_others),
            (|job| job["metadata"]["ownerReferences"][0]["kind"] = "TrainingJob".into(), of_others),
            (|job| job["metadata"]["labels"]["larder.dev/dataset-uid"] = "other".into(), of_others),
            (|job| job["metadata"]["labels"]["larder.dev/role"] = "mine".into(), of_others),
            (|job| pod_of(job)["containers"][0]["command"] = json!(["/bin/sh"]), program),
            (|job| pod_of(job)["containers"][0]["args"] = json!(["mount"]), arguments),
            (|job| pod_of(job)["containers"][0]["args"][1] = "file:///etc/larder/origin".into(), arguments),
            (|job| pod_of(job)["containers"][0]["args"][1] = "/etc/larder/origin".into(), arguments),
            (|job| pod_of(job)["containers"][0]["args"][2] = "--pack".into(), arguments),
            (|job| pod_of(job)["containers"][0]["args"][3] = "/tmp/.aws/config".into(), arguments),
            (|job| pod_of(job)["containers"][0]["args"][3] = "file:///tmp/.aws/config".into(), arguments),
            (|job| pod_of(job)["containers"][0]["args"][7] = "/tmp/.aws/config".into(), arguments),
            (|job| pod_of(job)["containers"][0]["args"][9] = "/tmp/.aws/config".into(), arguments),
            (|job| pod_of(job)["containers"][0]["args"] = json!(["warm", "/etc", "--wait"]), arguments),
            (|job| pod_of(job)["initContainers"] = json!([{"name": "i", "image": "i"}]), program),
            (
                |job| {
                    let secret = json!({"secretKeyRef": {"name": "s", "key": "k"}});
                    pod_of(job)["containers"][0]["env"] = json!([{"name": "HTTP_PROXY", "valueFrom": secret}]);
                },
                program,
            ),
            (|job| pod_of(job)["containers"][0]["env"][0]["value"] = "/data".into(), program),
            (|job| pod_of(job)["containers"][0]["env"][0]["name"] = "AWS_CONFIG_FILE".into(), program),
            (|job| pod_of(job)["containers"][0]["envFrom"] = json!([{"secretRef": {"name": "s"}}]), program),
            (|job| pod_of(job)["containers"][0]["workingDir"] = "/etc/larder".into(), program),
            (|job| pod_of(job)["containers"][0]["livenessProbe"] = packs(), program),
            (|job| pod_of(job)["containers"][0]["readinessProbe"] = packs(), program),
            (|job| pod_of(job)["containers"][0]["startupProbe"] = packs(), program),
            (|job| pod_of(job)["containers"][0]["lifecycle"] = json!({"postStart": packs()}), program),
            (|job| pod_of(job)["shareProcessNamespace"] = true.into(), program),
            (|job| mounts_of(job)[0]["mountPath"] = "/home".into(), paths),
            (|job| mounts_of(job)[1]["mountPath"] = "/etc/larder".into(), paths),
            (|job| mounts_of(job)[1]["subPath"] = "key".into(), paths),
            (|job| mounts_of(job)[0]["subPathExpr"] = "$(HOME)".into(), paths),
            (
                |job| {
                    let items = json!([{"key": "password", "path": "AWS_ACCESS_KEY_ID"}]);
                    pod_of(job)["volumes"][1]["secret"]["items"] = items;
                },
                token_of,
            ),
            (
                |job| {
                    let claim = json!({"claimName": "c", "readOnly": true});
                    pod_of(job)["volumes"][0] = json!({"name": "tmp", "persistentVolumeClaim": claim});
                },
                token_of,
            ),
            (
                |job| {
                    let claim = json!({"claimName": "c", "readOnly": true});
                    let volumes = pod_of(job)["volumes"].as_array_mut().expect("a list");
                    volumes.push(json!({"name": "data", "persistentVolumeClaim": claim}));
                    let devices = json!([{"name": "data", "devicePath": "/dev/data"}]);
                    pod_of(job)["containers"][0]["volumeDevices"] = devices;
                },
                paths,
            ),
            (|job| pod_of(job)["automountServiceAccountToken"] = true.into(), token_of),
            (|job| pod_of(job)["serviceAccountName"] = "powerful".into(), token_of),
            (|job| pod_of(job)["volumes"][0] = json!({"name": "tmp", "hostPath": {"path": "/"}}), token_of),
            (|job| pod_of(job)["volumes"][0] = json!({"name": "tmp", "secret": {"secretName": "s"}}), token_of),
            (|job| pod_of(job)["volumes"][0] = json!({"name": "tmp", "configMap": {"name": "c"}}), token_of),
            (
                |job| {
                    let token = json!({"serviceAccountToken": {"path": "token"}});
                    pod_of(job)["volumes"][0] = json!({"name": "tmp", "projected": {"sources": [token]}});
                },
                token_of,
            ),
            (|job| pod_of(job)["hostNetwork"] = true.into(), node),
            (|job| pod_of(job)["hostPID"] = true.into(), node),
            (|job| pod_of(job)["securityContext"] = json!({}), node),
            (|job| pod_of(job)["containers"][0]["securityContext"] = json!({"privileged": true}), node),
            (
                |job| {
                    pod_of(job)["containers"][0]["securityContext"]["capabilities"]["add"] = json!(["SYS_ADMIN"]);
                },
                node,
            ),
        ],
    );
    server.creates(&token, &warm(NAMESPACE), None);
    server.creates_only(
        &token,
        &sync(NAMESPACE),
        &[
            (|job| pod_of(job)["containers"][0]["args"][1] = "file:///etc/larder/origin".into(), arguments),
            (|job| pod_of(job)["containers"][0]["args"][2] = "/tmp/.aws".into(), arguments),
            (|job| pod_of(job)["containers"][0]["args"][4] = "/tmp/.aws/config".into(), arguments),
            (|job| pod_of(job)["containers"][0]["args"][5] = "--delete".into(), arguments),
            (|job| pod_of(job)["containers"][0]["args"][10] = "/tmp".into(), arguments),
        ],
    );
    let mut public = import(NAMESPACE);
    pod_of(&mut public)["containers"][0]["args"] =
        json!(["import", "gs://b", "--to", "gs://b/m", "--report", "/dev/termination-log", "--anonymous"]);
    server.creates(&token, &public, None);
    // The administrator's Datasets are imported beside Larder.
    server.creates(&token, &import(SYSTEM_NAMESPACE), None);
    let mut of_user = import(NAMESPACE);
    of_user["metadata"] = json!({"name": "mine", "namespace": NAMESPACE});
    of_user["spec"]["suspend"] = true.into();
    server.apply(&of_user);
    let deletes = "larder-controller deletes Jobs of Datasets and no others";
    server.runs(&token, NAMESPACE, &["delete", "job", "mine"], Some(deletes));
    let resume = ["patch", "job", "mine", "-p", r#"{"spec":{"suspend":false}}"#];
    server.runs(&token, NAMESPACE, &resume, Some("larder-controller creates and deletes Jobs and changes none"));
    server.cluster.kubectl_ok(&["delete", "job", "mine", "-n", NAMESPACE]);
}

// SEMANTICS: K19
#[test]
fn of_a_deployment_one_annotation_changes() {
    const NAMESPACE: &str = "controller-deployments";
    let server = Server::start(NAMESPACE);
    let _granted = server.grant(CONTROLLER_ACCOUNT, "apps", "deployments");
    let token = server.token(CONTROLLER_ACCOUNT, None);
    let deployment = |name: &str, annotations: Value| {
        json!({
            "apiVersion": "apps/v1", "kind": "Deployment",
            "metadata": {"name": name, "namespace": NAMESPACE, "annotations": annotations},
            "spec": {
                "replicas": 0, "selector": {"matchLabels": {"app": "a"}},
                "template": {
                    "metadata": {"labels": {"app": "a"}, "annotations": {"own": "1"}},
                    "spec": {"containers": [{"name": "main", "image": "image"}]},
                },
            },
        })
    };
    server.apply(&deployment("follows", json!({"larder.dev/follow": "pets"})));
    server.apply(&deployment("stays", json!({})));
    let nothing = "larder-controller annotates Deployments and does nothing else to them";
    let not_followed = "changes Deployments with the annotation larder.dev/follow and no others";
    let fields = "larder-controller changes annotations of a Deployment's pod template and nothing else";
    let others = "of a pod template's annotations, larder-controller changes larder.dev/snapshot and no others";
    server.cluster.wait_for("the policy counts", TIMEOUT, || {
        let delete = ["--token", &token, "-n", NAMESPACE, "delete", "deployment", "stays", "--dry-run=server"];
        said(&server.cluster.kubectl(&delete)).contains(nothing)
    });
    let snapshot = r#"{"spec":{"template":{"metadata":{"annotations":{"larder.dev/snapshot":"a"}}}}}"#;
    let image = r#"{"spec":{"template":{"spec":{"containers":[{"name":"main","image":"evil"}]}}}}"#;
    let account = r#"{"spec":{"template":{"spec":{"serviceAccountName":"powerful"}}}}"#;
    for (name, patch, refused) in [
        ("follows", snapshot, None),
        ("stays", snapshot, Some(not_followed)),
        ("follows", image, Some(fields)),
        ("follows", account, Some(fields)),
        ("follows", r#"{"spec":{"replicas":3}}"#, Some(fields)),
        ("follows", r#"{"spec":{"paused":true}}"#, Some(fields)),
        ("follows", r#"{"metadata":{"labels":{"a":"b"}}}"#, Some(fields)),
        ("follows", r#"{"metadata":{"finalizers":["a.b/c"]}}"#, Some(fields)),
        ("follows", r#"{"spec":{"template":{"metadata":{"annotations":{"own":"2"}}}}}"#, Some(others)),
        ("follows", r#"{"spec":{"template":{"metadata":{"annotations":{"own":null}}}}}"#, Some(others)),
    ] {
        server.runs(&token, NAMESPACE, &["patch", "deployment", name, "-p", patch], refused);
    }
    server.runs(&token, NAMESPACE, &["delete", "deployment", "follows"], Some(nothing));
    server.creates(&token, &deployment("new", json!({"larder.dev/follow": "pets"})), Some(nothing));
    server.cluster.kubectl_ok(&["delete", "deployment", "follows", "stays", "-n", NAMESPACE]);
}

// SEMANTICS: K19
#[test]
fn config_maps_are_the_registry_and_files_of_jobs() {
    const NAMESPACE: &str = "controller-maps";
    let server = Server::start(NAMESPACE);
    let _granted = server.grant(CONTROLLER_ACCOUNT, "", "configmaps");
    let token = server.token(CONTROLLER_ACCOUNT, None);
    let map = |metadata: Value, key: &str| json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {key: "x"}});
    let others = "larder-controller writes the ConfigMap larder-registry and those of TrainingJobs and no others";
    server.creates_only(
        &token,
        &map(of_job(NAMESPACE), "hosts"),
        &[
            (|map| map["metadata"]["ownerReferences"] = json!([]), others),
            (|map| map["metadata"]["labels"] = json!({}), others),
            (|map| map["metadata"]["ownerReferences"][0]["name"] = "another".into(), others),
            (|map| map["metadata"]["ownerReferences"][0]["apiVersion"] = "kubeflow.org/v1".into(), others),
            (|map| map["metadata"]["namespace"] = "kube-system".into(), "writes no configmaps of the namespace kube-s"),
        ],
    );
    // Of Larder's own, the registry. Another component's settings, such as those of devices, are not the controller's.
    let ours = |name: &str| json!({"name": name, "namespace": SYSTEM_NAMESPACE});
    let apply = |object: &Value, refused: Option<&str>| {
        let args = ["apply", "--server-side", "--force-conflicts", "--dry-run=server", "-f"];
        server.with_file(object, |file| server.expect(&token, &[&args[..], &[file]].concat(), refused));
    };
    apply(&map(ours("larder-registry"), "datasets.yaml"), None);
    apply(&map(ours("larder-registry"), "other"), Some("writes the key datasets.yaml of larder-registry"));
    apply(&map(ours("larder-devices"), "config.yaml"), Some(others));
    // One that exists does not become the controller's by an owner that it gives it.
    server.apply(&map(json!({"name": "theft", "namespace": NAMESPACE}), "hosts"));
    apply(&map(of_job(NAMESPACE), "hosts"), Some(others));
    let deletes = "larder-controller creates and changes ConfigMaps and deletes none";
    server.runs(&token, NAMESPACE, &["delete", "configmap", "theft"], Some(deletes));
    server.cluster.kubectl_ok(&["delete", "configmap", "theft", "-n", NAMESPACE]);
}

// SEMANTICS: K19
#[test]
fn of_a_dataset_the_controllers_own_finalizer_changes() {
    const NAMESPACE: &str = "controller-datasets";
    let server = Server::start(NAMESPACE);
    let _granted = server.grant(CONTROLLER_ACCOUNT, "larder.dev", "datasets");
    let token = server.token(CONTROLLER_ACCOUNT, None);
    server.apply(&dataset(NAMESPACE, "d", json!({"origin": {"source": "s3://b", "secretRef": {"name": "s"}}})));
    let refused = "of a Dataset, larder-controller changes its own finalizer and the status and nothing else";
    server.cluster.wait_for("the policy counts", TIMEOUT, || {
        let annotate = ["--token", &token, "-n", NAMESPACE, "annotate", "dset", "d", "x=y", "--dry-run=server"];
        said(&server.cluster.kubectl(&annotate)).contains(refused)
    });
    let status = r#"{"status":{"percent":7}}"#;
    for (args, patch, refused) in [
        (&[][..], r#"{"metadata":{"finalizers":["larder.dev/dataset"]}}"#, None),
        (&["--subresource=status"], status, None),
        (&[], r#"{"spec":{"namespaces":["thief"]}}"#, Some(refused)),
        (&[], r#"{"spec":{"origin":{"secretRef":{"name":"other"}}}}"#, Some(refused)),
        (&[], r#"{"metadata":{"annotations":{"larder.dev/clean":"2026-01-31T09:00:00Z"}}}"#, Some(refused)),
        (&[], r#"{"metadata":{"labels":{"a":"b"}}}"#, Some(refused)),
        (&[], r#"{"metadata":{"finalizers":["larder.dev/dataset","a.b/c"]}}"#, Some(refused)),
        (&[], r#"{"metadata":{"finalizers":null}}"#, None),
    ] {
        let args = [&["patch", "dset", "d", "--type=merge"], args, &["-p", patch]].concat();
        server.runs(&token, NAMESPACE, &args, refused);
    }
    server.runs(&token, NAMESPACE, &["delete", "dset", "d"], Some(refused));
    server.cluster.kubectl_ok(&["delete", "dset", "d", "-n", NAMESPACE]);
}

// SEMANTICS: K19
#[test]
fn events_are_in_the_controllers_own_name() {
    const NAMESPACE: &str = "controller-events";
    let server = Server::start(NAMESPACE);
    let _granted = server.grant(CONTROLLER_ACCOUNT, "events.k8s.io", "events");
    let token = server.token(CONTROLLER_ACCOUNT, None);
    let event = json!({
        "apiVersion": "events.k8s.io/v1", "kind": "Event", "metadata": {"name": "e", "namespace": NAMESPACE},
        "eventTime": "2026-01-31T09:00:00.000000Z", "reportingController": "larder-controller",
        "reportingInstance": "larder-controller", "action": "Reconciling", "reason": "Why", "type": "Normal",
        "regarding": {"kind": "Dataset", "namespace": NAMESPACE, "name": "d"},
    });
    let own = "larder-controller makes events in its own name and changes none";
    server.creates_only(&token, &event, &[(|event| event["reportingController"] = "kubelet".into(), own)]);
}

// SEMANTICS: K19
#[test]
fn pods_belong_to_training_jobs() {
    const NAMESPACE: &str = "controller-pods";
    let server = start_jobs(NAMESPACE);
    let _granted = server.grant(CONTROLLER_ACCOUNT, "", "pods");
    let token = server.token(CONTROLLER_ACCOUNT, None);
    let pod = |metadata: Value| {
        let mut pod = bad_jobs::pod(NAMESPACE, json!({}));
        pod["metadata"] = metadata;
        pod
    };
    let others = "larder-controller creates pods that belong to a TrainingJob and no others";
    server.creates_only(
        &token,
        &pod(of_job(NAMESPACE)),
        &[
            (|pod| pod["metadata"]["ownerReferences"] = json!([]), others),
            (|pod| pod["metadata"]["labels"] = json!({}), others),
            (|pod| pod["metadata"]["ownerReferences"][0]["kind"] = "Job".into(), others),
            (|pod| pod["metadata"]["labels"]["larder.dev/job-uid"] = "other".into(), others),
            (|pod| pod["metadata"]["namespace"] = "kube-system".into(), "writes no pods of the namespace kube-system"),
            (|pod| pod["metadata"]["namespace"] = SYSTEM_NAMESPACE.into(), "no pods of the namespace larder-system"),
        ],
    );
    // A pod of somebody else.
    server.apply(&pod(json!({"name": "mine", "namespace": NAMESPACE})));
    let not_its = "larder-controller changes and deletes pods of TrainingJobs and of Queues and no others";
    server.runs(&token, NAMESPACE, &["delete", "pod", "mine"], Some(not_its));
    server.runs(&token, NAMESPACE, &["label", "pod", "mine", "a=b"], Some(not_its));
    server.runs(&token, NAMESPACE, &["annotate", "pod", "mine", "a=b"], Some(not_its));
    server.cluster.kubectl_ok(&["delete", "pod", "mine", "-n", NAMESPACE, "--force", "--grace-period=0"]);
    // A pod of a queue.
    let mut queued = pod(json!({"name": "queued", "namespace": NAMESPACE, "labels": {"larder.dev/queue": "vision"}}));
    queued["spec"]["schedulingGates"] = json!([{"name": "larder.dev/queue"}, {"name": "test/gate"}]);
    server.apply(&queued);
    let release = "of a pod of a Queue, larder-controller removes the scheduling gate, adds a node selector";
    let patch = |patch: &str, refused: Option<&str>| {
        server.runs(&token, NAMESPACE, &["patch", "pod", "queued", "--type=merge", "-p", patch], refused);
    };
    patch(r#"{"metadata":{"labels":{"a":"b"}}}"#, Some(release));
    let image = r#"[{"op":"replace","path":"/spec/containers/0/image","value":"evil"}]"#;
    server.runs(&token, NAMESPACE, &["patch", "pod", "queued", "--type=json", "-p", image], Some(release));
    patch(r#"{"spec":{"schedulingGates":[{"name":"larder.dev/queue"}]}}"#, Some(release));
    patch(r#"{"spec":{"schedulingGates":[{"name":"test/gate"}],"nodeSelector":{"gpu":"h100"}}}"#, None);
    server.runs(&token, NAMESPACE, &["delete", "pod", "queued", "--force", "--grace-period=0"], None);
    // A pod of a job.
    let owner = managed_job(&server, NAMESPACE);
    let mut of_job = pod(of_job(NAMESPACE));
    of_job["metadata"]["labels"]["larder.dev/job-uid"] = owner.clone().into();
    of_job["metadata"]["ownerReferences"][0]["uid"] = owner.into();
    of_job["metadata"]["labels"]["larder.dev/job-serving"] = "true".into();
    server.with_file(&of_job, |file| server.expect(&token, &["create", "-f", file], None));
    let label = "of a pod, larder-controller changes the label larder.dev/job-serving and nothing else";
    server.runs(&token, NAMESPACE, &["label", "pod", "theft", "a=b"], Some(label));
    server.runs(&token, NAMESPACE, &["annotate", "pod", "theft", "a=b"], Some(label));
    let image = r#"{"spec":{"containers":[{"name":"main","image":"evil"}]}}"#;
    server.runs(&token, NAMESPACE, &["patch", "pod", "theft", "-p", image], Some(label));
    let status = ["patch", "pod", "theft", "--subresource=status", "-p", r#"{"status":{"phase":"Succeeded"}}"#];
    let nothing = "larder-controller creates, labels and deletes pods and does nothing else to them";
    server.runs(&token, NAMESPACE, &status, Some(nothing));
    server.runs(&token, NAMESPACE, &["label", "pod", "theft", "larder.dev/job-serving-"], None);
    server.runs(&token, NAMESPACE, &["delete", "pod", "theft", "--force", "--grace-period=0"], None);
    server.cluster.kubectl_ok(&["delete", "tj", "j", "-n", NAMESPACE]);
}

// SEMANTICS: K19
#[test]
fn services_and_secrets_belong_to_training_jobs() {
    const NAMESPACE: &str = "controller-secrets";
    let server = start_jobs(NAMESPACE);
    let _secrets = server.grant(CONTROLLER_ACCOUNT, "", "secrets");
    let _services = server.grant(CONTROLLER_ACCOUNT, "", "services");
    let token = server.token(CONTROLLER_ACCOUNT, None);
    let secret = json!({
        "apiVersion": "v1", "kind": "Secret", "metadata": of_job(NAMESPACE), "immutable": true, "data": {"key": "aGV4"},
    });
    let others = "larder-controller writes secrets that belong to a TrainingJob and no others";
    let key = "larder-controller creates Secrets that are a launcher's key and no others";
    server.creates_only(
        &token,
        &secret,
        &[
            (|secret| secret["metadata"]["ownerReferences"] = json!([]), others),
            (|secret| secret["metadata"]["labels"] = json!({}), others),
            (
                |secret| secret["metadata"]["namespace"] = "kube-system".into(),
                "writes no secrets of the namespace kube",
            ),
            (|secret| secret["data"]["other"] = "aGV4".into(), key),
            (|secret| secret["immutable"] = false.into(), key),
            (
                |secret| {
                    secret["type"] = "kubernetes.io/service-account-token".into();
                    secret["metadata"]["annotations"] = json!({"kubernetes.io/service-account.name": "powerful"});
                },
                key,
            ),
        ],
    );
    let mut of_user = secret;
    of_user["metadata"] = json!({"name": "mine", "namespace": NAMESPACE});
    server.apply(&of_user);
    server.runs(&token, NAMESPACE, &["delete", "secret", "mine"], Some(others));
    server.runs(&token, NAMESPACE, &["label", "secret", "mine", "a=b"], Some(others));
    server.cluster.kubectl_ok(&["delete", "secret", "mine", "-n", NAMESPACE]);

    let service = json!({
        "apiVersion": "v1", "kind": "Service", "metadata": of_job(NAMESPACE),
        "spec": {
            "clusterIP": "None", "selector": {"larder.dev/job": "j", "larder.dev/job-serving": "true"},
            "ports": [{"name": "a", "port": 1}],
        },
    });
    let headless = "larder-controller creates headless Services of the pods of a TrainingJob and no others";
    server.creates_only(
        &token,
        &service,
        &[
            (|service| service["spec"]["selector"] = json!({"app": "bank"}), headless),
            (|service| service["spec"]["externalIPs"] = json!(["192.0.2.1"]), headless),
            (
                |service| {
                    service["spec"] =
                        json!({"type": "ExternalName", "externalName": "evil", "selector": {"larder.dev/job": "j"}});
                },
                headless,
            ),
            (|service| service["metadata"]["ownerReferences"] = json!([]), "services that belong to a TrainingJob and"),
        ],
    );
}

// SEMANTICS: K19
#[test]
fn training_jobs_are_suspended_and_removed_when_they_have_ended() {
    const NAMESPACE: &str = "controller-training";
    let server = start_jobs(NAMESPACE);
    let _granted = server.grant(CONTROLLER_ACCOUNT, "larder.dev", "trainingjobs");
    let token = server.token(CONTROLLER_ACCOUNT, None);
    managed_job(&server, NAMESPACE);
    let changes =
        "of a TrainingJob, larder-controller sets spec.suspend, its finalizer and the status and changes nothing else";
    let deletes = "larder-controller deletes TrainingJobs that have ended, and trials, and no others";
    server.cluster.wait_for("the policy counts", TIMEOUT, || {
        let delete = ["--token", &token, "-n", NAMESPACE, "delete", "tj", "j", "--dry-run=server"];
        said(&server.cluster.kubectl(&delete)).contains(deletes)
    });
    let more = r#"[{"op":"replace","path":"/spec/roles/0/replicas","value":3}]"#;
    for (args, refused) in [
        (&["patch", "tj", "j", "--type=json", "-p", more][..], Some(changes)),
        (&["patch", "tj", "j", "--type=merge", "-p", r#"{"spec":{"keepPods":"all"}}"#], Some(changes)),
        (&["patch", "tj", "j", "--type=merge", "-p", r#"{"spec":{"ttlAfterFinished":"0s"}}"#], Some(changes)),
        (&["label", "tj", "j", "a=b"], Some(changes)),
        (&["delete", "tj", "j"], Some(deletes)),
        (
            &["patch", "tj", "j", "--type=merge", "-p", r#"{"metadata":{"finalizers":["example.org/x"]}}"#],
            Some(changes),
        ),
        (&["patch", "tj", "j", "--type=merge", "-p", r#"{"metadata":{"finalizers":["larder.dev/elsewhere"]}}"#], None),
        (&["patch", "tj", "j", "--type=merge", "-p", r#"{"metadata":{"finalizers":null}}"#], None),
        (&["patch", "tj", "j", "--type=merge", "-p", r#"{"spec":{"suspend":true}}"#], None),
    ] {
        server.runs(&token, NAMESPACE, args, refused);
    }
    let mut another = server.cluster.get_json(&["tj", "j", "-n", NAMESPACE]);
    let uid = another["metadata"]["uid"].clone();
    another["metadata"] = json!({"name": "k", "namespace": NAMESPACE});
    another.as_object_mut().expect("an object").remove("status");
    let creates = "larder-controller creates TrainingJobs that are trials of a sweep and no others";
    server.creates(&token, &another, Some(creates));
    // A trial belongs to its sweep, and is no sweep itself.
    another["metadata"]["labels"] =
        json!({"app.kubernetes.io/managed-by": "larder-controller", "larder.dev/sweep": "j"});
    server.creates(&token, &another, Some(creates));
    another["metadata"]["ownerReferences"] = json!([{
        "apiVersion": "larder.dev/v1alpha1", "kind": "TrainingJob", "name": "j", "uid": uid, "controller": true,
    }]);
    let mut nested = another.clone();
    nested["spec"]["sweep"] = json!({"list": [{"LR": "1"}]});
    server.creates(&token, &nested, Some(creates));
    server.creates(&token, &another, None);
    server.apply(&another);
    for (args, refused) in [
        (&["patch", "tj", "k", "--type=merge", "-p", r#"{"spec":{"suspend":true}}"#][..], None),
        (&["patch", "tj", "k", "--type=merge", "-p", r#"{"spec":{"suspend":false}}"#], None),
        (&["patch", "tj", "k", "--type=merge", "-p", r#"{"spec":{"keepPods":"all"}}"#], Some(changes)),
        (&["delete", "tj", "k"], None),
    ] {
        server.runs(&token, NAMESPACE, args, refused);
    }
    let ended = ["patch", "tj", "j", "--subresource=status", "--type=merge", "-p", r#"{"status":{"phase":"Failed"}}"#];
    server.runs(&token, NAMESPACE, &ended, None);
    server.runs(&token, NAMESPACE, &["delete", "tj", "j"], None);
}

#[test]
fn the_policy_of_training_jobs_knows_every_field_of_the_spec() {
    let folder = repository().join("deploy");
    let read = |file: &str| std::fs::read_to_string(folder.join(file)).expect("a file");
    let definition: Value = serde_yaml_ng::from_str(&read("crds/trainingjobs.larder.dev.yaml")).expect("YAML");
    let spec = &definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"];
    let policies = read("components/jobs/base/controller-policies.yaml");
    for field in spec.as_object().expect("fields").keys().filter(|field| *field != "suspend") {
        let compared = [".?", "."]
            .iter()
            .any(|dot| policies.contains(&format!("object.spec{dot}{field} == oldObject.spec{dot}{field}")));
        assert!(compared, "the policy larder-controller-training-jobs lets spec.{field} change");
    }
}

#[test]
fn no_policy_makes_the_api_server_follow_objects_of_others() {
    let mut found = 0;
    for component in ["datasets", "jobs", "clusters", "scheduler", "devices", "devices-dra"] {
        let folder = repository().join("deploy/components").join(component).join("base");
        for file in std::fs::read_dir(folder).expect("a folder").map(|file| file.expect("a file").path()) {
            let text = std::fs::read_to_string(&file).expect("a file");
            for document in serde_yaml_ng::Deserializer::from_str(&text) {
                let object: Value = serde::Deserialize::deserialize(document).expect("YAML");
                let kind = &object["spec"]["paramKind"];
                if !kind.is_null() {
                    found += 1;
                    assert_eq!(kind["apiVersion"], "larder.dev/v1alpha1", "{}: {kind}", file.display());
                }
            }
        }
    }
    assert!(found >= 4, "{found}");
}

/// A server on which the policies about the controller's training jobs are in effect.
fn start_jobs(namespace: &str) -> Server {
    let server = bad_jobs::start(namespace);
    let file = repository().join("deploy/components/jobs/base/controller-policies.yaml");
    server.cluster.kubectl_ok(&["apply", "-f", &file.display().to_string()]);
    server
}

/// Creates the TrainingJob `j`, which no controller runs, and returns its uid.
fn managed_job(server: &Server, namespace: &str) -> String {
    server.apply(&bad_jobs::job(namespace, json!({"managedBy": "example.org/test"})));
    let job = server.cluster.get_json(&["tj", "j", "-n", namespace]);
    job["metadata"]["uid"].as_str().expect("a uid").to_owned()
}
