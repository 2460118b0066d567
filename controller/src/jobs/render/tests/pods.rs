//! Whole pods, and the objects that accompany them.

use k8s_openapi::api::core::v1::{Container, Pod, Toleration};
use larder_api::names::{JOB_LABEL, JOB_SERVING_LABEL};
use serde_json::{Value, json};

use super::*;

fn pod_of(sample: &Sample, role: &str) -> Pod {
    let facts = facts();
    Renderer::new(sample.rendered(), &facts).pod(role, 0, 0, &Place::default()).expect("a pod")
}

/// The pod of a job of type `single` with this template.
fn single(template: Value) -> Pod {
    pod_of(&Sample::of("single", json!({"roles": [{"name": "worker", "template": template}]})), "worker")
}

fn main(pod: &Pod) -> &Container {
    &pod.spec.as_ref().expect("a spec").containers[0]
}

fn amounts(pod: &Pod) -> Value {
    let resources = main(pod).resources.as_ref().expect("resources");
    json!({"limits": resources.limits, "requests": resources.requests})
}

fn mounted(pod: &Pod, path: &str) -> Option<Value> {
    let mount = main(pod).volume_mounts.iter().flatten().find(|mount| mount.mount_path == path)?;
    let volume = pod.spec.as_ref()?.volumes.iter().flatten().find(|volume| volume.name == mount.name)?;
    serde_json::to_value(volume).ok()
}

#[test]
fn whole_pods_are_those_of_their_golden_files() {
    let facts = facts();
    let launcher = template(
        json!({"command": ["mpirun", "-np", "2", "train"], "resources": {"requests": {"cpu": "1500m", "memory": "4Gi"}}}),
    );
    let worker = template(json!({"resources": {"limits": {"cpu": 4, "memory": "8Gi", "nvidia.com/gpu": 1}}}));
    let mpi = Sample::of(
        "mpi",
        json!({
            "roles": [{"name": "launcher", "template": launcher}, {"name": "worker", "replicas": 2, "template": worker}],
            "datasets": [{"name": "pets", "mountPath": "/data/pets"}, {"name": "team-b/coco", "mountPath": "/data/coco"}],
        }),
    );
    let renderer = Renderer::new(mpi.rendered(), &facts);
    let place = Place { node: Some("n7".into()), ..Place::default() };
    golden("mpi-launcher.yaml", &yaml(&renderer.pod("launcher", 0, 0, &place).expect("a pod")));
    golden("mpi-worker.yaml", &yaml(&renderer.pod("worker", 1, 2, &Place::default()).expect("a pod")));
    golden("mpi-files.yaml", &yaml(&renderer.config_map().expect("rendered").expect("files")));
    golden("mpi-service.yaml", &yaml(&service(&mpi.rendered()).expect("a service")));
    golden("mpi-secret.yaml", &yaml(&secret(&mpi.rendered(), b"0123").expect("a Secret")));
    golden("claims.yaml", &yaml(&claims(&mpi.rendered())));
    let notebook = Sample::of("notebook", roles(&[("notebook", 1, 1, 1)]));
    golden("notebook.yaml", &yaml(&pod_of(&notebook, "notebook")));
}

fn yaml(value: &impl serde::Serialize) -> String {
    serde_yaml_ng::to_string(value).expect("YAML")
}

#[test]
fn a_default_job_is_guaranteed_and_has_whole_cpus() {
    let default = single(template(json!({})));
    let expected = json!({"cpu": "1", "memory": (2_u64 << 30).to_string()});
    assert_eq!(amounts(&default), json!({"limits": expected, "requests": expected}));
    let size = &mounted(&default, "/dev/shm").expect("shared memory")["emptyDir"]["sizeLimit"];
    assert_eq!(*size, json!((1_u64 << 30).to_string()), "half of its memory");

    let requested = single(template(json!({"resources": {"requests": {"cpu": "2500m", "memory": "1Gi"}}})));
    let expected = json!({"cpu": "3", "memory": "1Gi"});
    assert_eq!(amounts(&requested), json!({"limits": expected, "requests": expected}));
    let limited = single(template(json!({"resources": {"limits": {"cpu": "4.0", "memory": "1Gi"}}})));
    let expected = json!({"cpu": "4.0", "memory": "1Gi"});
    assert_eq!(amounts(&limited), json!({"limits": expected, "requests": expected}));
    // A fraction of one CPU cannot be pinned, so it is left as it is.
    let small = single(template(json!({"resources": {"limits": {"cpu": "500m", "memory": "1Gi"}}})));
    assert_eq!(amounts(&small)["limits"]["cpu"], "500m");
    // Two different amounts are a deliberate choice and are left as they are.
    let burst = json!({"limits": {"cpu": "4500m", "memory": "1Gi"}, "requests": {"cpu": "1500m", "memory": "1Gi"}});
    assert_eq!(amounts(&single(template(json!({"resources": burst.clone()})))), burst);
}

