//! Jobs that rest: when they do, and that rounds decide the same as if none did.

use std::collections::BTreeMap;

use larder_kube::kinds::{KueueKind, KueueVersion};
use proptest::prelude::*;

use super::*;
use crate::jobs::planned::RefusedBy;
use crate::warm_request::{Progress, Requester, Warmth};

const SNAPSHOT: &str = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";

const WORKLOAD: Kind = Kind::Kueue(KueueKind::Workload, KueueVersion::V1beta2);

/// How long ended jobs are kept.
const KEEP_SECONDS: i64 = 200;

/// The first and the third job are in a queue with quota, the second in one with flavors. The fourth is a trial of the
/// sweep, if there is one. Kueue admits the fifth, and another cluster has placed the last one here.
const JOBS: usize = 6;
const NODES: usize = 3;
const PODS: usize = 16;
/// The number of PodGroups, and of Workloads, to which events happen.
const FEW: usize = 3;

/// An event, with jobs, nodes and pods by number.
#[derive(Clone, Debug)]
enum Op {
    Wait(i64),
    Submit(usize, u32, bool),
    Suspend(usize, bool),
    Delete(usize),
    /// A pod is bound to its planned node, and runs.
    Run(usize),
    /// A pod crashes, or its kubelet rejects it.
    Fail(usize, bool),
    Succeed(usize),
    Gone(usize),
    /// The API server has accepted the deletion of a pod.
    Leaves(usize),
    Ready(usize, bool),
    OutOfService(usize, bool),
    NodeGone(usize),
    Quota(u32),
    Priority(i32),
    /// The size of the dataset.
    Dataset(u64),
    DatasetGone,
    /// The bytes of the dataset on a node.
    Cached(usize, u64),
    CacheQuota(bool),
    /// Whether the CacheQuota keeps the dataset off the nodes of jobs.
    OverQuota(bool),
    /// The value of a variable that the JobType sets in its pods.
    Type(u32),
    /// The settings are deleted, or their flavor gets other nodes.
    Settings(usize),
    Sweep(bool),
    Foreign(usize, bool),
    /// An optional part of the API appears or disappears.
    Part(Part, bool),
    /// The API of jobs disappears, and appears again.
    Reinstall,
    /// The scheduler starts the gang of a PodGroup, or has no room for it.
    Gang(usize, bool),
    GroupGone(usize),
    /// Kueue admits a Workload, or evicts it.
    Admit(usize, bool),
    WorkloadGone(usize),
    /// Whether Kueue has the object that Workloads name.
    OfKueue(KueueKind, bool),
    /// The home of the last job renews its lease.
    Lease,
}

fn any_op() -> impl Strategy<Value = Op> {
    let (pod, node, of_job, of_few) = (|| 0..PODS, || 0..NODES, || 0..JOBS, || 0..FEW);
    let part = prop::sample::select(vec![Part::Kueue, Part::Gangs, Part::Clusters]);
    let of_kueue = prop::sample::select(vec![KueueKind::ResourceFlavor, KueueKind::PriorityClass]);
    prop_oneof![
        3 => (0..100_i64).prop_map(Op::Wait),
        6 => (of_job(), 1..4_u32, any::<bool>()).prop_map(|(job, pods, reads)| Op::Submit(job, pods, reads)),
        1 => (of_job(), any::<bool>()).prop_map(|(job, suspend)| Op::Suspend(job, suspend)),
        1 => of_job().prop_map(Op::Delete),
        14 => pod().prop_map(Op::Run),
        2 => (pod(), any::<bool>()).prop_map(|(pod, crashes)| Op::Fail(pod, crashes)),
        2 => pod().prop_map(Op::Succeed),
        2 => pod().prop_map(Op::Gone),
        1 => pod().prop_map(Op::Leaves),
        2 => (node(), any::<bool>()).prop_map(|(node, ready)| Op::Ready(node, ready)),
        1 => (node(), any::<bool>()).prop_map(|(node, is_out)| Op::OutOfService(node, is_out)),
        1 => node().prop_map(Op::NodeGone),
        2 => (0..8_u32).prop_map(Op::Quota),
        1 => (0..3_i32).prop_map(Op::Priority),
        2 => (0..3_u64).prop_map(Op::Dataset),
        1 => Just(Op::DatasetGone),
        3 => (node(), 0..3_u64).prop_map(|(node, bytes)| Op::Cached(node, bytes)),
        1 => any::<bool>().prop_map(Op::CacheQuota),
        1 => any::<bool>().prop_map(Op::OverQuota),
        1 => (0..2_u32).prop_map(Op::Type),
        1 => (0..3_usize).prop_map(Op::Settings),
        1 => any::<bool>().prop_map(Op::Sweep),
        1 => (node(), any::<bool>()).prop_map(|(node, is_there)| Op::Foreign(node, is_there)),
        2 => (part, any::<bool>()).prop_map(|(part, is_there)| Op::Part(part, is_there)),
        1 => Just(Op::Reinstall),
        1 => (of_few(), any::<bool>()).prop_map(|(group, has_room)| Op::Gang(group, has_room)),
        1 => of_few().prop_map(Op::GroupGone),
        4 => (of_few(), prop::bool::weighted(0.75)).prop_map(|(workload, admits)| Op::Admit(workload, admits)),
        1 => of_few().prop_map(Op::WorkloadGone),
        1 => (of_kueue, any::<bool>()).prop_map(|(kind, is_there)| Op::OfKueue(kind, is_there)),
        1 => Just(Op::Lease),
    ]
}

