//! The JSON of kube-scheduler: its requests and their answers, as in `k8s.io/kube-scheduler/extender/v1`.
//!
//! Field names are those of the Go structs, as the scheduler sends them. The lower-case variants in the Kubernetes
//! documentation are accepted too. The metadata of a pod is borrowed from the request; its spec is parsed only when an
//! answer needs it. Unknown fields are skipped; a missing field is rejected with its name.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt::{self, Display};

use k8s_openapi::api::core::v1::PodSpec;
use larder_kube::fields::readable;
use serde::Deserialize;
use serde::Serializer;
use serde_json::Value;
use serde_json::value::RawValue;
use tracing::warn;

/// A string that is borrowed from the request if it has no escapes.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[serde(transparent)]
pub struct Text<'a>(#[serde(borrow)] Cow<'a, str>);

impl Text<'_> {
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl AsRef<str> for Text<'_> {
    fn as_ref(&self) -> &str {
        &self.0
    }
}

/// Why a request is rejected.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refused(pub String);

/// A filter or prioritize request.
#[derive(Debug)]
pub struct Args<'a> {
    /// The pod that needs a node.
    pub pod: Pod<'a>,
    /// The candidate nodes.
    pub names: Vec<Text<'a>>,
}

/// The pod of a request.
#[derive(Debug, Deserialize)]
pub struct Pod<'a> {
    #[serde(borrow)]
    pub metadata: Metadata<'a>,
    #[serde(borrow)]
    spec: &'a RawValue,
}

/// The spec of a pod in a request.
#[derive(Debug)]
pub struct Spec {
    pub spec: PodSpec,
    /// False if a field could not be read.
    pub is_whole: bool,
}

/// The metadata of a pod.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct Metadata<'a> {
    #[serde(borrow)]
    pub name: Cow<'a, str>,
    #[serde(borrow)]
    pub namespace: Cow<'a, str>,
    #[serde(borrow)]
    pub uid: Cow<'a, str>,
    #[serde(borrow)]
    labels: Option<BTreeMap<Text<'a>, Text<'a>>>,
    #[serde(borrow)]
    annotations: Option<Annotations<'a>>,
}

/// The annotations that an answer depends on. Others are skipped, since they may be long.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct Annotations<'a> {
    /// `larder.dev/data`.
    #[serde(borrow, rename = "larder.dev/data")]
    pub data: Option<Cow<'a, str>>,
    /// `larder.dev/datasets`.
    #[serde(borrow, rename = "larder.dev/datasets")]
    pub datasets: Option<Cow<'a, str>>,
    /// `larder.dev/min-warm`.
    #[serde(borrow, rename = "larder.dev/min-warm")]
    pub min_warm: Option<Cow<'a, str>>,
}

impl<'a> Metadata<'a> {
    /// The value of a label.
    pub fn label(&self, key: &str) -> Option<&str> {
        let labels = self.labels.as_ref()?;
        labels.iter().find(|(name, _)| name.as_str() == key).map(|(_, value)| value.as_str())
    }

    /// The annotations that an answer depends on.
    pub fn annotations(&self) -> Annotations<'a> {
        self.annotations.clone().unwrap_or_default()
    }
}

impl Pod<'_> {
    /// Parses the spec. Fields that cannot be read are left out, so that no field which no answer needs prevents one.
    pub fn spec(&self) -> Result<Spec, Refused> {
        let text = self.spec.get();
        let unreadable = match serde_json::from_str(text) {
            Ok(spec) => return Ok(Spec { spec, is_whole: true }),
            Err(error) => Refused(format!("Pod.spec: {error}")),
        };
        let Ok(value @ Value::Object(_)) = serde_json::from_str(text) else { return Err(unreadable) };
        let (spec, error) = readable(&value);
        if let Some(error) = error {
            warn!(pod = self.key(), %error, "a field of the pod's spec cannot be read and is left out");
        }
        Ok(Spec { spec, is_whole: false })
    }

    /// `NAMESPACE/NAME`.
    pub fn key(&self) -> String {
        format!("{}/{}", self.metadata.namespace, self.metadata.name)
    }
}

