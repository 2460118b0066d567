//! The run-length encoding of slots: identical neighbours are written once, because a role may have thousands of slots.

use larder_api::training_job::checked::{REPLICAS_MAX, ROLES_MAX};
use serde::de::Error;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::state::{Slot, Stage};

/// Kubernetes allows no longer node name.
const NODE_NAME_MAX: usize = 253;

/// A number of identical slots, with their attempt, stage and node.
#[derive(Serialize, Deserialize)]
struct Run(u32, u32, Stage, Option<String>);

pub(super) fn serialize<S: Serializer>(roles: &[Vec<Slot>], serializer: S) -> Result<S::Ok, S::Error> {
    let run = |slots: &[Slot]| Run(slots.len() as u32, slots[0].attempt, slots[0].stage, slots[0].node.clone());
    let runs = |slots: &Vec<Slot>| slots.chunk_by(|one, other| one == other).map(run).collect();
    roles.iter().map(runs).collect::<Vec<Vec<Run>>>().serialize(serializer)
}

pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<Vec<Slot>>, D::Error> {
    let roles = Vec::<Vec<Run>>::deserialize(deserializer)?;
    // Each slot stores its own copy of the name, so a long name from a tampered status would be multiplied.
    let is_name = |Run(.., node): &Run| node.as_ref().is_none_or(|node| node.len() <= NODE_NAME_MAX);
    if !roles.iter().flatten().all(is_name) {
        return Err(D::Error::custom(format!("the name of a node is longer than {NODE_NAME_MAX} bytes")));
    }
    let slots =
        |Run(count, attempt, stage, node): Run| std::iter::repeat_n(Slot { attempt, node, stage }, count as usize);
    // No valid role has more slots. The limit keeps a tampered count from exhausting memory.
    let role = |runs: Vec<Run>| runs.into_iter().flat_map(slots).take(REPLICAS_MAX as usize).collect();
    Ok(roles.into_iter().take(ROLES_MAX).map(role).collect())
}

#[cfg(test)]
mod tests {
    use super::super::State;

    #[test]
    fn a_record_with_a_name_that_no_node_has_cannot_be_read() {
        let read = |node: &str| {
            let text = format!(r#"{{"roles":[[[3,1,"Placed","{node}"]]]}}"#);
            serde_json::from_str::<State>(&text).map(|state| state.granted())
        };
        assert_eq!(read(&"n".repeat(253)).expect("a state"), [3]);
        let error = read(&"n".repeat(254)).expect_err("a name that is too long").to_string();
        assert!(error.contains("longer than 253 bytes"), "{error}");
    }
}
