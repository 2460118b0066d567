//! `health` of a file.

use std::fmt;
use std::time::Duration;

use larder_dataset::size::parse_duration;
use serde::Deserialize;
use serde::de::{Deserializer, Error, MapAccess, Visitor};
use serde_saphyr::Spanned;

use crate::config::document::{Shape, refuse};
use crate::config::refusal::Refusal;
use crate::config::settings::{HealthConfig, XidAction};

/// A longer time is a mistake: someone has to look at a device that is out of service for a week.
const TIME_MOST: Duration = Duration::from_secs(7 * 24 * 3600);

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub(super) struct Entry {
    port_down: Option<Spanned<String>>,
    port_up: Option<Spanned<String>>,
    gpu_quiet: Option<Spanned<String>>,
    nvml_unknown: Option<Spanned<String>>,
    xids: Xids,
}

impl Shape for Entry {
    const SHAPE: &'static str = "a mapping of times and `xids`";
}

pub(super) fn read(entry: Entry) -> Result<HealthConfig, Refusal> {
    let default = HealthConfig::default();
    let time = |written: Option<Spanned<String>>, name: &'static str, default: Duration| {
        let Some(written) = written else { return Ok(default) };
        let wrong = |why: String| refuse(&written, format!("{name}: {why}"));
        let text = &written.value;
        match parse_duration(text) {
            Ok(time) if time > TIME_MOST => Err(wrong(format!("`{text}` is too long; write at most 7d"))),
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
                while let Some(key) = map.next_key::<String>()? {
                    let xid =
                        key.parse().map_err(|_| A::Error::custom(format!("`{key}` is not the number of an Xid")))?;
                    let action = map.next_value()?;
                    if xids.iter().any(|(old, _)| *old == xid) {
                        return Err(A::Error::custom(format!("Xid {xid} is listed twice: remove one of them")));
                    }
                    xids.push((xid, action));
                }
                Ok(Xids(xids))
            }
        }

        // Any shape, so that the error names the expected mapping.
        from.deserialize_any(Actions)
    }
}