/// The kinds of an optional part of the API.
fn kinds(part: Part) -> Vec<Kind> {
    match part {
        Part::Kueue => KueueKind::ALL.map(|kind| Kind::Kueue(kind, KueueVersion::V1beta2)).to_vec(),
        Part::Jobs => Kind::OF_JOBS.to_vec(),
        Part::Gangs => vec![Kind::PodGroup],
        Part::Clusters => vec![Kind::Cluster],
    }
}

fn of_team(name: &str) -> Key {
    Key::new("team-a", name)
}

fn key_of(object: &Value) -> Key {
    let text = |field: &str| object["metadata"][field].as_str().unwrap_or_default();
    Key::new(text("namespace"), text("name"))
}

fn node_name(at: usize) -> String {
    format!("n{at:05}")
}

fn of_kind(objects: &BTreeMap<(Kind, Key), Value>, kind: Kind) -> impl Iterator<Item = &Value> {
    objects.iter().filter(move |((of, _), _)| *of == kind).map(|(_, object)| object)
}

/// Applies a merge patch.
fn merge(object: &mut Value, patch: &Value) {
    let Some(fields) = patch.as_object() else {
        *object = patch.clone();
        return;
    };
    if !object.is_object() {
        *object = json!({});
    }
    for (name, field) in fields {
        if field.is_null() {
            object.as_object_mut().expect("an object").remove(name);
        } else {
            merge(&mut object[name.as_str()], field);
        }
    }
}

/// Objects as the API has them, and two controllers that see them: only in the first, jobs may rest.
struct World {
    states: [State; 2],
    now: Seconds,
    version: u64,
    generation: u32,
    objects: BTreeMap<(Kind, Key), Value>,
    /// The optional parts of the API that the cluster serves.
    parts: Vec<Part>,
}

impl World {
    /// A cluster with all optional parts except gangs, without jobs.
    fn new() -> Self {
        let states = [state(0, 0), state(0, 0)].map(|mut state| {
            state.settings.keep_ended_jobs = Some(KEEP_SECONDS);
            state
        });
        let (objects, parts) = (BTreeMap::new(), Vec::new());
        let mut world = Self { states, now: NOW, version: 1, generation: 1, objects, parts };
        for part in [Part::Jobs, Part::Kueue, Part::Clusters] {
            world.apply(&Op::Part(part, true));
        }
        world.apply(&Op::Part(Part::Gangs, false));
        (0..NODES).for_each(|at| world.edit_node(at, |_| ()));
        let quota = json!({"nvidia.com/gpu": {"nominal": 6}});
        world.put(
            Kind::JobQueue,
            json!({"apiVersion": "larder.dev/v1alpha1", "kind": "Queue",
                "metadata": {"name": "blue", "uid": "uid-blue", "generation": 1},
                "spec": {"namespaces": ["team-a"], "flavors": [{"name": "h100", "quota": quota}]}}),
        );
        for op in [
            Op::Type(0),
            Op::Settings(1),
            Op::Priority(1),
            Op::Quota(6),
            Op::Dataset(2),
            Op::OfKueue(KueueKind::ResourceFlavor, true),
            Op::OfKueue(KueueKind::PriorityClass, true),
        ] {
            world.apply(&op);
        }
        world
    }

    /// True if the cluster serves a kind.
    fn serves(&self, kind: Kind) -> bool {
        kind.part().is_none_or(|part| self.parts.contains(&part))
    }