fn parse<'a, T: Deserialize<'a>>(body: &'a [u8]) -> Result<T, Refused> {
    serde_json::from_slice(body).map_err(|error| Refused(format!("this is not a request of kube-scheduler: {error}")))
}

fn missing(field: &str, advice: &str) -> Refused {
    Refused(format!("{field} is missing: {advice}"))
}

const NO_POD: &str = "kube-scheduler sends the pod that wants a node";

/// Parses a filter or prioritize request.
pub fn args(body: &[u8]) -> Result<Args<'_>, Refused> {
    #[derive(Deserialize)]
    struct Fields<'a> {
        #[serde(borrow, rename = "Pod", alias = "pod")]
        pod: Option<Pod<'a>>,
        #[serde(borrow, rename = "NodeNames", alias = "nodeNames", alias = "nodenames")]
        names: Option<Vec<Text<'a>>>,
    }
    let Fields { pod, names } = parse(body)?;
    let pod = pod.ok_or_else(|| missing("Pod", NO_POD))?;
    let advice = "set nodeCacheCapable: true for this extender in KubeSchedulerConfiguration";
    Ok(Args { pod, names: names.ok_or_else(|| missing("NodeNames", advice))? })
}

/// A preempt request.
#[derive(Debug)]
pub struct PreemptArgs<'a> {
    /// The pod that needs a node.
    pub pod: Pod<'a>,
    /// The pods that would be preempted for it, by node.
    pub nodes: Vec<Victims<'a>>,
}

/// The pods that would be preempted on a node.
#[derive(Debug, PartialEq, Eq)]
pub struct Victims<'a> {
    pub node: Text<'a>,
    /// Their uids.
    pub uids: Vec<Text<'a>>,
    /// How many of them would violate a PodDisruptionBudget.
    pub budget_violations: i64,
}

