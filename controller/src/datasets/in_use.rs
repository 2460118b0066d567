//! The promises that a dataset already has.

use std::collections::BTreeMap;

use larder_api::PromisedDataset;

use crate::datasets::input::DatasetView;
use crate::objects::DatasetObject;

/// The existing promises, by node.
pub(super) fn existing_promises(
    view: &DatasetView<'_>,
    dataset: &DatasetObject,
) -> BTreeMap<String, Vec<PromisedDataset>> {
    let of_node = |facts: &crate::datasets::input::NodeFacts<'_>| {
        let own = facts.promised.iter().filter(|promise| promise.uid == dataset.meta.uid);
        (facts.node.meta.key.name.clone(), own.cloned().collect::<Vec<_>>())
    };
    view.nodes.iter().map(of_node).filter(|(_, promises)| !promises.is_empty()).collect()
}