    fn put(&mut self, kind: Kind, mut object: Value) {
        self.version += 1;
        object["metadata"]["resourceVersion"] = self.version.to_string().into();
        if self.serves(kind) {
            for state in &mut self.states {
                state.apply(News::Changed(kind, parse(kind, object.clone())));
            }
        }
        self.objects.insert((kind, key_of(&object)), object);
    }

    fn gone(&mut self, kind: Kind, key: &Key) {
        self.version += 1;
        self.objects.remove(&(kind, key.clone()));
        if self.serves(kind) {
            for state in &mut self.states {
                state.apply(News::Gone(kind, key.clone(), self.version));
            }
        }
    }

    /// A job is gone, and with it all that it owns but pods and trials, which the garbage collector leaves for later.
    fn job_gone(&mut self, key: &Key) {
        let Some(job) = self.objects.get(&(Kind::TrainingJob, key.clone())) else { return };
        let uid = job["metadata"]["uid"].clone();
        self.gone(Kind::TrainingJob, key);
        for kind in [Kind::PodGroup, WORKLOAD] {
            let is_owned = |object: &&Value| object["metadata"]["ownerReferences"][0]["uid"] == uid;
            let owned: Vec<Key> = of_kind(&self.objects, kind).filter(is_owned).map(key_of).collect();
            owned.iter().for_each(|key| self.gone(kind, key));
        }
    }

    /// The pods of jobs.
    fn pods(&self) -> impl Iterator<Item = &Value> {
        of_kind(&self.objects, Kind::Pod).filter(|pod| pod["metadata"]["namespace"] == "team-a")
    }

    fn job(&self, name: &str) -> &Value {
        &self.objects[&(Kind::TrainingJob, of_team(name))]
    }

    fn edit(&mut self, kind: Kind, key: &Key, edit: impl FnOnce(&mut Value)) {
        let Some(mut object) = self.objects.get(&(kind, key.clone())).cloned() else { return };
        edit(&mut object);
        let metadata = &object["metadata"];
        let has_finalizers = metadata["finalizers"].as_array().is_some_and(|names| !names.is_empty());
        if kind == WORKLOAD && metadata["deletionTimestamp"].is_string() && !has_finalizers {
            self.gone(kind, key);
        } else {
            self.put(kind, object);
        }
    }

    fn edit_job(&mut self, at: usize, edit: impl FnOnce(&mut Value)) {
        self.edit(Kind::TrainingJob, &of_team(&format!("j{at}")), edit);
    }

    fn edit_pod(&mut self, at: usize, edit: impl FnOnce(&mut Value)) {
        let Some(key) = self.pods().nth(at).map(key_of) else { return };
        self.edit(Kind::Pod, &key, edit);
    }

    fn edit_node(&mut self, at: usize, edit: impl FnOnce(&mut Value)) {
        let there = self.objects.get(&(Kind::Node, Key::cluster(&node_name(at)))).cloned();
        let mut object = there.unwrap_or_else(|| {
            let (gpu, mut new) = (if at < 2 { "h100" } else { "a100" }, node(&node_name(at)));
            new["metadata"]["labels"] = json!({"gpu": gpu});
            new
        });
        edit(&mut object);
        self.put(Kind::Node, object);
    }

    /// The PodGroup or Workload with this number.
    fn nth(&self, kind: Kind, at: usize) -> Option<Key> {
        of_kind(&self.objects, kind).nth(at).map(key_of)
    }

