//! `limits` of a resource.

use larder_dataset::size::parse_bytes;
use serde::Deserialize;
use serde_saphyr::Spanned;

use crate::config::document::{Mapping, Shape, refuse};
use crate::config::refusal::Refusal;
use crate::config::settings::Limits;

/// The greatest number that the kernel does not take for `max`.
const OBJECTS_MOST: u32 = larder_rdma_limit::UNLIMITED - 1;

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct Entry {
    hca_handles: Option<Spanned<String>>,
    hca_objects: Option<Spanned<String>>,
    memlock: Option<Spanned<String>>,
    required: Option<bool>,
}

impl Shape for Entry {
    const SHAPE: &'static str = "a mapping of limits";
}

pub(super) fn read(written: &Spanned<Mapping<Entry>>) -> Result<Limits, Refusal> {
    let Mapping(entry) = &written.value;
    let objects = |written: &Option<Spanned<String>>, name: &'static str| {
        let Some(written) = written else { return Ok(None) };
        let text = &written.value;
        let number = text.parse().ok().filter(|number| (1..=OBJECTS_MOST).contains(number));
        let why = || format!("{name} of {text}: it is always a limit, and never 0; write 1 to {OBJECTS_MOST}");
        number.map(Some).ok_or_else(|| refuse(written, why()))
    };
    let memlock = entry.memlock.as_ref().map(memlock).transpose()?;
    let limits = Limits {
        hca_handles: objects(&entry.hca_handles, "hcaHandles")?,
        hca_objects: objects(&entry.hca_objects, "hcaObjects")?,
        memlock,
        required: entry.required.unwrap_or_default(),
    };
    if (limits.hca_handles, limits.hca_objects, limits.memlock) == (None, None, None) {
        let why = "limits limit nothing: write `hcaHandles`, `hcaObjects` or `memlock`, or remove them";
        return Err(refuse(written, why));
    }
    Ok(limits)
}

fn memlock(written: &Spanned<String>) -> Result<u64, Refusal> {
    if written.value == "unlimited" {
        return Ok(u64::MAX);
    }
    match parse_bytes(&written.value) {
        Ok(0) => Err(refuse(
            written,
            "memlock of 0: an HCA cannot be used without locked memory; write a size, or `unlimited`",
        )),
        Ok(bytes) => Ok(bytes),
        Err(why) => Err(refuse(written, format!("memlock: {why}, or `unlimited`"))),
    }
}
