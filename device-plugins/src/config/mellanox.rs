//! The `configList` of Mellanox's k8s-rdma-shared-dev-plugin.
//!
//! As with that plugin, each container gets all devices of the resource, and up to `rdmaHcaMax` containers share them. Two checks
//! are stricter: an unknown key is refused, which that plugin ignores, and so is a resource without IDs.

use serde::Deserialize;
use serde_saphyr::Spanned;

use super::document::{self, Mapping, Shape, line, refuse, required};
use super::refusal::Refusal;
use super::settings::{Config, Give, HealthConfig, Kind, Mode, ResourceConfig, Select};
use super::values::{self, Items};

/// The most IDs of a resource: more than a node has containers. Each change sends all of them to the kubelet.
const IDS_MOST: i64 = 4096;

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct File {
    /// In seconds. Ignored: the inventory is read every few seconds.
    periodic_update_interval: Option<Spanned<i64>>,
    config_list: Spanned<Vec<Spanned<Mapping<Entry>>>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Entry {
    resource_name: Option<Spanned<String>>,
    resource_prefix: Option<String>,
    rdma_hca_max: Option<Spanned<i64>>,
    /// The older form of `selectors.ifNames`.
    devices: Option<Spanned<Items>>,
    selectors: Option<Mapping<Selectors>>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
struct Selectors {
    vendors: Option<Items>,
    #[serde(rename = "deviceIDs")]
    device_ids: Option<Items>,
    drivers: Option<Items>,
    if_names: Option<Items>,
    link_types: Option<Items>,
}

impl Shape for File {
    const SHAPE: &'static str = "a mapping with the key `configList`";
}

impl Shape for Entry {
    const SHAPE: &'static str = "a resource: a mapping with `resourceName`";
}

impl Shape for Selectors {
    const SHAPE: &'static str = "a mapping of selectors";
}

/// Reads a text that has the key `configList`.
pub(super) fn read(path: &str, text: &str) -> Result<Config, Refusal> {
    let Mapping(file): Mapping<File> = document::read(text)?;
    if let Some(interval) = file.periodic_update_interval.filter(|interval| interval.value < 0) {
        let why = "periodicUpdateInterval is a number of seconds: write 0 or more, or remove it";
        return Err(refuse(&interval, why));
    }
    if file.config_list.value.is_empty() {
        return Err(refuse(&file.config_list, "configList is empty: list the resources that the node offers"));
    }
    let mut resources = Vec::new();
    for entry in file.config_list.value {
        values::add(&mut resources, resource(entry)?)?;
    }
    Ok(Config { file: path.to_owned(), resources, health: HealthConfig::default() })
}

fn resource(written: Spanned<Mapping<Entry>>) -> Result<ResourceConfig, Refusal> {
    let (line, Mapping(entry)) = (line(&written), written.value);
    let prefix = entry.resource_prefix.filter(|prefix| !prefix.is_empty()).unwrap_or_else(|| "rdma".to_owned());
    let resource_name = required(entry.resource_name, "resourceName", line)?;
    let name = values::name(&format!("{prefix}/{}", resource_name.value), &resource_name)?;
    let rdma_hca_max = required(entry.rdma_hca_max, "rdmaHcaMax", line)?;
    let most = rdma_hca_max.value;
    let share = u16::try_from(most).ok().filter(|_| (1..=IDS_MOST).contains(&most));
    let share = share.ok_or_else(|| {
        let what = "the number of containers that can share the devices";
        refuse(&rdma_hca_max, format!("rdmaHcaMax of {most}: it is {what}; write 1 to {IDS_MOST}"))
    })?;
    let selectors = entry.selectors.unwrap_or_default().0;
    let select = Select {
        vendors: values::pci_numbers(selectors.vendors.unwrap_or_default())?,
        device_ids: values::pci_numbers(selectors.device_ids.unwrap_or_default())?,
        drivers: values::names(selectors.drivers.unwrap_or_default())?,
        if_names: values::names(selectors.if_names.unwrap_or_default())?,
        link_types: values::link_types(selectors.link_types.unwrap_or_default())?,
        ..Select::default()
    };
    let devices = entry.devices.filter(|devices| !devices.value.is_empty());
    let select = match (select == Select::default(), devices) {
        (false, None) => select,
        (true, Some(devices)) => Select { if_names: values::names(devices.value)?, ..select },
        (true, None) => return Err(Refusal { line, why: format!("{name} selects no devices: write `selectors`") }),
        (false, Some(devices)) => {
            let why = format!("{name} has `selectors` and `devices`: write the devices as `ifNames` of the selectors");
            return Err(refuse(&devices, why));
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
        line,
    })
}