#[test]
fn a_pod_that_asks_as_a_whole_gets_no_other_amounts() {
    let mut whole = template(json!({}));
    whole["spec"]["resources"] = json!({"requests": {"cpu": "64", "memory": "8Gi"}, "limits": {"cpu": "64"}});
    let pod = single(whole);
    assert_eq!(amounts(&pod), json!({"limits": null, "requests": null}));
}

#[test]
fn each_default_can_be_turned_off() {
    let off = |names: &str, container: Value| {
        let annotated = json!({"metadata": {"annotations": {"larder.dev/defaults-off": names}}});
        single(object(template(container), annotated))
    };
    let requests = json!({"resources": {"requests": {"cpu": "2500m", "memory": "1Gi"}}});
    assert_eq!(amounts(&off("guaranteed", requests.clone()))["limits"], Value::Null);
    assert_eq!(amounts(&off("whole-cpus", requests.clone()))["limits"]["cpu"], "2500m");
    assert_eq!(mounted(&off("shared-memory", requests), "/dev/shm"), None);
    let pages = json!({"resources": {"limits": {"hugepages-2Mi": "1Gi", "cpu": 1, "memory": "1Gi"}}});
    let medium = mounted(&single(template(pages.clone())), "/dev/hugepages").expect("huge pages");
    assert_eq!(medium["emptyDir"]["medium"], "HugePages-2Mi");
    assert_eq!(mounted(&off("hugepages", pages), "/dev/hugepages"), None);

    // The type can turn them off, too.
    let mut kind = builtin("single").spec;
    kind.performance = serde_json::from_value(json!({
        "guaranteed": false, "wholeCpus": false, "sharedMemory": "off", "hugepages": false
    }))
    .expect("of the schema's form");
    let given = json!({"requests": {"cpu": "2500m"}, "limits": {"hugepages-2Mi": "1Gi"}});
    let roles = json!({"roles": [{"name": "worker", "template": template(json!({"resources": given}))}]});
    let plain = pod_of(&Sample::with(&kind, "single", roles), "worker");
    assert_eq!(amounts(&plain), json!({"limits": {"hugepages-2Mi": "1Gi"}, "requests": {"cpu": "2500m"}}));
    assert_eq!(main(&plain).volume_mounts, None);
}

#[test]
fn a_pod_that_mounts_shared_memory_itself_keeps_it() {
    let own = json!({"spec": {
        "containers": [{"name": "main", "volumeMounts": [{"name": "shm", "mountPath": "/dev/shm"}]}],
        "volumes": [{"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": "1Gi"}}],
    }});
    assert_eq!(mounted(&single(own), "/dev/shm").expect("shared memory")["emptyDir"]["sizeLimit"], "1Gi");
}

