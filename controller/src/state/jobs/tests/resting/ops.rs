//! The events of a cluster.

use larder_kube::kinds::{KueueKind, KueueVersion};
use proptest::prelude::*;

use super::super::*;
use super::world::{FEW, JOBS, NODES, PODS, SNAPSHOT, WORKLOAD, World, key_of, node_name, of_team};
use crate::warm_request::{Progress, Requester, Warmth};

/// An event, with jobs, nodes and pods by number.
#[derive(Clone, Debug)]
pub(super) enum Op {
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

pub(super) fn any_op() -> impl Strategy<Value = Op> {
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

impl World {
    pub(super) fn apply(&mut self, op: &Op) {
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
}
