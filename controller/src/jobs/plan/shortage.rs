//! Why a gang cannot be placed, in numbers.

use std::fmt;

/// Why the required pods of a role do not all fit.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Shortage {
    pub role: String,
    /// The number of its required pods.
    pub wanted: u32,
    /// The largest request of one pod, such as `4 GPUs`; empty if the pods request nothing.
    pub each: String,
    /// A requested resource that no node offers.
    pub unknown: Option<String>,
    /// The number of pods that fit now.
    pub found: u64,
    /// The number of nodes in the cluster.
    pub nodes: usize,
    /// The number of nodes that the pods may run on.
    pub allowed: usize,
    /// The number of those nodes that have room for at least one pod.
    pub with_room: usize,
    /// The number of pods that would fit if the nodes were empty.
    pub when_empty: u64,
}

impl Shortage {
    /// True if the pods would not fit even on empty nodes.
    pub fn is_for_ever(&self) -> bool {
        self.when_empty < u64::from(self.wanted)
    }
}

impl fmt::Display for Shortage {
    /// One sentence, such as `12 pods of role worker, each with 4 GPUs, need room: 8 fit now; 15 of 20 nodes match, and
    /// 2 of them have room`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { role, wanted, each, found, nodes, allowed, with_room, when_empty, .. } = self;
        if let Some(resource) = &self.unknown {
            return write!(f, "no node offers {resource}, which role {role} requests");
        }
        let (pods, need) = if *wanted == 1 { ("pod", "needs") } else { ("pods", "need") };
        write!(f, "{wanted} {pods} of role {role}")?;
        match (each.as_str(), wanted) {
            ("", _) => f.write_str(" ")?,
            (each, 1) => write!(f, " with {each} ")?,
            (each, _) => write!(f, ", each with {each}, ")?,
        }
        write!(f, "{need} room: ")?;
        let (are, match_) = (if *allowed == 1 { "matches" } else { "match" }, format!("{allowed} of {nodes} nodes"));
        if *allowed == 0 {
            return write!(f, "none of {nodes} nodes matches its selectors, affinity and tolerations");
        }
        if self.is_for_ever() {
            return write!(f, "{match_} {are}, and would have room for {when_empty} if they were empty");
        }
        let (fit, have) = (if *found == 1 { "fits" } else { "fit" }, if *with_room == 1 { "has" } else { "have" });
        write!(f, "{found} {fit} now; {match_} {are}, and {with_room} of them {have} room")
    }
}