#[test]
fn names_labels_and_owner_are_those_that_others_rely_on() {
    let sample = Sample::of("pytorch", roles(&[("worker", 12, 12, 12)]));
    let facts = facts();
    let pod = Renderer::new(sample.rendered(), &facts).pod("worker", 11, 3, &Place::default()).expect("a pod");
    assert_eq!(pod.metadata.name.as_deref(), Some("train-worker-11-3"));
    let spec = pod.spec.as_ref().expect("a spec");
    assert_eq!((spec.hostname.as_deref(), spec.subdomain.as_deref()), (Some("train-worker-11"), Some("train")));
    assert_eq!(spec.restart_policy.as_deref(), Some("Never"));
    let labels = pod.metadata.labels.expect("labels");
    let service = service(&sample.rendered()).and_then(|service| service.spec).expect("a service");
    assert_eq!(service.cluster_ip.as_deref(), Some("None"));
    for (name, value) in service.selector.expect("a selector") {
        assert_eq!(labels.get(&name), Some(&value), "the service leads to the pod");
    }
    assert_eq!((labels[JOB_LABEL].as_str(), labels[JOB_SERVING_LABEL].as_str()), ("train", "true"));
    assert_eq!(labels["larder.dev/job-role"], "worker");
    assert_eq!(labels["larder.dev/job-uid"], "11ce-d00d");
    assert_eq!((labels["larder.dev/job-index"].as_str(), labels["larder.dev/job-attempt"].as_str()), ("11", "3"));
    let owner = &pod.metadata.owner_references.expect("an owner")[0];
    assert_eq!((owner.kind.as_str(), owner.uid.as_str(), owner.controller), ("TrainingJob", "11ce-d00d", Some(true)));
    assert_eq!(owner.api_version, "larder.dev/v1alpha1");
    // The longest valid names.
    let (long, role) = ("j".repeat(63), "r".repeat(15));
    assert_eq!(names::hostname(&long, &role, 9_999), format!("{}-{role}-9999", "j".repeat(42)));
    assert_eq!(names::hostname(&long, "w", 7), format!("{}-w-7", "j".repeat(59)));
    assert_eq!(names::hostname(&"j".repeat(40), &role, 9_999), format!("{}-{role}-9999", "j".repeat(40)));
}

#[test]
fn no_template_claims_another_queue_or_a_long_time_to_end() {
    let mut long = template(json!({}));
    long["spec"]["terminationGracePeriodSeconds"] = 1_000_000.into();
    long["metadata"]["labels"] = json!({"larder.dev/job-queue": "red", "larder.dev/job-flavor": "h100",
        "larder.dev/job-uid": "another", "mine": "1"});
    let pod = single(long);
    assert_eq!(pod.spec.expect("a spec").termination_grace_period_seconds, Some(3600));
    let labels = pod.metadata.labels.expect("labels");
    assert_eq!((labels.get("larder.dev/job-queue"), labels.get("larder.dev/job-flavor")), (None, None));
    assert_eq!((labels["larder.dev/job-uid"].as_str(), labels["mine"].as_str()), ("11ce-d00d", "1"));
    let short = single(template(json!({})));
    assert_eq!(short.spec.expect("a spec").termination_grace_period_seconds, None);
}

#[test]
fn a_place_is_added_to_what_the_pod_says_itself() {
    let own = json!({"spec": {
        "containers": [{"name": "main"}],
        "nodeSelector": {"disk": "ssd"},
        "tolerations": [{"key": "own", "operator": "Exists"}],
        "affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [
            {"matchExpressions": [{"key": "zone", "operator": "In", "values": ["a"]}]},
            {"matchExpressions": [{"key": "zone", "operator": "In", "values": ["b"]}]},
        ]}}},
    }});
    let sample = Sample::of("single", json!({"roles": [{"name": "worker", "template": own}]}));
    let facts = facts();
    let place = Place {
        node: Some("n7".into()),
        group: Some("train".into()),
        selector: [("gpu".to_owned(), "a100".to_owned())].into(),
        tolerations: vec![Toleration { key: Some("spot".into()), ..Toleration::default() }],
        ..Place::default()
    };
    let pod = Renderer::new(sample.rendered(), &facts).pod("worker", 0, 0, &place).expect("a pod");
    let spec = serde_json::to_value(pod.spec.expect("a spec")).expect("JSON");
    let terms =
        &spec["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"];
    for (at, zone) in ["a", "b"].into_iter().enumerate() {
        assert_eq!(terms[at]["matchExpressions"][0]["values"], json!([zone]));
        assert_eq!(terms[at]["matchFields"], json!([{"key": "metadata.name", "operator": "In", "values": ["n7"]}]));
    }
    assert_eq!(spec["nodeSelector"], json!({"disk": "ssd", "gpu": "a100"}));
    assert_eq!(spec["tolerations"].as_array().map(Vec::len), Some(2));
    assert_eq!(spec["schedulingGroup"], json!({"podGroupName": "train"}));
}

