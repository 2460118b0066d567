//! `select` of a resource.

use serde::Deserialize;
use serde_saphyr::Spanned;

use crate::config::document::{Shape, refuse};
use crate::config::refusal::Refusal;
use crate::config::settings::{Kind, Select};
use crate::config::values::{self, Items};

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub(super) struct Entry {
    vendors: Option<Spanned<Items>>,
    #[serde(rename = "deviceIDs")]
    device_ids: Option<Spanned<Items>>,
    drivers: Option<Spanned<Items>>,
    if_names: Option<Spanned<Items>>,
    link_types: Option<Spanned<Items>>,
    models: Option<Spanned<Items>>,
    uuids: Option<Spanned<Items>>,
}

impl Shape for Entry {
    const SHAPE: &'static str = "a mapping of selectors";
}

/// Checks that each selector has items and fits the kind.
pub(super) fn read(entry: Entry, kind: Kind) -> Result<Select, Refusal> {
    let list = |list: Option<Spanned<Items>>, name: &'static str, kinds: &[Kind]| match list {
        None => Ok(Vec::new()),
        Some(list) if !kinds.contains(&kind) => {
            let devices = if kind == Kind::Rdma { "GPUs" } else { "HCAs" };
            Err(refuse(&list, format!("`{name}` selects {devices}, which this resource does not have: remove it")))
        }
        Some(list) if list.value.is_empty() => {
            Err(refuse(&list, format!("`{name}` is empty and would select nothing: add an item, or remove it")))
        }
        Some(list) => Ok(list.value),
    };
    const HCAS: [Kind; 2] = [Kind::Rdma, Kind::Rail];
    const GPUS: [Kind; 3] = [Kind::Gpu, Kind::Mig, Kind::Rail];
    const ALL: [Kind; 4] = [Kind::Gpu, Kind::Mig, Kind::Rdma, Kind::Rail];
    let vendors = list(entry.vendors, "vendors", &HCAS)?;
    let device_ids = list(entry.device_ids, "deviceIDs", &HCAS)?;
    let drivers = list(entry.drivers, "drivers", &HCAS)?;
    let if_names = list(entry.if_names, "ifNames", &HCAS)?;
    let link_types = list(entry.link_types, "linkTypes", &HCAS)?;
    let models = list(entry.models, "models", &GPUS)?;
    let uuids = list(entry.uuids, "uuids", &ALL)?;
    Ok(Select {
        vendors: values::pci_numbers(vendors)?,
        device_ids: values::pci_numbers(device_ids)?,
        drivers: values::names(drivers)?,
        if_names: values::names(if_names)?,
        link_types: values::link_types(link_types)?,
        models: values::names(models)?,
        uuids: values::each(uuids, |text| uuid(text, kind))?,
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
