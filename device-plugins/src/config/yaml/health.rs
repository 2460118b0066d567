//! `health` of a file.

use std::fmt;
use std::time::Duration;

use larder_dataset::size::parse_duration;
use serde::Deserialize;
use serde::de::{Deserializer, Error, MapAccess, Visitor};

use crate::config::document::At;
use crate::config::refusal::Refusal;
use crate::config::settings::{HealthConfig, XidAction};

/// A device that comes back later than that is for people to look at.
const TIME_MOST: Duration = Duration::from_secs(7 * 24 * 3600);

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default, expecting = "a mapping of times and `xids`")]
pub(super) struct Entry {
    port_down: Option<String>,
    port_up: Option<String>,
    gpu_quiet: Option<String>,
    nvml_unknown: Option<String>,
    xids: Xids,
}

pub(super) fn read(entry: Entry, at: &At) -> Result<HealthConfig, Refusal> {
    let default = HealthConfig::default();
    let time = |text: Option<String>, name: &'static str, default: Duration| {
        let Some(text) = text else { return Ok(default) };
        let wrong = |why: String| at.key(name).refuse(format!("{name}: {why}"));
        match parse_duration(&text) {
            Ok(time) if time > TIME_MOST => Err(wrong(format!("`{text}` is too long; write 7d at most"))),
            Ok(time) => Ok(time),
            Err(why) => Err(wrong(why)),
        }
    };
    Ok(HealthConfig {
        port_down: time(entry.port_down, "portDown", default.port_down)?,
        port_up: time(entry.port_up, "portUp", default.port_up)?,
        gpu_quiet: time(entry.gpu_quiet, "gpuQuiet", default.gpu_quiet)?,
        nvml_unknown: time(entry.nvml_unknown, "nvmlUnknown", default.nvml_unknown)?,
        xids: entry.xids.0,
    })
}

/// Actions by Xid, each Xid once.
#[derive(Default)]
struct Xids(Vec<(u64, XidAction)>);

impl<'de> Deserialize<'de> for Xids {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct Actions;

        impl<'de> Visitor<'de> for Actions {
            type Value = Xids;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a mapping of Xids to actions, such as {13: ignore}")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Xids, A::Error> {
                let mut xids: Vec<(u64, XidAction)> = Vec::new();
                while let Some((xid, action)) = map.next_entry()? {
                    if xids.iter().any(|(old, _)| *old == xid) {
                        return Err(A::Error::custom(format!("Xid {xid} is there twice: remove one of them")));
                    }
                    xids.push((xid, action));
                }
                Ok(Xids(xids))
            }
        }

        from.deserialize_map(Actions)
    }
}
