//! Our own format.

mod health;
mod limits;
mod select;

use serde::Deserialize;
use serde_saphyr::Spanned;

use super::document::{self, Mapping, Shape, line, refuse, required};
use super::refusal::Refusal;
use super::settings::{Config, Give, Kind, Mode, ResourceConfig};
use super::values;

/// The most IDs for one device.
const SHARE_MOST: u16 = 256;

/// The longest name that fits an attribute of a ResourceSlice.
const DRA_NAME_BYTES_MOST: usize = 64;

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct File {
    resources: Spanned<Vec<Spanned<Mapping<Entry>>>>,
    health: Option<Mapping<health::Entry>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Entry {
    name: Option<Spanned<String>>,
    kind: Option<Kind>,
    select: Option<Mapping<select::Entry>>,
    share: Option<Spanned<String>>,
    give: Option<Spanned<Give>>,
    mode: Option<Mode>,
    mad: Option<Spanned<bool>>,
    limits: Option<Spanned<Mapping<limits::Entry>>>,
}

impl Shape for File {
    const SHAPE: &'static str = "a mapping with the key `resources`";
}

impl Shape for Entry {
    const SHAPE: &'static str = "a resource: a mapping with `name` and `kind`";
}

/// Reads the text of the file at `path`.
pub(super) fn read(path: &str, text: &str) -> Result<Config, Refusal> {
    let Mapping(file): Mapping<File> = document::read(text)?;
    if file.resources.value.is_empty() {
        return Err(refuse(&file.resources, "resources is empty: list the resources that the node offers"));
    }
    let mut resources = Vec::new();
    for entry in file.resources.value {
        values::add(&mut resources, resource(entry)?)?;
    }
    let health = health::read(file.health.unwrap_or_default().0)?;
    Ok(Config { file: path.to_owned(), resources, health })
}

fn resource(written: Spanned<Mapping<Entry>>) -> Result<ResourceConfig, Refusal> {
    let (line, Mapping(entry)) = (line(&written), written.value);
    let written_name = required(entry.name, "name", line)?;
    let name = values::name(&written_name.value, &written_name)?;
    let kind = required(entry.kind, "kind", line)?;
    let has_hcas = matches!(kind, Kind::Rdma | Kind::Rail);
    let share = entry.share.map_or(Ok(1), |written| share(&written, kind))?;
    let mode = entry.mode.unwrap_or_default();
    if mode == Mode::Dra && written_name.value.len() > DRA_NAME_BYTES_MOST {
        let why =
            format!("with `mode: dra` a name has at most {DRA_NAME_BYTES_MOST} characters: it is a device attribute");
        return Err(refuse(&written_name, why));
    }
    let give = match entry.give {
        None => Give::default(),
        Some(written) if written.value == Give::All && (kind != Kind::Rdma || mode == Mode::Dra) => {
            let why = "`give: all` gives every container the same HCAs, through the device plugin API: it needs `kind: rdma` and \
                       `mode: plugin`";
            return Err(refuse(&written, why));
        }
        Some(written) => written.value,
    };
    let mad = match entry.mad {
        None => false,
        Some(written) if written.value && !has_hcas => {
            return Err(refuse(&written, "`mad` is for HCAs: remove it here"));
        }
        Some(written) => written.value,
    };
    let limits = match entry.limits {
        Some(written) if !has_hcas => {
            let why = "limits are for containers with HCAs, and this resource has none: remove them, or write `kind: rdma` or \
                       `kind: rail`";
            return Err(refuse(&written, why));
        }
        limits => limits.as_ref().map(limits::read).transpose()?,
    };
    let select = select::read(entry.select.unwrap_or_default().0, kind)?;
    Ok(ResourceConfig { name, kind, select, share, give, mode, mad, limits, line })
}

fn share(written: &Spanned<String>, kind: Kind) -> Result<u16, Refusal> {
    if kind == Kind::Rail {
        return Err(refuse(written, "a rail is a GPU and an HCA for one container alone: remove `share`"));
    }
    let text = &written.value;
    let share = text.parse().ok().filter(|share| (1..=SHARE_MOST).contains(share));
    share.ok_or_else(|| {
        let why =
            format!("share of {text}: it is the number of containers that can share a device; write 1 to {SHARE_MOST}");
        refuse(written, why)
    })
}
