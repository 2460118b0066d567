//! `select` of a resource.

use serde::Deserialize;

use crate::config::document::At;
use crate::config::refusal::Refusal;
use crate::config::settings::{Kind, Select};
use crate::config::values;

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default, expecting = "a mapping of selectors")]
pub(super) struct Entry {
    vendors: Option<Vec<String>>,
    #[serde(rename = "deviceIDs")]
    device_ids: Option<Vec<String>>,
    drivers: Option<Vec<String>>,
    if_names: Option<Vec<String>>,
    link_types: Option<Vec<String>>,
    models: Option<Vec<String>>,
    uuids: Option<Vec<String>>,
}

/// A selector that is written names something, and fits the kind.
pub(super) fn read(entry: Entry, kind: Kind, at: &At) -> Result<Select, Refusal> {
    let list = |list: Option<Vec<String>>, name: &'static str, kinds: &[Kind]| {
        let at = at.key(name);
        match list {
            None => Ok((Vec::new(), at)),
            Some(_) if !kinds.contains(&kind) => {
                let devices = if kind == Kind::Rdma { "GPUs" } else { "HCAs" };
                Err(at.refuse(format!(
                    "`{name}` is a selector of {devices}, which this resource does not have: remove it"
                )))
            }
            Some(list) if list.is_empty() => {
                Err(at.refuse(format!("`{name}` is empty and would select nothing: name something, or remove it")))
            }
            Some(list) => Ok((list, at)),
        }
    };
    const HCAS: [Kind; 2] = [Kind::Rdma, Kind::Rail];
    const GPUS: [Kind; 3] = [Kind::Gpu, Kind::Mig, Kind::Rail];
    const ALL: [Kind; 4] = [Kind::Gpu, Kind::Mig, Kind::Rdma, Kind::Rail];
    let (vendors, vendors_at) = list(entry.vendors, "vendors", &HCAS)?;
    let (device_ids, device_ids_at) = list(entry.device_ids, "deviceIDs", &HCAS)?;
    let (drivers, drivers_at) = list(entry.drivers, "drivers", &HCAS)?;
    let (if_names, if_names_at) = list(entry.if_names, "ifNames", &HCAS)?;
    let (link_types, link_types_at) = list(entry.link_types, "linkTypes", &HCAS)?;
    let (models, models_at) = list(entry.models, "models", &GPUS)?;
    let (uuids, uuids_at) = list(entry.uuids, "uuids", &ALL)?;
    Ok(Select {
        vendors: values::pci_numbers(vendors, &vendors_at)?,
        device_ids: values::pci_numbers(device_ids, &device_ids_at)?,
        drivers: values::names(drivers, &drivers_at)?,
        if_names: values::names(if_names, &if_names_at)?,
        link_types: values::link_types(link_types, &link_types_at)?,
        models: values::names(models, &models_at)?,
        uuids: values::each(uuids, &uuids_at, |text| uuid(text, kind))?,
    })
}

fn uuid(text: &str, kind: Kind) -> Result<String, &'static str> {
    let is_gpu = text.starts_with("GPU-");
    let is_slice = text.starts_with("MIG-");
    let is_guid = {
        let words: Vec<&str> = text.split(':').collect();
        let is_word = |word: &&str| word.len() == 4 && word.bytes().all(|digit| digit.is_ascii_hexdigit());
        words.len() == 4 && words.iter().all(is_word)
    };
    let (is_sound, wanted) = match kind {
        Kind::Gpu => (is_gpu, "the UUID of a GPU, GPU-…"),
        Kind::Mig => (is_gpu || is_slice, "the UUID of a slice, MIG-…, or of its GPU, GPU-…"),
        Kind::Rdma => (is_guid, "the node GUID of an HCA, such as 0002:c903:00a1:b2c4"),
        Kind::Rail => (is_gpu || is_guid, "the UUID of a GPU, GPU-…, or the node GUID of an HCA"),
    };
    if is_sound { Ok(text.to_owned()) } else { Err(wanted) }
}