/// Parses a preempt request, which names victims either as whole pods or by uid.
pub fn preempt_args(body: &[u8]) -> Result<PreemptArgs<'_>, Refused> {
    #[derive(Deserialize)]
    struct Fields<'a> {
        #[serde(borrow, rename = "Pod", alias = "pod")]
        pod: Option<Pod<'a>>,
        #[serde(borrow, rename = "NodeNameToVictims", alias = "nodeNameToVictims")]
        whole: Option<BTreeMap<Text<'a>, Of<Whole<'a>>>>,
        #[serde(borrow, rename = "NodeNameToMetaVictims", alias = "nodeNameToMetaVictims")]
        meta: Option<BTreeMap<Text<'a>, Of<Meta<'a>>>>,
    }
    #[derive(Deserialize)]
    struct Of<T> {
        #[serde(rename = "Pods", alias = "pods")]
        pods: Option<Vec<T>>,
        #[serde(default, rename = "NumPDBViolations", alias = "numPDBViolations")]
        violations: i64,
    }
    #[derive(Deserialize)]
    struct Whole<'a> {
        #[serde(borrow)]
        metadata: Uid<'a>,
    }
    #[derive(Deserialize)]
    struct Uid<'a> {
        #[serde(borrow)]
        uid: Text<'a>,
    }
    #[derive(Deserialize)]
    struct Meta<'a> {
        #[serde(borrow, rename = "UID", alias = "uid")]
        uid: Text<'a>,
    }
    fn victims<'a, T>((node, of): (Text<'a>, Of<T>), uid: fn(T) -> Text<'a>) -> Victims<'a> {
        let uids = of.pods.into_iter().flatten().map(uid).collect();
        Victims { node, uids, budget_violations: of.violations }
    }
    let Fields { pod, whole, meta } = parse(body)?;
    let pod = pod.ok_or_else(|| missing("Pod", NO_POD))?;
    let nodes = match (meta, whole) {
        (Some(meta), _) => meta.into_iter().map(|of| victims(of, |pod: Meta<'_>| pod.uid)).collect(),
        (None, Some(whole)) => whole.into_iter().map(|of| victims(of, |pod: Whole<'_>| pod.metadata.uid)).collect(),
        (None, None) => {
            return Err(missing("NodeNameToMetaVictims", "kube-scheduler sends the pods that would end, by node"));
        }
    };
    Ok(PreemptArgs { pod, nodes })
}

/// Writes a string as JSON.
fn put(answer: &mut Vec<u8>, text: &str) {
    // Writing to a Vec cannot fail.
    let _ = serde_json::to_writer(answer, text);
}

/// Writes items separated by commas.
fn put_all<T>(answer: &mut Vec<u8>, items: impl Iterator<Item = T>, mut put: impl FnMut(&mut Vec<u8>, T)) {
    for (at, item) in items.enumerate() {
        if at > 0 {
            answer.push(b',');
        }
        put(answer, item);
    }
}

/// A sentence with `%` replaced by the word `percent`: the scheduler uses the text as a format string for an Event.
struct WithoutPercent<T>(T);

impl<T: Display> Display for WithoutPercent<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        struct Replacing<'f, 'w>(&'f mut fmt::Formatter<'w>);

        impl fmt::Write for Replacing<'_, '_> {
            fn write_str(&mut self, text: &str) -> fmt::Result {
                let mut parts = text.split('%');
                self.0.write_str(parts.next().unwrap_or_default())?;
                parts.try_for_each(|part| write!(self.0, "percent{part}"))
            }
        }

        fmt::write(&mut Replacing(f), format_args!("{}", self.0))
    }
}

/// The answer to filter: the nodes that pass, and the reasons of the nodes that fail, which preemption could not fix.
pub fn filter_answer<'n>(
    passing: impl Iterator<Item = &'n str>,
    failing: impl Iterator<Item = (&'n str, impl Display)>,
) -> Vec<u8> {
    let mut answer = Vec::with_capacity(8 << 10);
    answer.extend_from_slice(br#"{"Nodes":null,"NodeNames":["#);
    put_all(&mut answer, passing, put);
    answer.extend_from_slice(br#"],"FailedNodes":{},"FailedAndUnresolvableNodes":{"#);
    put_all(&mut answer, failing, |answer, (name, why)| {
        put(answer, name);
        answer.push(b':');
        // Serialized directly, without an intermediate string per node.
        let _ = serde_json::Serializer::new(answer).collect_str(&WithoutPercent(why));
    });
    answer.extend_from_slice(br#"},"Error":""}"#);
    answer
}

/// The answer to prioritize. A node that is not named has the score 0.
pub fn prioritize_answer<'n>(scores: impl Iterator<Item = (&'n str, u8)>) -> Vec<u8> {
    let mut answer = Vec::with_capacity(16 << 10);
    answer.push(b'[');
    put_all(&mut answer, scores, |answer, (name, score)| {
        answer.extend_from_slice(br#"{"Host":"#);
        put(answer, name);
        answer.extend_from_slice(br#","Score":"#);
        // One or two digits.
        let _ = serde_json::to_writer(&mut *answer, &score);
        answer.push(b'}');
    });
    answer.push(b']');
    answer
}

/// The answer to preempt: for each remaining node, the uids of the pods to preempt.
pub fn preempt_answer<'n>(nodes: impl Iterator<Item = (&'n str, Vec<&'n str>, i64)>) -> Vec<u8> {
    let mut answer = Vec::with_capacity(4 << 10);
    answer.extend_from_slice(br#"{"NodeNameToMetaVictims":{"#);
    put_all(&mut answer, nodes, |answer, (node, uids, violations)| {
        put(answer, node);
        answer.extend_from_slice(br#":{"Pods":["#);
        put_all(answer, uids.into_iter(), |answer, uid| {
            answer.extend_from_slice(br#"{"UID":"#);
            put(answer, uid);
            answer.push(b'}');
        });
        answer.extend_from_slice(br#"],"NumPDBViolations":"#);
        let _ = serde_json::to_writer(&mut *answer, &violations);
        answer.push(b'}');
    });
    answer.extend_from_slice(b"}}");
    answer
}

#[cfg(test)]
mod tests;
