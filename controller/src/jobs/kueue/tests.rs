mod asks;
mod decides;
mod moved;
mod obeys;
mod places;
mod prebuilt;
mod reads;
mod slices;

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::decide::{Decision, Situation, decide};
use super::priority::{Classes, NoClass};
use super::wanted::{Asking, NoWorkload, Wanted};
use crate::jobs::machine::{NodeHealth, Observed, Phase, Pod, PodStage, Scope, Slot, Stage, State, Terms};
use crate::jobs::queue::Verdict;
use crate::jobs::sample::{Sample, role};
use crate::kueue::objects::Flavor;
use crate::kueue::workload::{JobWorkload, since, workload};
use crate::time::Seconds;
use crate::write::{Change, Write};
use k8s_openapi::api::core::v1::Toleration;
use larder_kube::key::{Key, Meta};
use larder_kube::kinds::KueueVersion;
use larder_kube::store::Store;

const NAME: &str = "trainingjob-train-95c868";

/// 2026-01-01T10:40:00Z.
const NOW: Seconds = Seconds(1_767_264_000);

/// Eight workers, of which four are enough, and a parameter server.
fn sample() -> Sample {
    Sample::of("parameter-server", json!({"roles": [role("server", 1, 1), role("worker", 8, 4)]}))
}

fn wanted_with(sample: &Sample, labels: &[(&str, &str)], classes: &Classes) -> Result<Wanted, NoWorkload> {
    let labels = labels.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
    let annotations = [("provreq.kueue.x-k8s.io/ValidUntilSeconds".to_owned(), "0".to_owned())].into();
    let asking = Asking {
        rendered: sample.rendered(),
        queue: "gpus",
        labels: &labels,
        annotations: &annotations,
        pods: &sample.pods,
        classes,
        replaces: None,
    };
    Wanted::of(&asking, KueueVersion::V1beta1)
}

/// The Workload of the sample job if it is elastic.
fn elastic(sample: &Sample, replaces: Option<&JobWorkload>) -> Result<Wanted, NoWorkload> {
    let annotations: BTreeMap<String, String> = [("kueue.x-k8s.io/elastic-job".to_owned(), "true".to_owned())].into();
    let (labels, classes) = (BTreeMap::new(), Classes::default());
    let asking = Asking {
        rendered: sample.rendered(),
        queue: "gpus",
        labels: &labels,
        annotations: &annotations,
        pods: &sample.pods,
        classes: &classes,
        replaces,
    };
    Wanted::of(&asking, KueueVersion::V1beta2)
}

fn wanted(sample: &Sample) -> Wanted {
    wanted_with(sample, &[], &Classes::default()).expect("a Workload")
}

/// A condition as Kueue writes it, with the transition time 10:32.
fn condition(kind: &str, status: &str, reason: &str, message: &str) -> Value {
    json!({
        "type": kind, "status": status, "reason": reason, "message": message, "observedGeneration": 1,
        "lastTransitionTime": "2026-01-01T10:32:00Z",
    })
}

/// Reads a Workload; `None` if it concerns no TrainingJob.
fn find(value: Value) -> Option<JobWorkload> {
    let object = serde_json::from_value(value).expect("an object");
    workload(object).expect("understood")?.of_job.map(|of_job| *of_job)
}

/// The Workload of the sample job with this status, as the API server returns it.
fn served(sample: &Sample, status: Value) -> Value {
    made(wanted(sample).create(), status)
}

/// A Workload that was created by this write, as the API server returns it.
fn made(write: Write, status: Value) -> Value {
    let Change::Create(mut made) = write.change else { panic!("{write:?}") };
    made["apiVersion"] = "kueue.x-k8s.io/v1beta1".into();
    made["kind"] = "Workload".into();
    let metadata =
        json!({"name": write.name, "namespace": "team-a", "uid": "w-1", "resourceVersion": "71", "generation": 1});
    made["metadata"].as_object_mut().expect("an object").extend(metadata.as_object().expect("an object").clone());
    made["spec"]["active"] = true.into();
    made["status"] = status;
    made
}

fn read(value: Value) -> JobWorkload {
    find(value).expect("of a job")
}

fn there(sample: &Sample, status: Value) -> JobWorkload {
    read(served(sample, status))
}

/// The status of a Workload with this many workers admitted.
fn admission(workers: u32) -> Value {
    let assignment = |name: &str, count: u32, flavor: &str| {
        json!({
            "name": name, "count": count,
            "flavors": {"cpu": "default", "memory": "default", "nvidia.com/gpu": flavor},
            "resourceUsage": {"cpu": (8 * count).to_string(), "nvidia.com/gpu": count.to_string()},
        })
    };
    json!({
        "conditions": [
            condition("QuotaReserved", "True", "QuotaReserved", "Quota reserved in ClusterQueue research"),
            condition("Admitted", "True", "Admitted", "The workload is admitted"),
        ],
        "admission": {
            "clusterQueue": "research",
            "podSetAssignments": [assignment("server", 1, "default"), assignment("worker", workers, "h100")],
        },
    })
}

