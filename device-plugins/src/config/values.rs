//! Values that both kinds of file have.

use super::document::At;
use super::refusal::Refusal;
use super::settings::{ResourceConfig, ResourceName};
use crate::machine::LinkLayer;

/// The most resources of a node: each is served on a socket of its own.
const RESOURCES_MOST: usize = 64;

/// Reads the name of a resource.
pub(super) fn name(text: &str, at: &At) -> Result<ResourceName, Refusal> {
    ResourceName::new(text).ok_or_else(|| {
        at.refuse(format!(
            "`{text}` is no name of a resource: write a domain that is not Kubernetes' own, `/`, and a name of up to 63 letters, \
             digits, `-`, `_` and `.`, such as larder.dev/gpu"
        ))
    })
}

/// Puts a resource behind those of other names.
pub(super) fn add(to: &mut Vec<ResourceConfig>, new: ResourceConfig, at: &At) -> Result<(), Refusal> {
    if let Some(old) = to.iter().find(|old| old.name == new.name) {
        let modes = if old.mode == new.mode { "" } else { ", in both modes" };
        return Err(at.refuse(format!(
            "{} is also the name of the resource of line {}{modes}: one name is one resource; give one of them another name, or \
             remove it",
            new.name, old.line
        )));
    }
    if to.len() == RESOURCES_MOST {
        return Err(at.refuse(format!("a node offers {RESOURCES_MOST} resources at most: remove this one")));
    }
    to.push(new);
    Ok(())
}

/// Reads the numbers of PCI vendors or devices.
pub(super) fn pci_numbers(list: Vec<String>, at: &At) -> Result<Vec<String>, Refusal> {
    each(list, at, |text| {
        let digits = text.strip_prefix("0x").unwrap_or(text);
        let is_sound = digits.len() == 4 && digits.bytes().all(|digit| digit.is_ascii_hexdigit());
        is_sound.then(|| digits.to_ascii_lowercase()).ok_or("four hexadecimal digits, such as 15b3")
    })
}

/// Reads link types: ours, or the kernel's names of encapsulations, which Mellanox's plugin uses.
pub(super) fn link_types(list: Vec<String>, at: &At) -> Result<Vec<LinkLayer>, Refusal> {
    each(list, at, |text| match text.to_ascii_lowercase().as_str() {
        "infiniband" => Ok(LinkLayer::InfiniBand),
        "ethernet" | "ether" => Ok(LinkLayer::Ethernet),
        _ => Err("InfiniBand or Ethernet"),
    })
}

/// Reads names, none of which is empty.
pub(super) fn names(list: Vec<String>, at: &At) -> Result<Vec<String>, Refusal> {
    each(list, at, |text| (!text.is_empty()).then(|| text.to_owned()).ok_or("a name"))
}

/// Reads each item of a list.
pub(super) fn each<T>(
    list: Vec<String>,
    at: &At,
    read: impl Fn(&str) -> Result<T, &'static str>,
) -> Result<Vec<T>, Refusal> {
    let items = list.iter().enumerate();
    items
        .map(|(nth, text)| {
            read(text).map_err(|wanted| at.item(nth).refuse(format!("`{text}` cannot be here: write {wanted}")))
        })
        .collect()
}
