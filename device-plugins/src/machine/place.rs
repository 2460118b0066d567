//! PCI addresses, and where in a machine a device is.

use std::fmt;
use std::str::FromStr;

/// The address of a PCI function, such as `0000:3b:00.0`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PciAddress {
    /// The PCI domain (segment).
    pub domain: u32,
    /// The bus.
    pub bus: u8,
    /// The device on the bus, below 32.
    pub device: u8,
    /// The function of the device, below 8.
    pub function: u8,
}

impl fmt::Display for PciAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:04x}:{:02x}:{:02x}.{:x}", self.domain, self.bus, self.device, self.function)
    }
}

/// The text is not a PCI address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not a PCI address, such as 0000:3b:00.0")]
pub struct NotPciAddress;

impl FromStr for PciAddress {
    type Err = NotPciAddress;

    /// Accepts the form of sysfs, and that of NVML, whose domain has eight digits.
    fn from_str(text: &str) -> Result<Self, NotPciAddress> {
        let number = |text: &str, digits: std::ops::RangeInclusive<usize>, below: u32| {
            let fits = digits.contains(&text.len()) && text.bytes().all(|digit| digit.is_ascii_hexdigit());
            let number = fits.then(|| u32::from_str_radix(text, 16).ok()).flatten();
            number.filter(|number| *number < below || below == 0).ok_or(NotPciAddress)
        };
        let (domain, rest) = text.split_once(':').ok_or(NotPciAddress)?;
        let (bus, rest) = rest.split_once(':').ok_or(NotPciAddress)?;
        let (device, function) = rest.split_once('.').ok_or(NotPciAddress)?;
        Ok(Self {
            domain: number(domain, 4..=8, 0)?,
            bus: number(bus, 2..=2, 256)? as u8,
            device: number(device, 2..=2, 32)? as u8,
            function: number(function, 1..=1, 8)? as u8,
        })
    }
}

/// The location of a device.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Place {
    pub pci: PciAddress,
    /// Its PCIe root complex, such as `pci0000:3a`, as the standard DRA attribute `pcieRoot` names it. Empty if sysfs does not report it.
    pub root: String,
    /// The bridges between the root and the device, starting at the root.
    pub bridges: Vec<PciAddress>,
    /// Its NUMA node, if the firmware reports it.
    pub numa: Option<u32>,
}

impl Place {
    /// The upstream port of the device's PCIe switch, if the device is on a switch: below a root port, a switch has one upstream
    /// port, and a downstream port for each device.
    pub fn switch(&self) -> Option<PciAddress> {
        let upstream = self.bridges.len().checked_sub(2)?;
        (upstream >= 1).then(|| self.bridges[upstream])
    }

    /// The number of bridges between two devices; `None` without a common root. 0 for functions of one device.
    pub fn distance(&self, other: &Self) -> Option<usize> {
        if self.root.is_empty() || self.root != other.root {
            return None;
        }
        let common = self.bridges.iter().zip(&other.bridges).take_while(|(a, b)| a == b).count();
        Some(self.bridges.len() + other.bridges.len() - 2 * common)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pci(text: &str) -> PciAddress {
        text.parse().unwrap()
    }

    fn place(root: &str, bridges: &[&str], at: &str) -> Place {
        let bridges = bridges.iter().map(|bridge| pci(bridge)).collect();
        Place { pci: pci(at), root: root.to_owned(), bridges, numa: None }
    }

    #[test]
    fn addresses_of_sysfs_and_of_nvml_are_the_same() {
        assert_eq!(pci("00000000:3B:00.0"), pci("0000:3b:00.0"));
        assert_eq!(pci("10001:3b:1f.7").to_string(), "10001:3b:1f.7");
        for wrong in ["", "3b:00.0", "0000:3b:00", "0000:3b:20.0", "0000:3b:00.8", "0000:+b:00.0", "000000000:3b:00.0"]
        {
            assert_eq!(wrong.parse::<PciAddress>(), Err(NotPciAddress), "{wrong}");
        }
    }

    #[test]
    fn devices_on_one_switch_are_nearest() {
        let port = "0000:10:01.0";
        let gpu = place("pci0000:10", &[port, "0000:11:00.0", "0000:12:00.0"], "0000:13:00.0");
        let hca = place("pci0000:10", &[port, "0000:11:00.0", "0000:12:01.0"], "0000:14:00.0");
        let other = place("pci0000:10", &["0000:10:02.0", "0000:21:00.0", "0000:22:00.0"], "0000:23:00.0");
        assert_eq!((gpu.switch(), hca.switch()), (Some(pci("0000:11:00.0")), Some(pci("0000:11:00.0"))));
        assert_eq!((gpu.distance(&hca), gpu.distance(&other)), (Some(2), Some(6)));
        assert_eq!(gpu.distance(&place("pci0000:40", &[], "0000:41:00.0")), None);
        // Right below a root port there is no switch.
        assert_eq!(place("pci0000:10", &[port], "0000:11:00.0").switch(), None);
        assert_eq!(Place::default().distance(&Place::default()), None);
    }
}