    fn apply(&mut self, op: &Op) {
        self.generation += 1;
        let generation = self.generation;
        match *op {
            Op::Wait(seconds) => self.now += seconds,
            Op::Submit(at, pods, reads) => self.submit(at, pods, reads),
            Op::Suspend(at, suspend) => self.edit_job(at, |job| {
                (job["metadata"]["generation"], job["spec"]["suspend"]) = (generation.into(), suspend.into());
            }),
            Op::Delete(at) => self.job_gone(&of_team(&format!("j{at}"))),
            Op::Run(at) => self.edit_pod(at, |pod| {
                if pod["status"]["phase"].is_null() {
                    let node = planned_node(pod).unwrap_or_else(|| node_name(at % NODES));
                    run_on(pod, node);
                }
            }),
            Op::Fail(at, crashes) => self.edit_pod(at, |pod| {
                pod["status"] = json!({"phase": "Failed"});
                if crashes {
                    pod["status"]["containerStatuses"] = json!([{"name": "main", "image": "image", "imageID": "",
                        "ready": false, "restartCount": 0, "state": {"terminated": {"exitCode": 1}}}]);
                }
            }),
            Op::Succeed(at) => self.edit_pod(at, |pod| pod["status"] = json!({"phase": "Succeeded"})),
            Op::Gone(at) => {
                let Some(key) = self.pods().nth(at).map(key_of) else { return };
                self.gone(Kind::Pod, &key);
            }
            Op::Leaves(at) => {
                let Some(pod) = self.pods().nth(at).cloned() else { return };
                let uid = pod["metadata"]["uid"].as_str().expect("a uid");
                for state in &mut self.states {
                    state.leaves(Kind::Pod, &key_of(&pod), uid, &mut Vec::new());
                }
            }
            Op::Ready(at, ready) => self.edit_node(at, |node| {
                let status = if ready { "True" } else { "Unknown" };
                node["status"]["conditions"] =
                    json!([{"type": "Ready", "status": status, "lastTransitionTime": "2033-05-18T03:33:20Z"}]);
            }),
            Op::OutOfService(at, is_out) => self.edit_node(at, |node| {
                let taint = json!({"key": "node.kubernetes.io/out-of-service", "effect": "NoExecute"});
                node["spec"]["taints"] = if is_out { json!([taint]) } else { json!([]) };
            }),
            Op::NodeGone(at) => self.gone(Kind::Node, &Key::cluster(&node_name(at))),
            Op::Quota(gpus) => self.put(
                Kind::JobQueue,
                json!({"apiVersion": "larder.dev/v1alpha1", "kind": "Queue",
                    "metadata": {"name": "red", "uid": "uid-red", "generation": generation},
                    "spec": {"namespaces": ["team-a"], "quota": {"nvidia.com/gpu": {"nominal": gpus}}}}),
            ),
            Op::Priority(value) => self.put(
                Kind::PriorityClass,
                json!({"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "value": value,
                    "globalDefault": true, "metadata": {"name": "usual", "uid": "uid-usual"}}),
            ),
            Op::Dataset(bytes) => self.put(
                Kind::Dataset,
                json!({"apiVersion": "larder.dev/v1alpha1", "kind": "Dataset",
                    "metadata": {"namespace": "team-a", "name": "set", "uid": "uid-set"},
                    "spec": {"origin": {"source": "s3://bucket/set"}},
                    "status": {"snapshot": SNAPSHOT, "bytes": bytes}}),
            ),
            Op::DatasetGone => self.gone(Kind::Dataset, &of_team("set")),
            Op::Cached(at, bytes) => {
                let name = node_name(at);
                let snapshots: Vec<Value> =
                    ["", "anonymous"].map(|owner| json!({"snapshot": SNAPSHOT, "owner": owner, "bytes": bytes})).into();
                self.put(
                    Kind::NodeCache,
                    json!({"apiVersion": "larder.dev/v1alpha1", "kind": "NodeCache",
                        "metadata": {"name": name, "uid": format!("uid-cache-{name}")}, "spec": {},
                        "status": {"snapshots": snapshots}}),
                );
            }
            Op::CacheQuota(false) => self.gone(Kind::CacheQuota, &Key::cluster("quota")),
            Op::CacheQuota(true) => self.put(
                Kind::CacheQuota,
                json!({"apiVersion": "larder.dev/v1alpha1", "kind": "CacheQuota",
                    "metadata": {"name": "quota", "uid": "uid-quota", "generation": generation},
                    "spec": {"namespaces": ["team-a"], "promisedBytes": "1Gi"}}),
            ),
            Op::OverQuota(is_over_quota) => {
                let warmth = Warmth { is_over_quota, why: "the CacheQuota is used up".to_owned(), ..Warmth::default() };
                let of_job = |at: usize| (Requester::Job(of_team(&format!("j{at}"))), Progress::Warms(warmth.clone()));
                for state in &mut self.states {
                    state.progressed(&of_team("set"), (0..JOBS).map(of_job).collect(), &mut Vec::new());
                }
            }
            Op::Type(minutes) => {
                let mut object: Value = serde_yaml_ng::from_str(SINGLE).expect("a type");
                object["metadata"]["generation"] = generation.into();
                object["spec"]["environment"] = json!([{"name": "MINUTES", "value": minutes.to_string()}]);
                self.put(Kind::JobType, object);
            }
            Op::Settings(0) => self.gone(Kind::LarderSettings, &Key::cluster("larder")),
            Op::Settings(nodes) => {
                let labels = json!({"gpu": if nodes == 1 { "h100" } else { "b200" }});
                self.put(
                    Kind::LarderSettings,
                    json!({"apiVersion": "larder.dev/v1alpha1", "kind": "LarderSettings",
                        "metadata": {"name": "larder", "uid": "uid-larder"},
                        "spec": {"flavors": [{"name": "h100", "nodeLabels": labels}]}}),
                );
            }
            Op::Sweep(false) => self.job_gone(&of_team("sweep")),
            Op::Sweep(true) => {
                if !self.objects.contains_key(&(Kind::TrainingJob, of_team("sweep"))) {
                    let mut object = job("sweep");
                    object["metadata"]["uid"] = format!("uid-sweep-{generation}").into();
                    object["spec"]["sweep"] = json!({"grid": [{"name": "RATE", "values": ["1", "2"]}]});
                    self.put(Kind::TrainingJob, object);
                }
            }
            Op::Foreign(at, is_there) => {
                let name = format!("foreign-{at}");
                if !is_there {
                    return self.gone(Kind::Pod, &Key::new("team-b", &name));
                }
                self.put(
                    Kind::Pod,
                    json!({"apiVersion": "v1", "kind": "Pod",
                        "metadata": {"namespace": "team-b", "name": name, "uid": format!("uid-{name}")},
                        "spec": {"nodeName": node_name(at),
                            "containers": [{"name": "main", "resources": {"limits": {"nvidia.com/gpu": "6"}}}]}}),
                );
            }
            Op::Part(part, is_there) => self.serve(part, is_there),
            Op::Reinstall => {
                self.serve(Part::Jobs, false);
                self.round();
                self.serve(Part::Jobs, true);
            }
            Op::Gang(at, has_room) => {
                let Some(key) = self.nth(Kind::PodGroup, at) else { return };
                let (status, reason) = if has_room { ("True", "Scheduled") } else { ("False", "Unschedulable") };
                self.edit(Kind::PodGroup, &key, |group| {
                    group["status"]["conditions"] = json!([{"type": "PodGroupInitiallyScheduled", "status": status,
                        "reason": reason, "message": "", "lastTransitionTime": "2033-05-18T03:33:20Z"}]);
                });
            }
            Op::GroupGone(at) => {
                let Some(key) = self.nth(Kind::PodGroup, at) else { return };
                self.gone(Kind::PodGroup, &key);
            }
            Op::Admit(at, admits) => {
                let Some(key) = self.nth(WORKLOAD, at) else { return };
                let condition = |kind: &str, holds: bool| {
                    json!({"type": kind, "status": if holds { "True" } else { "False" }, "reason": "Preempted",
                        "message": "", "lastTransitionTime": "2033-05-18T03:33:20Z"})
                };
                let conditions = [("QuotaReserved", true), ("Admitted", true), ("Evicted", !admits)];
                let conditions = conditions.map(|(kind, holds)| condition(kind, holds)).to_vec();
                self.edit(WORKLOAD, &key, |workload| {
                    let pods = json!([{"name": "worker", "flavors": {"nvidia.com/gpu": "default"}}]);
                    workload["status"] = json!({"conditions": conditions,
                        "admission": {"clusterQueue": "all", "podSetAssignments": pods}});
                });
            }
            Op::WorkloadGone(at) => {
                let Some(key) = self.nth(WORKLOAD, at) else { return };
                self.gone(WORKLOAD, &key);
            }
            Op::OfKueue(kind, is_there) => {
                let kind = Kind::Kueue(kind, KueueVersion::V1beta2);
                if is_there {
                    self.put(kind, json!({"metadata": {"name": "default", "uid": "uid-default"}, "value": 1}));
                } else {
                    self.gone(kind, &Key::cluster("default"));
                }
            }
            Op::Lease => {
                let annotations = json!({"home.larder.dev/hq_u": self.now.0.to_string()});
                self.put(
                    Kind::Cluster,
                    json!({"apiVersion": "larder.dev/v1alpha1", "kind": "Cluster", "spec": {},
                        "metadata": {"name": "here", "uid": "uid-here", "annotations": annotations}}),
                );
            }
        }
    }

