//! Whether a pod may run on a node. A node is excluded only if the pod would not work there, or if the pod requires it.

use std::fmt;

use crate::question::{Look, Question};

/// The most excluded nodes that an answer names one by one. Above that, nodes with the same reason share one sentence,
/// because the scheduler writes all distinct sentences into the pod's status.
pub const NAMED: usize = 10;

/// Why a pod may not run on a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reason<'q> {
    /// The pod requires its data, and its datasets cannot be determined.
    Trouble(&'q str),
    /// The node holds less than the pod requires.
    Holds {
        dataset: &'q str,
        /// The percentage that the node holds.
        percent: u8,
        /// The percentage that the pod requires.
        required: u8,
    },
    /// The cache accepts no new pods.
    Cordoned(&'q str),
    /// No ready larderd serves the node.
    Away,
}

/// The reason against the node; `None` if the pod may run there.
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

/// A reason about one node or about many.
#[derive(Clone, Debug)]
pub struct Sentence<'r> {
    pub reason: Reason<'r>,
    /// The node; `None` if the sentence is about many.
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
