//! Changes that users make to their Datasets, generated from a seed. The final state does not depend on when the
//! controller observes a step: each name is used once, and a pinned snapshot stays pinned.

use larder_fake_platform::snapshot_of;
use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use rand::{RngExt, SeedableRng};
use serde_json::{Value, json};

/// The most Datasets at the same time.
const MOST: usize = 8;

/// A change of the cluster.
#[derive(Clone, Debug)]
pub(crate) enum Step {
    /// A new Dataset with this spec.
    Create(String, Value),
    /// A merge patch of a spec.
    Change(String, Value),
    /// The Dataset is deleted.
    Delete(String),
}

#[derive(Debug)]
pub(crate) struct Script {
    pub(crate) steps: Vec<Step>,
    /// The Datasets that exist at the end.
    pub(crate) living: Vec<String>,
}

impl Script {
    pub(crate) fn new(seed: u64, count: u32) -> Self {
        let mut random = StdRng::seed_from_u64(seed);
        let (mut steps, mut living) = (Vec::new(), Vec::<String>::new());
        for nth in 0..count {
            let chosen = living.choose(&mut random).cloned();
            let dice = random.random_range(0..100);
            let step = match chosen {
                Some(name) if living.len() >= MOST || dice < 20 && living.len() > 2 => {
                    living.retain(|other| *other != name);
                    Step::Delete(name)
                }
                Some(name) if dice < 55 => {
                    let change = match random.random_range(0..4) {
                        0 => json!({"cache": {"size": format!("{}GB", random.random_range(1..9))}}),
                        1 => json!({"snapshot": snapshot_of(&format!("another of {name}"))}),
                        _ => json!({"nodes": nodes(&mut random)}),
                    };
                    Step::Change(name, change)
                }
                _ => {
                    let name = format!("data-{nth}");
                    living.push(name.clone());
                    let source = format!("s3://{name}");
                    Step::Create(name, spec(&source, &nodes(&mut random)))
                }
            };
            steps.push(step);
        }
        Self { steps, living }
    }
}

/// The spec of a team's Dataset.
pub(crate) fn spec(source: &str, nodes: &Value) -> Value {
    // Only a merge patch may contain nulls, which remove fields.
    let mut nodes = nodes.clone();
    if let Some(fields) = nodes.as_object_mut() {
        fields.retain(|_, value| !value.is_null());
    }
    json!({"origin": {"source": source, "secretRef": {"name": "origin"}}, "nodes": nodes})
}

/// The nodes that should hold the Dataset. The spec leaves no choice between nodes.
fn nodes(random: &mut StdRng) -> Value {
    match random.random_range(0..5) {
        0 => json!({"count": 0, "selector": null}),
        1 => json!({"count": "all", "selector": null}),
        n @ 2..4 => json!({"count": 1, "selector": {"kubernetes.io/hostname": format!("n{}", n - 1)}}),
        _ => json!({"count": 2, "selector": null}),
    }
}
