//! Whether a pod may go to a node. A node is excluded only if the pod would not work there, or asked for it.

use std::fmt;

use crate::question::{Look, Question};

/// How many excluded nodes an answer names one by one. With more, nodes that fail for the same reason share one sentence:
/// the scheduler writes all distinct sentences into the pod's status.
pub const NAMED: usize = 10;

/// Why a pod may not go to a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reason<'q> {
    /// The pod requires its data, which cannot be determined.
    Trouble(&'q str),
    /// The node holds less than it requires.
    Holds {
        /// The dataset.
        dataset: &'q str,
        /// The percentage that is there.
        percent: u8,
        /// The percentage that must be there.
        required: u8,
    },
    /// The cache takes no new pods.
    Cordoned(&'q str),
    /// No larderd serves the node.
    Away,
}

/// Why the pod may not go there; `None` if it may.
pub fn reason<'q>(question: &'q Question, look: &'q Look<'_>) -> Option<Reason<'q>> {
    if let Some(trouble) = &question.trouble {
        return question.required.map(|_| Reason::Trouble(trouble));
    }
    if let (Some(required), Some(least)) = (question.required, look.least)
        && least.percent < required
    {
        let dataset = question.datasets.get(least.dataset).map_or("", String::as_str);
        return Some(Reason::Holds { dataset, percent: least.percent, required });
    }
    match &look.cordon {
        Some(why) => Some(Reason::Cordoned(why)),
        None => look.is_away.then_some(Reason::Away),
    }
}

impl Reason<'_> {
    /// The sentence about one node.
    pub fn about(&self, node: &str) -> String {
        Sentence { reason: self.clone(), node: Some(node) }.to_string()
    }
}

/// A reason about one node, or about many.
#[derive(Clone, Debug)]
pub struct Sentence<'r> {
    /// The reason.
    pub reason: Reason<'r>,
    /// The node, if there are few.
    pub node: Option<&'r str>,
}

impl fmt::Display for Sentence<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(node) = self.node else { return self.reason.fmt(f) };
        write!(f, "{node}: ")?;
        match &self.reason {
            Reason::Holds { dataset, percent, required } => {
                write!(f, "holds {percent} % of {dataset}, {required} % is required")
            }
            reason => reason.fmt(f),
        }
    }
}

impl fmt::Display for Reason<'_> {
    /// The sentence about many nodes.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Trouble(trouble) => write!(f, "{trouble}, and its data is required"),
            Self::Holds { dataset, required, .. } => {
                write!(f, "holds less than {required} % of {dataset}, which is required")
            }
            Self::Cordoned("") => f.write_str("its cache is cordoned"),
            Self::Cordoned(why) => write!(f, "its cache is cordoned: {why}"),
            Self::Away => f.write_str("no larderd is ready there"),
        }
    }
}
