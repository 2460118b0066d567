//! Reads bytes as each attribute of sysfs that the inventory of devices decodes.
//!
//! Invariant under test: no panic; what is decoded keeps within its limits and prints as the text that it came from.
#![no_main]
#![expect(dead_code, reason = "the target calls a part of what it includes")]

// Included rather than linked: the program's crate would compile kube and tonic, with the fuzzer's flags.
#[path = "../../../device-plugins/src/inventory/attribute.rs"]
mod attribute;
#[path = "../../../device-plugins/src/machine"]
mod machine {
    mod hca;
    mod place;
    pub use hca::{GidType, LinkLayer, PhysState, PortState};
    pub use place::{PciAddress, Place};
}

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let Some(text) = attribute::first_line(data) else { return };
    for name in [attribute::hca_name(text), attribute::netdev_name(text), attribute::driver_name(text)] {
        assert!(name.is_none_or(|name| name == text && (1..64).contains(&name.len()) && !name.contains('/')));
    }
    for prefix in ["uverbs", "umad", "issm"] {
        assert!(attribute::numbered(text, prefix).is_none_or(|name| name == text && name.starts_with(prefix)));
    }
    assert!(attribute::decimal(text).is_none_or(|number| number.to_string() == text));
    assert!(attribute::port_number(text).is_none_or(|port| (1..=255).contains(&port)));
    assert!(attribute::numa_node(text).flatten().is_none_or(|node| node.to_string() == text));
    assert!(attribute::pci_id(text).is_none_or(|id| format!("0x{id}") == text.to_ascii_lowercase()));
    assert!(attribute::node_guid(text).is_none_or(|guid| guid == text && guid.len() == 19));
    assert!(attribute::device_numbers(text).is_none_or(|(major, minor)| format!("{major}:{minor}") == text));
    assert!(attribute::rate_gbps(text).is_none_or(|rate| rate.is_finite() && rate >= 0.0));
    assert!(attribute::lid(text).is_none_or(|lid| u32::from_str_radix(&text[2..], 16) == Ok(lid)));
    assert!(attribute::gid(text).is_none_or(|gid| printed(gid) == text.to_ascii_lowercase()));
    assert!(attribute::pci_address(text).is_none_or(|address| address.to_string() == text));
    assert!(attribute::pci_root(text).is_none_or(|root| root == text));
    let _ = (attribute::port_state(text), attribute::phys_state(text), attribute::link_layer(text));
    let _ = (attribute::gid_type(text), attribute::flag(text));
});

fn printed(gid: [u8; 16]) -> String {
    let groups = gid.chunks(2).map(|pair| format!("{:02x}{:02x}", pair[0], pair[1]));
    groups.collect::<Vec<_>>().join(":")
}
