//! Pure decoders for the untrusted text of sysfs attributes.
//!
//! Each returns `None` for malformed text, and never panics.

use crate::machine::{GidType, LinkLayer, PciAddress, PhysState, PortState};

/// The most NUMA nodes that a kernel supports.
const NUMA_NODES: u32 = 1024;

/// The highest port rate that is accepted as plausible, in Gbit/s.
const RATE_GBPS_MOST: f64 = 100_000.0;

/// The first line of a file, trimmed; `None` if it is not UTF-8.
///
/// A read can overlap a write: after the first line, the rest of a longer earlier text may remain.
pub(super) fn first_line(bytes: &[u8]) -> Option<&str> {
    let line = bytes.split(|byte| *byte == b'\n').next()?;
    std::str::from_utf8(line).ok().map(str::trim)
}

/// The name of an HCA, if it is valid in the rdma controller's files, in NCCL's lists and in CDI: at most the kernel's
/// 63 bytes, only letters, digits and `-_.`, with a letter or a digit at both ends.
pub(super) fn hca_name(text: &str) -> Option<&str> {
    let ends = |byte: Option<u8>| byte.is_some_and(|byte| byte.is_ascii_alphanumeric());
    let is_sound = text.len() < 64
        && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte))
        && ends(text.bytes().next())
        && ends(text.bytes().last());
    is_sound.then_some(text)
}

/// The name of a network interface: up to 15 visible ASCII characters without `/` and `:`.
pub(super) fn netdev_name(text: &str) -> Option<&str> {
    let visible = |byte: u8| byte.is_ascii_graphic() && byte != b'/' && byte != b':';
    ((1..16).contains(&text.len()) && text.bytes().all(visible) && text != "." && text != "..").then_some(text)
}

/// The name of a kernel driver, with the same rules as an HCA's name.
pub(super) fn driver_name(text: &str) -> Option<&str> {
    hca_name(text)
}

/// The name of a character device: `prefix` and a number, such as `uverbs2`.
pub(super) fn numbered<'a>(text: &'a str, prefix: &str) -> Option<&'a str> {
    text.strip_prefix(prefix).and_then(decimal).map(|_| text)
}

/// A decimal number without sign, in the form that the kernel prints.
pub(super) fn decimal(text: &str) -> Option<u32> {
    let is_plain = !text.is_empty() && text.bytes().all(|digit| digit.is_ascii_digit());
    (is_plain && (text == "0" || !text.starts_with('0'))).then(|| text.parse().ok()).flatten()
}

/// A port number. Port 0 is the management port of a switch and carries no application traffic.
pub(super) fn port_number(text: &str) -> Option<u32> {
    decimal(text).filter(|port| (1..=255).contains(port))
}

/// `numa_node`: `Some(None)` if the firmware reports none (`-1`).
pub(super) fn numa_node(text: &str) -> Option<Option<u32>> {
    if text == "-1" {
        return Some(None);
    }
    decimal(text).filter(|node| *node < NUMA_NODES).map(Some)
}

/// `vendor` and `device` of a PCI function: `0x15b3` is `15b3`.
pub(super) fn pci_id(text: &str) -> Option<String> {
    let digits = text.strip_prefix("0x")?;
    (digits.len() == 4 && digits.bytes().all(|digit| digit.is_ascii_hexdigit())).then(|| digits.to_ascii_lowercase())
}

/// The base class in a PCI function's `class`: `0x030200` is 3, a display controller.
pub(super) fn pci_base_class(text: &str) -> Option<u8> {
    let digits = text.strip_prefix("0x")?;
    let is_sound = digits.len() == 6 && digits.bytes().all(|digit| digit.is_ascii_hexdigit());
    is_sound.then(|| u8::from_str_radix(&digits[..2], 16).ok()).flatten()
}

/// `node_guid`: four groups of four hexadecimal digits.
pub(super) fn node_guid(text: &str) -> Option<&str> {
    let is_group = |group: &str| group.len() == 4 && group.bytes().all(|digit| digit.is_ascii_hexdigit());
    (text.split(':').count() == 4 && text.split(':').all(is_group)).then_some(text)
}

/// `dev` of a character device: `231:194`.
pub(super) fn device_numbers(text: &str) -> Option<(u32, u32)> {
    let (major, minor) = text.split_once(':')?;
    let (major, minor) = (decimal(major)?, decimal(minor)?);
    (major < 1 << 12 && minor < 1 << 20).then_some((major, minor))
}

/// The number before the colon, such as 4 in `4: ACTIVE`. The name after it is ignored.
fn numbered_state(text: &str) -> Option<u32> {
    text.split_once(':').and_then(|(number, _)| decimal(number))
}

/// `state` of a port.
pub(super) fn port_state(text: &str) -> Option<PortState> {
    Some(match numbered_state(text)? {
        0 => PortState::Nop,
        1 => PortState::Down,
        2 => PortState::Init,
        3 => PortState::Armed,
        4 => PortState::Active,
        5 => PortState::ActiveDefer,
        _ => return None,
    })
}

