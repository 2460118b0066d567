//! A job of the benchmark, and its objects for each system.

use std::time::Duration;

use larder_api::names::KUEUE_QUEUE_LABEL;
use serde_json::{Value, json};

use crate::kubernetes::objects::{NAMESPACE, PART_LABEL};

/// On each pod: its job. Larder's pods do not get it from their template, but have a label of Larder's, so that equal
/// jobs have the same pod-spec hash.
pub(crate) const WORK_LABEL: &str = "larder.dev/bench-job";

/// On a pod: its PodGroup, for coscheduling.
const GROUP_LABEL: &str = "scheduling.x-k8s.io/pod-group";

/// Annotations for kwok: how long a pod runs, and how long it terminates once deleted (tests/cluster/kwok-pods.yaml).
const RUNS_FOR: &str = "test.larder.dev/runs-for";
const LEAVES_AFTER: &str = "test.larder.dev/leaves-after";

/// The priority of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Priority {
    Low,
    Middle,
    High,
}

impl Priority {
    pub(crate) const ALL: [Self; 3] = [Self::Low, Self::Middle, Self::High];

    /// The PriorityClass.
    pub(crate) fn name(self) -> String {
        let name = match self {
            Self::Low => "low",
            Self::Middle => "middle",
            Self::High => "high",
        };
        format!("{NAMESPACE}-{name}")
    }

    /// The value, as in Kueue's own scenario.
    pub(crate) fn value(self) -> i32 {
        match self {
            Self::Low => 50,
            Self::Middle => 100,
            Self::High => 200,
        }
    }
}

/// The JobType of a job, one of the types that Larder ships.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Type {
    Single,
    Pytorch,
    PytorchElastic,
}

impl Type {
    pub(crate) const ALL: [Self; 3] = [Self::Single, Self::Pytorch, Self::PytorchElastic];

    /// The name of the benchmark's copy of the type. The cluster's own types stay unchanged.
    pub(crate) fn name(self) -> String {
        let name = match self {
            Self::Single => "single",
            Self::Pytorch => "pytorch",
            Self::PytorchElastic => "pytorch-elastic",
        };
        format!("{NAMESPACE}-{name}")
    }

    /// The type's manifest as Larder ships it.
    pub(crate) fn manifest(self) -> &'static str {
        match self {
            Self::Single => include_str!("../../../deploy/components/jobs/types/single.yaml"),
            Self::Pytorch => include_str!("../../../deploy/components/jobs/types/pytorch.yaml"),
            Self::PytorchElastic => include_str!("../../../deploy/components/jobs/types/pytorch-elastic.yaml"),
        }
    }
}

/// A job of equal pods.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Work {
    pub(crate) name: String,
    pub(crate) type_: Type,
    pub(crate) pods: u32,
    /// The minimum number of pods, as `min` of the role.
    pub(crate) min: u32,
    pub(crate) queue: String,
    /// Requests of each pod.
    pub(crate) cpus: u32,
    pub(crate) gpus: u32,
    pub(crate) priority: Option<Priority>,
    /// When the job is created, relative to the first job.
    pub(crate) due: Duration,
    /// How long each pod runs; `None` until it is deleted.
    pub(crate) runs_for: Option<Duration>,
    /// How long a deleted pod terminates; `None` ends it immediately.
    pub(crate) grace: Option<Duration>,
    /// The part of the nodes that it may run on; `None` for all nodes.
    pub(crate) part: Option<u32>,
}

impl Work {
    /// A job of `pods` pods with one CPU each.
    pub(crate) fn new(name: String, pods: u32, queue: &str) -> Self {
        let type_ = if pods == 1 { Type::Single } else { Type::Pytorch };
        let (queue, priority, runs_for, grace, part) = (queue.to_owned(), None, None, None, None);
        let due = Duration::ZERO;
        Self { name, type_, pods, min: pods, queue, cpus: 1, gpus: 0, priority, due, runs_for, grace, part }
    }

    /// The TrainingJob, for Larder.
    pub(crate) fn training_job(&self) -> Value {
        let mut template = self.template();
        template["metadata"]["labels"] = json!({});
        json!({
            "apiVersion": "larder.dev/v1alpha1", "kind": "TrainingJob",
            "metadata": {"name": self.name},
            "spec": {
                "type": self.type_.name(),
                "queue": self.queue,
                "roles": [{"name": "worker", "replicas": self.pods, "min": self.min, "template": template}],
            },
        })
    }

    /// The Job, for Kubernetes' Job controller and a queue of Kueue.
    pub(crate) fn batch_job(&self) -> Value {
        let mut template = self.template();
        template["spec"]["restartPolicy"] = "Never".into();
        json!({
            "apiVersion": "batch/v1", "kind": "Job",
            "metadata": {"name": self.name, "labels": {KUEUE_QUEUE_LABEL: self.queue}},
            "spec": {
                "suspend": true,
                "parallelism": self.pods,
                "completions": self.pods,
                "completionMode": "Indexed",
                "backoffLimit": 0,
                "template": template,
            },
        })
    }

    /// The pods without a job object, for kube-scheduler or the named scheduler.
    pub(crate) fn bare_pods(&self, scheduler: Option<&str>) -> Vec<Value> {
        let mut pod = self.template();
        if let Some(scheduler) = scheduler {
            pod["spec"]["schedulerName"] = scheduler.into();
            pod["metadata"]["labels"][GROUP_LABEL] = self.name.clone().into();
        }
        pod["spec"]["restartPolicy"] = "Never".into();
        let named = |index| {
            let mut pod = pod.clone();
            pod["metadata"]["name"] = format!("{}-{index}", self.name).into();
            pod
        };
        (0..self.pods).map(named).collect()
    }

    /// The PodGroup of the pods, for coscheduling.
    pub(crate) fn pod_group(&self) -> Value {
        json!({
            "apiVersion": "scheduling.x-k8s.io/v1alpha1", "kind": "PodGroup",
            "metadata": {"name": self.name},
            "spec": {"minMember": self.pods},
        })
    }

    fn template(&self) -> Value {
        let mut resources = json!({"cpu": self.cpus.to_string(), "memory": "1Gi"});
        if self.gpus > 0 {
            resources["nvidia.com/gpu"] = self.gpus.to_string().into();
        }
        let mut annotations = json!({});
        for (name, time) in [(RUNS_FOR, self.runs_for), (LEAVES_AFTER, self.grace)] {
            if let Some(time) = time {
                annotations[name] = format!("{}ms", time.as_millis()).into();
            }
        }
        let mut spec = json!({
            "tolerations": [{"key": "kwok.x-k8s.io/node", "operator": "Exists"}],
            "containers": [{
                "name": "train",
                "image": "larder.dev/none:1",
                "resources": {"requests": resources, "limits": resources},
            }],
        });
        if let Some(priority) = self.priority {
            spec["priorityClassName"] = priority.name().into();
        }
        if let Some(grace) = self.grace {
            spec["terminationGracePeriodSeconds"] = grace.as_secs().into();
        }
        if let Some(part) = self.part {
            spec["nodeSelector"] = json!({PART_LABEL: part.to_string()});
        }
        json!({"metadata": {"labels": {WORK_LABEL: self.name}, "annotations": annotations}, "spec": spec})
    }
}
