//! Our own file.

mod health;
mod limits;
mod select;

use serde::Deserialize;

use super::document::{At, Document};
use super::refusal::Refusal;
use super::settings::{Config, Give, Kind, Mode, ResourceConfig};
use super::values;

/// The most IDs of a device.
const SHARE_MOST: u16 = 256;

/// The most bytes of a name that is an attribute in a ResourceSlice.
const DRA_NAME_BYTES_MOST: usize = 64;

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, expecting = "a mapping with the key `resources`")]
struct File {
    resources: Vec<Entry>,
    health: Option<health::Entry>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, expecting = "a resource: a mapping with `name` and `kind`")]
struct Entry {
    name: String,
    kind: Kind,
    select: Option<select::Entry>,
    share: Option<String>,
    give: Option<Give>,
    mode: Option<Mode>,
    mad: Option<bool>,
    limits: Option<limits::Entry>,
}

/// Reads a text; `path` is that of its file.
pub(super) fn read(path: &str, document: Document) -> Result<Config, Refusal> {
    let file: File = document.read()?;
    let list = document.root().key("resources");
    if file.resources.is_empty() {
        return Err(list.refuse("resources is empty: say which resources the node offers"));
    }
    let mut resources = Vec::new();
    for (nth, entry) in file.resources.into_iter().enumerate() {
        let at = list.item(nth);
        values::add(&mut resources, resource(entry, &at)?, &at)?;
    }
    let health = health::read(file.health.unwrap_or_default(), &document.root().key("health"))?;
    Ok(Config { file: path.to_owned(), resources, health })
}

fn resource(entry: Entry, at: &At) -> Result<ResourceConfig, Refusal> {
    let name = values::name(&entry.name, &at.key("name"))?;
    let kind = entry.kind;
    let has_hcas = matches!(kind, Kind::Rdma | Kind::Rail);
    let share = entry.share.map_or(Ok(1), |text| share(&text, kind, &at.key("share")))?;
    let give = entry.give.unwrap_or_default();
    let mode = entry.mode.unwrap_or_default();
    if mode == Mode::Dra && entry.name.len() > DRA_NAME_BYTES_MOST {
        return Err(at.key("name").refuse(format!(
            "with `mode: dra` a name has {DRA_NAME_BYTES_MOST} characters at most: it is an attribute of each device"
        )));
    }
    if give == Give::All && (kind != Kind::Rdma || mode == Mode::Dra) {
        return Err(at.key("give").refuse(
            "`give: all` hands the same HCAs to every container, by the device plugin API: it needs `kind: rdma` and `mode: plugin`",
        ));
    }
    let mad = entry.mad.unwrap_or_default();
    if mad && !has_hcas {
        return Err(at.key("mad").refuse("`mad` is for HCAs: remove it here"));
    }
    let limits = match entry.limits {
        Some(_) if !has_hcas => {
            return Err(at.key("limits").refuse(
                "limits are for containers with HCAs, and this resource has none: remove them, or write `kind: rdma` or `kind: rail`",
            ));
        }
        limits => limits.map(|limits| limits::read(&limits, &at.key("limits"))).transpose()?,
    };
    let select = entry.select.unwrap_or_default();
    let select = select::read(select, kind, &at.key("select"))?;
    Ok(ResourceConfig { name, kind, select, share, give, mode, mad, limits, line: at.line() })
}

fn share(text: &str, kind: Kind, at: &At) -> Result<u16, Refusal> {
    if kind == Kind::Rail {
        return Err(at.refuse("a rail is a GPU and an HCA for one container alone: remove `share`"));
    }
    let share = text.parse().ok().filter(|share| (1..=SHARE_MOST).contains(share));
    share.ok_or_else(|| {
        at.refuse(format!(
            "share of {text}: it says how many containers may have a device at a time; write 1 to {SHARE_MOST}"
        ))
    })
}