/// `phys_state` of a port.
pub(super) fn phys_state(text: &str) -> Option<PhysState> {
    Some(match numbered_state(text)? {
        1 => PhysState::Sleep,
        2 => PhysState::Polling,
        3 => PhysState::Disabled,
        4 => PhysState::PortConfigurationTraining,
        5 => PhysState::LinkUp,
        6 => PhysState::LinkErrorRecovery,
        7 => PhysState::PhyTest,
        _ => return None,
    })
}

/// `rate` of a port, in Gbit/s: `400 Gb/sec (4X NDR)`, `2.5 Gb/sec (1X SDR)`.
pub(super) fn rate_gbps(text: &str) -> Option<f64> {
    let (number, rest) = text.split_once(' ')?;
    let is_plain = number.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.');
    let rate: f64 = number.parse().ok().filter(|_| is_plain && rest.starts_with("Gb/sec"))?;
    (rate <= RATE_GBPS_MOST).then_some(rate)
}

/// `lid` of a port: `0x1b`.
pub(super) fn lid(text: &str) -> Option<u32> {
    let digits = text.strip_prefix("0x")?;
    let is_plain = (1..=8).contains(&digits.len()) && digits.bytes().all(|digit| digit.is_ascii_hexdigit());
    is_plain.then(|| u32::from_str_radix(digits, 16).ok()).flatten()
}

/// `link_layer` of a port.
pub(super) fn link_layer(text: &str) -> Option<LinkLayer> {
    match text {
        "InfiniBand" => Some(LinkLayer::InfiniBand),
        "Ethernet" => Some(LinkLayer::Ethernet),
        _ => None,
    }
}

/// A GID: eight groups of four hexadecimal digits.
pub(super) fn gid(text: &str) -> Option<[u8; 16]> {
    let mut gid = [0; 16];
    let mut groups = text.split(':');
    for pair in gid.chunks_exact_mut(2) {
        let group = groups.next().filter(|group| group.len() == 4)?;
        let is_plain = group.bytes().all(|digit| digit.is_ascii_hexdigit());
        pair.copy_from_slice(&u16::from_str_radix(group, 16).ok().filter(|_| is_plain)?.to_be_bytes());
    }
    groups.next().is_none().then_some(gid)
}

/// `gid_attrs/types/N`.
pub(super) fn gid_type(text: &str) -> Option<GidType> {
    match text {
        "IB/RoCE v1" => Some(GidType::V1),
        "RoCE v2" => Some(GidType::V2),
        _ => None,
    }
}

/// A PCI address in the canonical spelling of sysfs; other spellings are rejected.
pub(super) fn pci_address(text: &str) -> Option<PciAddress> {
    text.parse().ok().filter(|address: &PciAddress| address.to_string() == text)
}

/// The name of a PCIe root complex: `pci0000:3a`.
pub(super) fn pci_root(text: &str) -> Option<&str> {
    pci_address(&format!("{}:00.0", text.strip_prefix("pci")?)).map(|_| text)
}

