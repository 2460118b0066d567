//! Why a gang has no place, in numbers.

use std::fmt;

/// Why the required pods of a role do not all fit.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Shortage {
    pub role: String,
    /// How many pods of it are required.
    pub wanted: u32,
    /// The largest of the requests of each, such as `4 GPUs`; empty if they request nothing.
    pub each: String,
    /// A requested resource that no node has.
    pub unknown: Option<String>,
    /// How many of them there is room for.
    pub found: u64,
    /// How many nodes there are.
    pub nodes: usize,
    /// How many of these the pods may run on.
    pub allowed: usize,
    /// How many of those have room for one.
    pub with_room: usize,
    /// How many of the pods the nodes would have room for if they were empty.
    pub when_empty: u64,
}

impl Shortage {
    /// True if not even an empty cluster has room.
    pub fn is_for_ever(&self) -> bool {
        self.when_empty < u64::from(self.wanted)
    }
}

impl fmt::Display for Shortage {
    /// One sentence, such as `12 pods of role worker, each with 4 GPUs, need room: 8 fit now; 15 of 20 nodes match, and 2 of
    /// them have room`.
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