    /// The part of the API appears with its objects, or disappears.
    fn serve(&mut self, part: Part, is_there: bool) {
        self.parts.retain(|other| *other != part);
        self.parts.extend(is_there.then_some(part));
        for state in &mut self.states {
            if !is_there {
                state.apply(News::Absent(part));
                continue;
            }
            for kind in kinds(part) {
                let objects = of_kind(&self.objects, kind).map(|object| parse(kind, object.clone())).collect();
                state.apply(News::All(kind, objects, Vec::new()));
            }
        }
    }

    fn submit(&mut self, at: usize, pods: u32, reads: bool) {
        let name = format!("j{at}");
        if self.objects.contains_key(&(Kind::TrainingJob, of_team(&name))) {
            return;
        }
        let mut object = job(&name);
        object["metadata"]["uid"] = format!("uid-{name}-{}", self.generation).into();
        object["spec"]["roles"][0]["replicas"] = pods.into();
        match at {
            0 | 2 => object["spec"]["queue"] = "red".into(),
            1 => object["spec"]["queue"] = "blue".into(),
            3 => {
                let owner = |sweep: &Value| {
                    json!({"apiVersion": "larder.dev/v1alpha1", "kind": "TrainingJob", "name": "sweep",
                        "uid": sweep["metadata"]["uid"], "controller": true})
                };
                let sweep = self.objects.get(&(Kind::TrainingJob, of_team("sweep")));
                object["metadata"]["ownerReferences"] = sweep.map(owner).into_iter().collect();
            }
            4 => {
                object["metadata"]["labels"] =
                    json!({"kueue.x-k8s.io/queue-name": "main", "kueue.x-k8s.io/priority-class": "default"});
                object["spec"]["restart"] = json!({"maxCrashes": 0});
            }
            _ => {
                object["metadata"]["labels"] = json!({"larder.dev/home": "hq_u", "larder.dev/home-job": "uid-home"});
                object["metadata"]["annotations"] =
                    json!({"larder.dev/home-read": self.now.0.to_string(), "larder.dev/fence-after": "120"});
            }
        }
        if reads {
            object["spec"]["datasets"] = json!([{"name": "set", "mountPath": "/set", "minWarm": 50}]);
        }
        self.put(Kind::TrainingJob, object);
    }

