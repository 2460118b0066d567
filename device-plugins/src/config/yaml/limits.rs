//! `limits` of a resource.

use serde::Deserialize;

use crate::config::document::At;
use crate::config::refusal::Refusal;
use crate::config::settings::Limits;
use crate::quantity;

/// The most that is a limit.
const OBJECTS_MOST: u32 = larder_rdma_limit::UNLIMITED - 1;

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, expecting = "a mapping of limits")]
pub(super) struct Entry {
    hca_handles: Option<String>,
    hca_objects: Option<String>,
    memlock: Option<String>,
    required: Option<bool>,
}

pub(super) fn read(entry: &Entry, at: &At) -> Result<Limits, Refusal> {
    let objects = |text: &Option<String>, name: &'static str| {
        let number = |text: &String| text.parse().ok().filter(|number| (1..=OBJECTS_MOST).contains(number));
        let wrong = |text: &String| {
            at.key(name)
                .refuse(format!("{name} of {text}: it is always a limit, and never 0; write 1 to {OBJECTS_MOST}"))
        };
        text.as_ref().map(|text| number(text).ok_or_else(|| wrong(text))).transpose()
    };
    let memlock = entry.memlock.as_ref().map(|text| memlock(text, &at.key("memlock"))).transpose()?;
    let limits = Limits {
        hca_handles: objects(&entry.hca_handles, "hcaHandles")?,
        hca_objects: objects(&entry.hca_objects, "hcaObjects")?,
        memlock,
        required: entry.required.unwrap_or_default(),
    };
    if (limits.hca_handles, limits.hca_objects, limits.memlock) == (None, None, None) {
        return Err(at.refuse("limits limit nothing: write `hcaHandles`, `hcaObjects` or `memlock`, or remove them"));
    }
    Ok(limits)
}

fn memlock(text: &str, at: &At) -> Result<u64, Refusal> {
    if text == "unlimited" {
        return Ok(u64::MAX);
    }
    match quantity::parse(text) {
        Ok(0) => Err(at.refuse("memlock of 0: no HCA can be used without locked memory; write a size, or `unlimited`")),
        Ok(bytes) => Ok(bytes),
        Err(why) => Err(at.refuse(format!("memlock: {why}, or `unlimited`"))),
    }
}
