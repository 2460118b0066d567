//! The priority of a job's Workload, determined as Kueue's own integrations do: the WorkloadPriorityClass in the job's
//! label, else the PriorityClass of its pods, else the default PriorityClass, else 0.

use std::collections::BTreeMap;
use std::fmt;

use k8s_openapi::api::core::v1::Pod;
use serde_json::{Value, json};

use super::names::PRIORITY_LABEL;
use crate::jobs::objects::ClassObject;
use crate::kueue::objects::Class;
use larder_kube::kinds::KueueVersion;
use larder_kube::store::Store;

/// The priority classes of the cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Classes {
    /// The values of WorkloadPriorityClasses, by name.
    pub workloads: BTreeMap<String, i32>,
    /// The values of PriorityClasses, by name.
    pub pods: BTreeMap<String, i32>,
    /// The PriorityClass of pods that name none.
    pub default: Option<String>,
}

impl Classes {
    /// The priority classes in these stores.
    pub fn of(workloads: &Store<Class>, pods: &Store<ClassObject>) -> Self {
        Self {
            workloads: workloads.iter().map(|class| (class.meta.key.name.clone(), class.value)).collect(),
            pods: pods.iter().map(|class| (class.meta.key.name.clone(), class.value)).collect(),
            default: pods.iter().find(|class| class.is_default).map(|class| class.meta.key.name.clone()),
        }
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Priority {
    source: Source,
    class: String,
    value: i32,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Source {
    #[default]
    None,
    Workloads,
    Pods,
}

/// A class that a job names and that does not exist.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NoClass {
    /// The WorkloadPriorityClass in the job's label.
    Workload(String),
    /// The PriorityClass of its pods.
    Pod(String),
}

impl fmt::Display for NoClass {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Workload(class) => write!(f, "there is no WorkloadPriorityClass {class} ({PRIORITY_LABEL})"),
            Self::Pod(class) => write!(f, "there is no PriorityClass {class}"),
        }
    }
}

/// The priority of a job with these labels and pods.
pub(super) fn priority(
    labels: &BTreeMap<String, String>,
    pods: &[Pod],
    classes: &Classes,
) -> Result<Priority, NoClass> {
    if let Some(class) = labels.get(PRIORITY_LABEL).filter(|class| !class.is_empty()) {
        let value = classes.workloads.get(class).ok_or_else(|| NoClass::Workload(class.clone()))?;
        return Ok(Priority { source: Source::Workloads, class: class.clone(), value: *value });
    }
    let of_pod = |pod: &Pod| pod.spec.as_ref()?.priority_class_name.clone().filter(|class| !class.is_empty());
    let Some(class) = pods.iter().find_map(of_pod).or_else(|| classes.default.clone()) else {
        return Ok(Priority::default());
    };
    let value = classes.pods.get(&class).ok_or_else(|| NoClass::Pod(class.clone()))?;
    Ok(Priority { source: Source::Pods, value: *value, class })
}

impl Priority {
    /// The priority fields of a Workload's spec. A null removes the field.
    pub(super) fn fields(&self, version: KueueVersion) -> Value {
        let Self { source, class, value } = self;
        match (version, source) {
            (KueueVersion::V1beta1, Source::None) => {
                json!({"priority": value, "priorityClassName": null, "priorityClassSource": ""})
            }
            (KueueVersion::V1beta1, Source::Workloads) => json!({
                "priority": value, "priorityClassName": class,
                "priorityClassSource": "kueue.x-k8s.io/workloadpriorityclass",
            }),
            (KueueVersion::V1beta1, Source::Pods) => json!({
                "priority": value, "priorityClassName": class, "priorityClassSource": "scheduling.k8s.io/priorityclass",
            }),
            (KueueVersion::V1beta2, Source::None) => json!({"priority": value, "priorityClassRef": null}),
            (KueueVersion::V1beta2, Source::Workloads) => json!({
                "priority": value,
                "priorityClassRef": {"group": "kueue.x-k8s.io", "kind": "WorkloadPriorityClass", "name": class},
            }),
            (KueueVersion::V1beta2, Source::Pods) => json!({
                "priority": value,
                "priorityClassRef": {"group": "scheduling.k8s.io", "kind": "PriorityClass", "name": class},
            }),
        }
    }
}
