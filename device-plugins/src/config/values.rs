//! Values of both file formats.

use serde_saphyr::Spanned;

use super::document::refuse;
use super::refusal::Refusal;
use super::settings::{ResourceConfig, ResourceName};
use crate::machine::LinkLayer;

/// The most resources of a node: each has a socket of its own.
const RESOURCES_MOST: usize = 64;

/// The items of a list.
pub(super) type Items = Vec<Spanned<String>>;

/// Reads the name of a resource.
pub(super) fn name<T>(text: &str, at: &Spanned<T>) -> Result<ResourceName, Refusal> {
    ResourceName::new(text).ok_or_else(|| {
        let why = format!(
            "`{text}` is not a resource name: write a domain other than Kubernetes' own, `/`, and a name of up to 63 letters, \
             digits, `-`, `_` and `.`, such as larder.dev/gpu"
        );
        refuse(at, why)
    })
}

/// Appends a resource, whose name must be new.
pub(super) fn add(to: &mut Vec<ResourceConfig>, new: ResourceConfig) -> Result<(), Refusal> {
    let refuse = |why: String| Err(Refusal { line: new.line, why });
    if let Some(old) = to.iter().find(|old| old.name == new.name) {
        let modes = if old.mode == new.mode { "" } else { ", in both modes" };
        return refuse(format!(
            "{} is also the name of the resource on line {}{modes}: a name belongs to one resource; rename or remove one of them",
            new.name, old.line
        ));
    }
    if to.len() == RESOURCES_MOST {
        return refuse(format!("a node offers at most {RESOURCES_MOST} resources: remove this one"));
    }
    to.push(new);
    Ok(())
}

/// Reads the numbers of PCI vendors or devices.
pub(super) fn pci_numbers(list: Items) -> Result<Vec<String>, Refusal> {
    each(list, |text| {
        let digits = text.strip_prefix("0x").unwrap_or(text);
        let is_sound = digits.len() == 4 && digits.bytes().all(|digit| digit.is_ascii_hexdigit());
        is_sound.then(|| digits.to_ascii_lowercase()).ok_or("four hexadecimal digits, such as 15b3")
    })
}

/// Reads link types: ours, or the kernel's names of encapsulations, which Mellanox's plugin uses.
pub(super) fn link_types(list: Items) -> Result<Vec<LinkLayer>, Refusal> {
    each(list, |text| match text.to_ascii_lowercase().as_str() {
        "infiniband" => Ok(LinkLayer::InfiniBand),
        "ethernet" | "ether" => Ok(LinkLayer::Ethernet),
        _ => Err("InfiniBand or Ethernet"),
    })
}

/// Reads names; none may be empty.
pub(super) fn names(list: Items) -> Result<Vec<String>, Refusal> {
    each(list, |text| (!text.is_empty()).then(|| text.to_owned()).ok_or("a name"))
}

/// Reads each item of a list.
pub(super) fn each<T>(list: Items, read: impl Fn(&str) -> Result<T, &'static str>) -> Result<Vec<T>, Refusal> {
    let read = |item: &Spanned<String>| {
        let text = &item.value;
        read(text).map_err(|wanted| refuse(item, format!("`{text}` is not valid here: write {wanted}")))
    };
    list.iter().map(read).collect()
}