    /// A round of both controllers. They must decide the same, and the API accepts their writes.
    fn round(&mut self) {
        let now = self.now;
        self.states[1].jobs.job_states.values_mut().for_each(|job_state| job_state.rest = None);
        let [quick, thorough] = self.states.each_mut().map(|state| {
            let again_at = state.round(now, &String::new, &mut Vec::new());
            accept(state);
            (std::mem::take(&mut state.jobs.ready), again_at)
        });
        assert_eq!(quick, thorough);
        let [of_quick, of_thorough] = &self.states;
        let records = |state: &State| -> Vec<_> {
            state.jobs.job_states.iter().map(|(key, it)| (key.clone(), it.record.clone(), it.waiting.clone())).collect()
        };
        assert_eq!(records(of_quick), records(of_thorough));
        assert_eq!(of_quick.jobs.warm_requests, of_thorough.jobs.warm_requests);
        assert_eq!(of_quick.jobs.queue_reports, of_thorough.jobs.queue_reports);
        for write in quick.0.into_values().flatten() {
            self.execute(write);
        }
        for state in &mut self.states {
            for job_state in state.jobs.job_states.values_mut() {
                job_state.begin();
                job_state.end(true, true, None, now);
            }
        }
    }

    fn execute(&mut self, write: Write) {
        let (kind, key) = (write.kind, Key::new(&write.namespace, &write.name));
        // Rounds read no other kinds that they write.
        if !matches!(kind, Kind::Pod | Kind::TrainingJob | Kind::PodGroup | WORKLOAD) {
            return;
        }
        match write.change {
            Change::Make(mut object) | Change::Create(mut object) => {
                object["metadata"]["uid"] = format!("uid-{}-{}", key.name, self.version).into();
                if !self.objects.contains_key(&(kind, key)) {
                    self.put(kind, object);
                }
            }
            Change::ApplyStatus(fields) => {
                self.edit(kind, &key, |object| object["status"] = fields["status"].clone());
            }
            Change::Merge(patch) | Change::MergeStatus(patch) => {
                self.edit(kind, &key, |object| merge(object, &patch));
            }
            Change::Delete(_) if kind == Kind::TrainingJob => self.job_gone(&key),
            // The watch reports it later.
            Change::Delete(uid) if kind == Kind::PodGroup => {
                self.states.iter_mut().for_each(|state| state.leaves(kind, &key, &uid, &mut Vec::new()));
            }
            Change::Delete(_) => self.edit(kind, &key, |object| {
                object["metadata"]["deletionTimestamp"] = "2033-05-18T03:33:50Z".into();
            }),
            Change::Apply(_) | Change::ApplyStatusAs(..) | Change::Try(_) => {}
        }
    }
}

/// True if a job runs and rests.
fn rests(world: &World, name: &str) -> bool {
    let state = &world.states[0];
    let job_state = &state.jobs.job_states[&Key::new("team-a", name)];
    job_state.rest.as_ref().is_some_and(|rest| rest.counted.is_some() && rest.wakes == state.jobs.wakes)
}