/// A boolean module parameter: `Y` or `N`.
pub(super) fn flag(text: &str) -> Option<bool> {
    match text {
        "Y" => Some(true),
        "N" => Some(false),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_line_is_the_text() {
        assert_eq!(first_line(b" 1: DOWN \nE\n\xff"), Some("1: DOWN"));
        assert_eq!((first_line(b""), first_line(b"\xff\n")), (Some(""), None));
    }

    #[test]
    fn states_go_by_their_numbers() {
        let names = ["0: NOP", "1: DOWN", "2: INIT", "3: ARMED", "4: ACTIVE", "5: ACTIVE_DEFER"];
        use PortState::{Active, ActiveDefer, Armed, Down, Init, Nop};
        assert_eq!(names.map(port_state), [Nop, Down, Init, Armed, Active, ActiveDefer].map(Some));
        let names = ["1: Sleep", "2: Polling", "3: Disabled", "5: LinkUp", "6: LinkErrorRecovery", "7: Phy Test"];
        use PhysState::{Disabled, LinkErrorRecovery, LinkUp, PhyTest, Polling, Sleep};
        let states = [Sleep, Polling, Disabled, LinkUp, LinkErrorRecovery, PhyTest];
        assert_eq!(names.map(phys_state), states.map(Some));
        assert_eq!(phys_state("4: PortConfigurationTraining"), Some(PhysState::PortConfigurationTraining));
        for wrong in ["", "4", ": ACTIVE", "-1: X", "6: ?", "4294967296: ACTIVE", "04: ACTIVE", "ACTIVE"] {
            assert_eq!(port_state(wrong), None, "{wrong}");
        }
        for (nth, name) in ["NOP", "DOWN", "INIT", "ARMED", "ACTIVE", "ACTIVE_DEFER"].into_iter().enumerate() {
            assert_eq!(port_state(&format!("{nth}: {name}")).unwrap().to_string(), name);
        }
        for text in
            ["1: Sleep", "2: Polling", "3: Disabled", "4: PortConfigurationTraining", "5: LinkUp", "7: Phy Test"]
        {
            assert_eq!(phys_state(text).unwrap().to_string(), text[3..]);
        }
        assert_eq!((phys_state("0: <unknown>"), phys_state("8: <unknown>")), (None, None));
    }

    #[test]
    fn rates_are_finite_numbers_of_gigabits() {
        assert_eq!(rate_gbps("400 Gb/sec (4X NDR)"), Some(400.0));
        assert_eq!(rate_gbps("2.5 Gb/sec (1X SDR)"), Some(2.5));
        for wrong in ["", "400", "inf Gb/sec", "NaN Gb/sec", "-1 Gb/sec", "1e9 Gb/sec", "400 Mb/sec", "999999 Gb/sec"] {
            assert_eq!(rate_gbps(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn names_can_stand_in_lists_and_files() {
        for name in ["mlx5_0", "ibp26s0", "rocep1s0f0", "mlx5.a-b", &"x".repeat(63)] {
            assert_eq!(hca_name(name), Some(name));
        }
        for wrong in ["", ".", "..", "a/b", "mlx5 0", "mlx5,1", "^mlx5", "mlx5\n", "mlx5_", "mlü5", &"x".repeat(64)] {
            assert_eq!(hca_name(wrong), None, "{wrong}");
        }
        assert_eq!(netdev_name("ens1f0np0"), Some("ens1f0np0"));
        for wrong in ["", ".", "..", "a/b", "a b", "eth0:1", "sixteen_bytes_xx", "e\u{7f}"] {
            assert_eq!(netdev_name(wrong), None, "{wrong}");
        }
        assert_eq!(numbered("uverbs12", "uverbs"), Some("uverbs12"));
        for wrong in ["uverbs", "uverbs-1", "uverbs1x", "uverbs01", "umad1", "uverbs4294967296"] {
            assert_eq!(numbered(wrong, "uverbs"), None, "{wrong}");
        }
    }

    #[test]
    fn numbers_do_not_overflow() {
        assert_eq!((decimal("4294967295"), decimal("4294967296")), (Some(u32::MAX), None));
        assert_eq!((decimal("+1"), decimal("01"), decimal("")), (None, None, None));
        assert_eq!((port_number("1"), port_number("0"), port_number("256")), (Some(1), None, None));
        assert_eq!((numa_node("-1"), numa_node("1"), numa_node("1024")), (Some(None), Some(Some(1)), None));
        assert_eq!((lid("0x1b"), lid("0xffffffff"), lid("0x1ffffffff")), (Some(27), Some(u32::MAX), None));
        assert_eq!((lid("0x"), lid("1b"), lid("0x+1")), (None, None, None));
        assert_eq!(device_numbers("231:194"), Some((231, 194)));
        for wrong in ["231", "4096:1", "1:1048576", "1:2:3", ":"] {
            assert_eq!(device_numbers(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn identities_have_their_exact_form() {
        assert_eq!((pci_id("0x15B3").as_deref(), pci_id("15b3"), pci_id("0x15b")), (Some("15b3"), None, None));
        assert_eq!((pci_base_class("0x030200"), pci_base_class("0xff0000")), (Some(3), Some(255)));
        assert_eq!(
            (pci_base_class("030200"), pci_base_class("0x0302"), pci_base_class("0x+30200")),
            (None, None, None)
        );
        assert_eq!(node_guid("0c42:a103:0065:1a2b"), Some("0c42:a103:0065:1a2b"));
        assert_eq!((node_guid("0c42:a103:0065"), node_guid("0c42:a103:0065:1a2g")), (None, None));
        let link_local = [0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x1a, 0x2b];
        assert_eq!(gid("fe80:0000:0000:0000:0000:0000:0000:1a2b"), Some(link_local));
        for wrong in ["", "fe80::1a2b", "fe80:0000:0000:0000:0000:0000:0000", "+e80:0:0:0:0:0:0:0"] {
            assert_eq!(gid(wrong), None, "{wrong}");
        }
        assert_eq!(gid("fe80:0000:0000:0000:0000:0000:0000:1a2b:0000"), None);
        assert_eq!(
            (gid_type("RoCE v2"), gid_type("IB/RoCE v1"), gid_type("?")),
            (Some(GidType::V2), Some(GidType::V1), None)
        );
        assert_eq!((pci_root("pci0000:3a"), pci_root("pci10000:00")), (Some("pci0000:3a"), Some("pci10000:00")));
        assert_eq!((pci_root("pci0000:3A"), pci_root("0000:3a"), pci_root("pci")), (None, None, None));
        assert_eq!((pci_address("0000:3b:00.0").is_some(), pci_address("00000000:3b:00.0")), (true, None));
        assert_eq!((flag("Y"), flag("N"), flag("1")), (Some(true), Some(false), None));
    }
}