/// The same status after an eviction by Kueue.
fn eviction(reason: &str, message: &str) -> Value {
    let mut status = admission(8);
    status["conditions"].as_array_mut().expect("a list").push(condition("Evicted", "True", reason, message));
    status
}

fn flavors() -> Store<Flavor> {
    let flavor = |name: &str, labels: &[(&str, &str)], tolerations| Flavor {
        meta: Meta { key: Key::cluster(name), ..Meta::default() },
        labels: labels.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect(),
        tolerations,
    };
    let spot = Toleration {
        key: Some("spot".into()),
        operator: Some("Exists".into()),
        toleration_seconds: Some(30),
        ..Toleration::default()
    };
    let all = [flavor("default", &[], Vec::new()), flavor("h100", &[("gpu", "h100")], vec![spot])];
    let mut flavors = Store::default();
    for flavor in all {
        flavors.put(flavor);
    }
    flavors
}

/// A job with these numbers of servers and workers, all ready.
fn running(servers: u32, workers: u32) -> (State, Vec<Pod>) {
    let slots = |count: u32| (0..count).map(|_| Slot { attempt: 1, node: None, stage: Stage::Seen }).collect();
    let roles = vec![slots(servers), slots(workers)];
    let state = State { phase: Phase::Running, attempts: 1, roles, ..State::default() };
    let pod = |(id, _)| Pod { id, stage: PodStage::Ready, node: Some(NodeHealth::default()), ..Pod::default() };
    let pods = state.slots().map(pod).collect();
    (state, pods)
}

struct Case {
    sample: Sample,
    state: State,
    observed: Observed,
    workloads: Vec<JobWorkload>,
    flavors: Store<Flavor>,
    wanted: Result<Wanted, NoWorkload>,
    version: KueueVersion,
    elastic: bool,
    is_prebuilt: bool,
    said: Option<(String, Seconds)>,
}

impl Case {
    /// A queued job with its Workload.
    fn queued(workload: Option<JobWorkload>) -> Self {
        let sample = sample();
        let mut terms = Terms { scope: Scope::Worker, ..sample.terms() };
        terms.roles.iter_mut().for_each(|role| role.two_pods = true);
        let wanted = Ok(wanted(&sample));
        let observed = Observed { terms, ..Observed::default() };
        let workloads = workload.into_iter().collect();
        let version = KueueVersion::V1beta1;
        Self {
            sample,
            state: State::default(),
            observed,
            workloads,
            flavors: flavors(),
            wanted,
            version,
            elastic: false,
            is_prebuilt: false,
            said: None,
        }
    }

    /// A running job with its Workload.
    fn running(workload: Option<JobWorkload>, workers: u32) -> Self {
        let mut case = Self::queued(workload);
        (case.state, case.observed.pods) = running(1, workers);
        case
    }

    fn decide(&self) -> Decision {
        decide(&Situation {
            now: NOW,
            version: self.version,
            name: "train",
            uid: &self.sample.uid,
            job: &self.sample.job,
            queue: "gpus",
            workload: NAME,
            is_prebuilt: self.is_prebuilt,
            said: self.said.as_ref().map(|(said, since)| (said.as_str(), *since)),
            wanted: &|replaces| match replaces {
                None if !self.elastic => self.wanted.clone(),
                replaces => elastic(&self.sample, replaces),
            },
            elastic: self.elastic,
            pods: &self.sample.pods,
            state: &self.state,
            observed: &self.observed,
            workloads: self.workloads.iter().collect(),
            flavors: &self.flavors,
        })
    }

    /// Whether the job stops, why it waits or stops, and the writes.
    fn held_up(&self) -> (bool, String, Vec<Write>) {
        let decision = self.decide();
        assert_eq!(decision.places, None, "no pods without quota");
        match decision.verdict {
            Verdict::Wait(waiting) => (false, waiting.why, decision.writes),
            Verdict::Stop { why } => (true, why, decision.writes),
            verdict => panic!("{verdict:?}"),
        }
    }
}

/// The status of the only write: by condition the status and reason; and the whole patch.
fn status_of(writes: &[Write]) -> (BTreeMap<String, (String, String)>, Value) {
    let [Write { change: Change::MergeStatus(fields), .. }] = writes else { panic!("{writes:?}") };
    assert_eq!(fields["metadata"], json!({"resourceVersion": "71"}), "it fails if the Workload has changed");
    let text = |value: &Value| value.as_str().expect("a text").to_owned();
    let conditions = fields["status"]["conditions"].as_array().expect("a list").iter();
    let conditions = conditions.map(|one| (text(&one["type"]), (text(&one["status"]), text(&one["reason"]))));
    (conditions.collect(), fields["status"].clone())
}

fn pair(status: &str, reason: &str) -> (String, String) {
    (status.to_owned(), reason.to_owned())
}