/// Rounds until all statuses are written.
fn settle(world: &mut World) {
    for _ in 0..3 {
        world.apply(&Op::Wait(20));
        world.round();
    }
}

/// Submits `j0`, and runs all of its pods.
fn run_job(world: &mut World, pods: u32, reads: bool) {
    world.apply(&Op::Submit(0, pods, reads));
    for at in 0..NODES {
        world.apply(&Op::Cached(at, 2));
    }
    world.round();
    world.round();
    (0..pods as usize).for_each(|at| world.apply(&Op::Run(at)));
    settle(world);
    assert!(rests(world, "j0"), "{:#?}", world.states[0].jobs.job_states);
}

/// A world in which `j0` runs with two pods, and rests.
fn with_a_job_at_rest(reads: bool) -> World {
    let mut world = World::new();
    run_job(&mut world, 2, reads);
    world
}

#[test]
fn a_job_that_runs_rests_until_something_that_it_depends_on_changes() {
    let wakes = |op: Op| {
        let mut world = with_a_job_at_rest(true);
        let on = |pod: usize| world.pods().nth(pod).expect("a pod")["spec"]["nodeName"].clone();
        assert_eq!((on(0), on(1)), ("n00000".into(), "n00000".into()));
        world.apply(&op);
        let is_awake = !rests(&world, "j0");
        world.round();
        is_awake
    };
    for op in [
        Op::Fail(0, true),
        Op::Succeed(1),
        Op::Gone(1),
        Op::Leaves(0),
        Op::Ready(0, false),
        Op::OutOfService(0, true),
        Op::NodeGone(0),
        Op::Cached(0, 1),
        Op::Dataset(1),
        Op::DatasetGone,
        Op::Suspend(0, true),
        Op::Quota(1),
        Op::Priority(2),
        Op::Type(1),
        Op::Settings(0),
        Op::Settings(2),
        Op::Part(Part::Gangs, true),
        Op::Part(Part::Kueue, false),
        Op::Part(Part::Clusters, false),
    ] {
        assert!(wakes(op.clone()), "{op:?}");
    }
    for op in [
        Op::Wait(1),
        Op::Ready(1, false),
        Op::Cached(1, 1),
        Op::Submit(1, 1, true),
        Op::Foreign(1, true),
        Op::CacheQuota(true),
        Op::Sweep(true),
        Op::OfKueue(KueueKind::ResourceFlavor, false),
        Op::Lease,
    ] {
        assert!(!wakes(op.clone()), "{op:?}");
    }
}

#[test]
fn a_gang_of_the_scheduler_rests_until_its_pod_group_changes() {
    let at_rest = || {
        let mut world = World::new();
        world.apply(&Op::Part(Part::Gangs, true));
        run_job(&mut world, 2, false);
        world
    };
    for op in [Op::Gang(0, false), Op::GroupGone(0), Op::Part(Part::Gangs, false)] {
        let mut world = at_rest();
        world.apply(&op);
        assert!(!rests(&world, "j0"), "{op:?}");
        world.round();
    }
    // Its group is made again.
    let mut world = at_rest();
    world.apply(&Op::GroupGone(0));
    assert_eq!(world.nth(Kind::PodGroup, 0), None);
    world.round();
    assert_eq!(world.nth(Kind::PodGroup, 0), Some(of_team("j0-1")));
}

// SEMANTICS: J11
#[test]
fn an_ended_trial_is_deleted_in_time_once_its_sweep_is_gone() {
    let mut world = World::new();
    world.apply(&Op::Sweep(true));
    world.apply(&Op::Submit(3, 1, false));
    world.round();
    world.round();
    world.apply(&Op::Run(0));
    settle(&mut world);
    world.apply(&Op::Succeed(0));
    settle(&mut world);
    world.apply(&Op::Wait(KEEP_SECONDS));
    world.round();
    assert_eq!(phases(&world.states[0], Phase::Succeeded), 1, "its sweep deletes it");
    world.apply(&Op::Sweep(false));
    world.round();
    assert_eq!(of_kind(&world.objects, Kind::TrainingJob).count(), 0);
}

