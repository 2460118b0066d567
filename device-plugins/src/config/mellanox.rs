//! The `configList` of Mellanox's k8s-rdma-shared-dev-plugin.
//!
//! Each container gets all devices of the resource, and `rdmaHcaMax` containers get them at a time, as with that plugin. Two things
//! are stricter: a key that it would pass over is refused, and so is a resource of no IDs.

use serde::Deserialize;

use super::document::{At, Document};
use super::refusal::Refusal;
use super::settings::{Config, Give, HealthConfig, Kind, Mode, ResourceConfig, Select};
use super::values;

/// The most IDs of a resource: more than a node has containers. The kubelet is sent all of them with each change.
const IDS_MOST: i64 = 4096;

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct File {
    /// In seconds. Devices are looked for every few seconds anyway.
    periodic_update_interval: Option<i64>,
    config_list: Vec<Entry>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, expecting = "a resource: a mapping with `resourceName`")]
struct Entry {
    resource_name: String,
    resource_prefix: Option<String>,
    rdma_hca_max: i64,
    /// The old form of `selectors.ifNames`.
    devices: Option<Vec<String>>,
    selectors: Option<Selectors>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default, expecting = "a mapping of selectors")]
struct Selectors {
    vendors: Option<Vec<String>>,
    #[serde(rename = "deviceIDs")]
    device_ids: Option<Vec<String>>,
    drivers: Option<Vec<String>>,
    if_names: Option<Vec<String>>,
    link_types: Option<Vec<String>>,
}

/// Reads a text that has the key `configList`.
pub(super) fn read(path: &str, document: Document) -> Result<Config, Refusal> {
    let file: File = document.read()?;
    let root = document.root();
    if file.periodic_update_interval.is_some_and(|seconds| seconds < 0) {
        let at = root.key("periodicUpdateInterval");
        return Err(at.refuse("periodicUpdateInterval is a number of seconds: write 0 or more, or remove it"));
    }
    let list = root.key("configList");
    if file.config_list.is_empty() {
        return Err(list.refuse("configList is empty: say which resources the node offers"));
    }
    let mut resources = Vec::new();
    for (nth, entry) in file.config_list.into_iter().enumerate() {
        let at = list.item(nth);
        values::add(&mut resources, resource(entry, &at)?, &at)?;
    }
    Ok(Config { file: path.to_owned(), resources, health: HealthConfig::default() })
}

fn resource(entry: Entry, at: &At) -> Result<ResourceConfig, Refusal> {
    let prefix = entry.resource_prefix.filter(|prefix| !prefix.is_empty()).unwrap_or_else(|| "rdma".to_owned());
    let name = values::name(&format!("{prefix}/{}", entry.resource_name), &at.key("resourceName"))?;
    let share = u16::try_from(entry.rdma_hca_max).ok().filter(|_| (1..=IDS_MOST).contains(&entry.rdma_hca_max));
    let share = share.ok_or_else(|| {
        let why = "how many containers may have the devices at a time";
        at.key("rdmaHcaMax")
            .refuse(format!("rdmaHcaMax of {}: it says {why}; write 1 to {IDS_MOST}", entry.rdma_hca_max))
    })?;
    let below = at.key("selectors");
    let selectors = entry.selectors.unwrap_or_default();
    let select = Select {
        vendors: values::pci_numbers(selectors.vendors.unwrap_or_default(), &below.key("vendors"))?,
        device_ids: values::pci_numbers(selectors.device_ids.unwrap_or_default(), &below.key("deviceIDs"))?,
        drivers: values::names(selectors.drivers.unwrap_or_default(), &below.key("drivers"))?,
        if_names: values::names(selectors.if_names.unwrap_or_default(), &below.key("ifNames"))?,
        link_types: values::link_types(selectors.link_types.unwrap_or_default(), &below.key("linkTypes"))?,
        ..Select::default()
    };
    let devices = values::names(entry.devices.unwrap_or_default(), &at.key("devices"))?;
    let select = match (select == Select::default(), devices.is_empty()) {
        (false, true) => select,
        (true, false) => Select { if_names: devices, ..select },
        (true, true) => return Err(at.refuse(format!("{name} selects no devices: write `selectors`"))),
        (false, false) => {
            let why = format!("{name} has `selectors` and `devices`: write the devices as `ifNames` of the selectors");
            return Err(at.key("devices").refuse(why));
        }
    };
    Ok(ResourceConfig {
        name,
        kind: Kind::Rdma,
        select,
        share,
        give: Give::All,
        mode: Mode::Plugin,
        mad: false,
        limits: None,
        line: at.line(),
    })
}