// SEMANTICS: J14
#[test]
fn a_preferred_node_excludes_no_other() {
    let sample = Sample::of("single", json!({"roles": [{"name": "worker", "template": template(json!({}))}]}));
    let facts = facts();
    let place = Place { preferred: Some("n7".into()), ..Place::default() };
    let pod = Renderer::new(sample.rendered(), &facts).pod("worker", 0, 0, &place).expect("a pod");
    let spec = serde_json::to_value(pod.spec.expect("a spec")).expect("JSON");
    let named = json!({"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n7"]}]});
    let preferred = json!({"preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 100, "preference": named}]});
    assert_eq!(spec["affinity"]["nodeAffinity"], preferred);
}

#[test]
fn the_templates_of_type_and_job_meet_in_the_first_container() {
    let notebook = |container: Value| {
        let template = json!({"spec": {"containers": [
            object(json!({"name": "mine", "image": "image"}), container), {"name": "sidecar", "image": "other"}
        ]}});
        let sample = Sample::of("notebook", json!({"roles": [{"name": "notebook", "template": template}]}));
        pod_of(&sample, "notebook").spec.expect("a spec").containers
    };
    let plain = notebook(json!({}));
    assert_eq!(plain.iter().map(|one| one.name.as_str()).collect::<Vec<_>>(), ["mine", "sidecar"]);
    assert_eq!(plain[0].command.as_deref(), Some(&["jupyter".to_owned(), "lab".to_owned()][..]));
    assert!(plain[0].args.iter().flatten().any(|one| one == "--port=8888"), "{:?}", plain[0].args);
    assert!(plain[1].command.is_none());
    let ported = notebook(json!({"ports": [{"name": "http", "containerPort": 9999}]}));
    assert!(ported[0].args.iter().flatten().any(|one| one == "--port=9999"));
    let own = notebook(json!({"command": ["sleep"]}));
    assert_eq!((own[0].command.as_deref(), own[0].args.as_deref()), (Some(&["sleep".to_owned()][..]), None));
    let arguments = notebook(json!({"args": ["--debug"]}));
    assert_eq!(arguments[0].args.as_deref(), Some(&["--debug".to_owned()][..]));
    assert!(arguments[0].command.is_some());
}

#[test]
fn objects_that_a_type_does_not_need_are_not_created() {
    let sample = Sample::of("single", roles(&[("worker", 1, 1, 1)]));
    let facts = facts();
    assert_eq!(service(&sample.rendered()), None);
    assert_eq!(secret(&sample.rendered(), b"key"), None);
    assert_eq!(claims(&sample.rendered()), []);
    assert_eq!(Renderer::new(sample.rendered(), &facts).config_map(), Ok(None));
    assert_eq!(pod_of(&sample, "worker").spec.expect("a spec").subdomain, None);
    let error = Renderer::new(sample.rendered(), &facts).pod("ps", 0, 0, &Place::default()).expect_err("no such role");
    assert_eq!(error.field, "spec.roles");
}

#[test]
fn datasets_are_claims_of_their_namespace_or_of_their_own() {
    let datasets = json!([{"name": "pets", "mountPath": "/pets"}, {"name": "team-b/coco", "mountPath": "/coco"}]);
    let annotated = json!({"metadata": {"annotations": {"larder.dev/datasets": "mine"}}});
    let template = object(template(json!({})), annotated);
    let sample =
        Sample::of("single", json!({"roles": [{"name": "worker", "template": template}], "datasets": datasets}));
    let pod = pod_of(&sample, "worker");
    let claim = |path: &str| mounted(&pod, path).expect("mounted")["persistentVolumeClaim"].clone();
    assert_eq!(claim("/pets"), json!({"claimName": "pets", "readOnly": true}));
    assert_eq!(claim("/coco"), json!({"claimName": "larder.team-b.coco", "readOnly": true}));
    let annotations = pod.metadata.annotations.as_ref().expect("annotations");
    assert_eq!(annotations["larder.dev/datasets"], "mine,team-a/pets,team-b/coco");
    let claims = claims(&sample.rendered());
    assert_eq!(claims.len(), 1);
    assert_eq!(claims[0].metadata.name.as_deref(), Some("larder.team-b.coco"));
    assert_eq!(claims[0].metadata.annotations.as_ref().expect("one")["larder.dev/dataset"], "team-b/coco");
}

// SEMANTICS: J36
#[test]
fn a_split_dataset_has_a_list_of_each_pods_share() {
    let of = |context: Value, index: u32| {
        let mut template = template(json!({}));
        template["spec"]["securityContext"] = context;
        let sample = Sample::of(
            "single",
            json!({
                "roles": [{"name": "worker", "replicas": 3, "template": template}],
                "datasets": [{"name": "other", "mountPath": "/other"}, {"name": "pets", "mountPath": "/d", "split": true}],
            }),
        );
        let facts = facts();
        Renderer::new(sample.rendered(), &facts).pod("worker", index, 0, &Place::default()).expect("a pod")
    };
    let pod = of(json!({}), 1);
    let spec = pod.spec.as_ref().expect("a spec");
    let lists = &spec.init_containers.as_ref().expect("init containers")[0];
    let words = ["larder-agent", "split", "/d", "1", "3", "/larder-split/files.txt"];
    assert_eq!(lists.command.as_deref(), Some(&words.map(str::to_owned)[..]));
    let mounts: Vec<_> = lists.volume_mounts.iter().flatten().map(|mount| (&*mount.name, &*mount.mount_path)).collect();
    assert_eq!(mounts, [("larder-data-1", "/d"), ("larder-split", "/larder-split")]);
    assert!(mounted(&pod, "/larder-split").is_some_and(|volume| volume["emptyDir"].is_object()));
    let variable = |name: &str| {
        let env = main(&pod).env.iter().flatten();
        env.filter(|one| one.name == name).find_map(|one| one.value.clone()).expect("a variable")
    };
    assert_eq!(variable("LARDER_SPLIT_INDEX") + "/" + &variable("LARDER_SPLIT_COUNT"), "1/3");
    assert_eq!(variable("LARDER_SPLIT_FILES"), "/larder-split/files.txt");
    // The list is made by the user who reads the files, but not by root.
    let user = |pod: &Pod| {
        let lists = pod.spec.as_ref()?.init_containers.as_ref()?.first()?;
        lists.security_context.as_ref()?.run_as_user
    };
    assert_eq!(user(&pod), Some(65_532));
    assert_eq!(user(&of(json!({"runAsUser": 1000, "runAsGroup": 1000}), 0)), Some(1000));
    assert_eq!(user(&of(json!({"runAsUser": 0}), 0)), Some(65_532));
}

// SEMANTICS: J30
#[test]
fn containers_restart_in_place_only_in_pods_that_may_be_replaced_alone() {
    let policy = |kind: &str, restart: Value| {
        let sample = Sample::of(kind, object(roles(&[("worker", 2, 2, 2)]), json!({"restart": restart})));
        pod_of(&sample, "worker").spec.expect("a spec").restart_policy.expect("a policy")
    };
    let alone = json!([{"exitCodes": "1", "action": "restartPod"}]);
    assert_eq!(policy("single", json!({})), "Never");
    assert_eq!(policy("single", json!({"inPlace": 1})), "OnFailure");
    assert_eq!(policy("single", json!({"inPlace": 1, "scope": "job"})), "Never");
    assert_eq!(policy("jax", json!({"inPlace": 1})), "Never");
    assert_eq!(policy("jax", json!({"inPlace": 1, "rules": alone})), "OnFailure");
}

#[test]
fn parameters_are_variables_that_come_before_the_templates_own() {
    let own = template(json!({"env": [{"name": "ARGS", "value": "--lr=$(LR)"}, {"name": "OWN", "value": "own"}]}));
    let parameters = json!([
        {"name": "LR", "value": "0.1"}, {"name": "MASTER_PORT", "value": "1"}, {"name": "OWN", "value": "other"},
    ]);
    let roles = json!([{"name": "worker", "template": own}]);
    let sample = Sample::of("pytorch", json!({"roles": roles, "parameters": parameters}));
    let pod = pod_of(&sample, "worker");
    let env: Vec<(&str, &str)> = main(&pod)
        .env
        .iter()
        .flatten()
        .map(|one| (one.name.as_str(), one.value.as_deref().expect("a value")))
        .collect();
    let at = |name: &str| env.iter().position(|one| one.0 == name).expect("a variable");
    assert_eq!(env.iter().filter(|one| one.0 == "MASTER_PORT").collect::<Vec<_>>(), [&("MASTER_PORT", "1")]);
    assert_eq!(env.iter().filter(|one| one.0 == "OWN").collect::<Vec<_>>(), [&("OWN", "own")]);
    assert!(at("LR") < at("ARGS"), "a variable can refer to those before it: {env:?}");
}