#[test]
fn a_failed_job_of_kueue_leaves_the_room_of_pods_that_are_gone_to_others() {
    let mut world = World::new();
    // Two GPUs are left.
    for op in [Op::NodeGone(1), Op::NodeGone(2), Op::Foreign(0, true), Op::Submit(4, 2, false)] {
        world.apply(&op);
    }
    world.round();
    world.round();
    world.apply(&Op::Admit(0, true));
    world.round();
    (0..2).for_each(|at| world.apply(&Op::Run(at)));
    settle(&mut world);
    assert_eq!(phases(&world.states[0], Phase::Running), 1);
    world.apply(&Op::Submit(3, 2, false));
    settle(&mut world);
    assert_eq!(phases(&world.states[0], Phase::Queued), 1);
    world.apply(&Op::Fail(0, true));
    world.round();
    assert_eq!((phases(&world.states[0], Phase::Failed), phases(&world.states[0], Phase::Queued)), (1, 1));
    world.apply(&Op::Gone(1));
    world.round();
    assert_eq!(phases(&world.states[0], Phase::Starting), 1);
}

#[test]
fn a_job_at_rest_is_stopped_when_its_queue_drains() {
    let mut world = with_a_job_at_rest(false);
    let spec = json!({"namespaces": ["team-a"], "quota": {"nvidia.com/gpu": {"nominal": 6}}, "stop": "drain"});
    // A queue that is changed without a new generation wakes no job, but the verdict does.
    let generation = world.states[0].jobs.queues.get(&Key::cluster("red")).expect("a queue").generation;
    let metadata = json!({"name": "red", "uid": "uid-red", "generation": generation});
    let queue = json!({"apiVersion": "larder.dev/v1alpha1", "kind": "Queue", "metadata": metadata, "spec": spec});
    world.put(Kind::JobQueue, queue);
    assert!(rests(&world, "j0"));
    world.round();
    assert_eq!(phases(&world.states[0], Phase::Running), 0);
    assert!(world.pods().all(|pod| pod["metadata"]["deletionTimestamp"].is_string()));
}

#[test]
fn a_job_rests_on_nodes_that_report_no_device_fault() {
    let mut world = World::new();
    for at in 0..NODES {
        world.edit_node(at, |node| {
            let works = json!({"type": "larder.dev/DeviceFault", "status": "False"});
            node["status"]["conditions"].as_array_mut().expect("conditions").push(works);
        });
    }
    run_job(&mut world, 2, false);
}

#[test]
fn a_job_at_rest_forgets_after_an_hour_which_nodes_refused_its_pods() {
    let mut world = with_a_job_at_rest(false);
    let at = world.now;
    for state in &mut world.states {
        let job_state = state.jobs.job_states.get_mut(&Key::new("team-a", "j0")).expect("a job");
        job_state.record.state.refused_by = vec![RefusedBy { role: 0, node: "n00001".to_owned(), at }];
        job_state.rest = None;
    }
    world.round();
    assert!(rests(&world, "j0"));
    world.apply(&Op::Wait(3_600));
    world.round();
    let job_state = &world.states[0].jobs.job_states[&Key::new("team-a", "j0")];
    assert!(job_state.record.state.refused_by.is_empty(), "{:?}", job_state.record);
}

#[test]
fn a_job_sees_the_data_on_the_node_of_a_pod_that_is_done() {
    let mut world = World::new();
    // Two of its three pods have room on a node.
    (0..NODES).for_each(|at| world.apply(&Op::Foreign(at, true)));
    run_job(&mut world, 3, true);
    let nodes: Vec<String> = world.pods().map(|pod| pod["spec"]["nodeName"].to_string()).collect();
    let is_alone = |at: &usize| nodes.iter().filter(|node| **node == nodes[*at]).count() == 1;
    let done = (0..3).find(is_alone).expect("a pod that has a node of its own");
    world.apply(&Op::Succeed(done));
    settle(&mut world);
    let node = (0..NODES).find(|at| nodes[done].contains(&format!("n{at:05}"))).expect("its node");
    world.apply(&Op::Cached(node, 1));
    settle(&mut world);
    let status = &world.job("j0")["status"];
    assert_eq!(status["phase"], "Running");
    assert_eq!(status["shown"]["data"], "75%", "all of two bytes on one node, and one on the other");
}

#[test]
fn a_job_that_has_ended_shows_what_its_nodes_held_at_its_end() {
    let mut world = with_a_job_at_rest(true);
    (0..2).for_each(|at| world.apply(&Op::Succeed(at)));
    settle(&mut world);
    assert_eq!(phases(&world.states[0], Phase::Succeeded), 1);
    world.apply(&Op::Cached(0, 1));
    world.apply(&Op::Priority(2));
    settle(&mut world);
    assert_eq!(world.job("j0")["status"]["shown"]["data"], "100%");
}

proptest! {
    #[test]
    fn rounds_decide_the_same_as_if_no_job_rested(ops in prop::collection::vec(any_op(), 1..80)) {
        let mut world = World::new();
        for op in &ops {
            world.apply(op);
            world.round();
        }
    }
}
