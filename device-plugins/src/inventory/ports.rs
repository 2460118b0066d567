//! Polls the states of all ports.
//!
//! The files stay open, so a poll takes two system calls per port and one listing of the HCA folder. An HCA that
//! vanished and returned between two polls is noticed in two ways: the kernel makes the open files unreadable, and the
//! inode of the HCA's entry differs.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::os::unix::fs::DirEntryExt;
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, Mode, OFlags, openat};

use super::attribute;
use super::folder::{Attribute, ENTRIES_MOST, Warnings, entries};
use super::roots::Roots;
use crate::machine::{PhysState, PortState};

/// The most HCAs whose files stay open, since the default limit of open files may be low. The files of other HCAs are
/// opened for each poll.
const KEPT_HCAS: usize = 64;

/// The buffer size for the text of a state.
const STATE_BYTES: usize = 64;

/// Watches the ports of a node.
#[derive(Debug)]
pub struct PortWatch {
    class: PathBuf,
    hcas: BTreeMap<String, Watched>,
}

/// The state of a port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reading {
    pub hca: String,
    pub port: u32,
    /// `PortState::Nop` if it cannot be read.
    pub state: PortState,
    /// `PhysState::Unknown` if it cannot be read.
    pub phys_state: PhysState,
}

impl Reading {
    /// True if traffic can flow.
    pub fn is_up(&self) -> bool {
        self.state.is_up(self.phys_state)
    }
}

/// The differences between two polls.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Changes {
    /// HCAs that were removed. An HCA that was removed and returned is also in `appeared`.
    pub vanished: Vec<String>,
    /// HCAs that were added.
    pub appeared: Vec<String>,
    /// Ports whose state changed, and all ports of HCAs that appeared.
    pub ports: Vec<Reading>,
}

impl Changes {
    /// True if nothing changed.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

#[derive(Debug)]
struct Watched {
    inode: u64,
    /// The HCA's sysfs entry, held open so that no new entry can reuse its inode. `None` if the HCA's files do not stay
    /// open.
    pin: Option<OwnedFd>,
    ports: Vec<WatchedPort>,
}

#[derive(Debug)]
struct WatchedPort {
    folder: PathBuf,
    state: Option<Attribute>,
    phys_state: Option<Attribute>,
    reading: Reading,
    is_new: bool,
}

impl PortWatch {
    /// Starts without state: the first poll reports all HCAs as appeared.
    pub fn new(roots: &Roots) -> Self {
        Self { class: roots.class("infiniband"), hcas: BTreeMap::new() }
    }

    /// Reads all states. Blocks until the HCAs' firmware has answered, so it must not run on the async runtime's
    /// threads.
    pub fn poll(&mut self) -> Changes {
        let listed = listed(&self.class);
        let mut changes = Changes::default();
        self.hcas.retain(|name, hca| {
            let is_there = listed.get(name) == Some(&hca.inode);
            if !is_there {
                changes.vanished.push(name.clone());
            }
            is_there
        });
        for (name, inode) in listed {
            if !self.hcas.contains_key(&name) {
                let watched = self.watched(&name, inode);
                self.hcas.insert(name.clone(), watched);
                changes.appeared.push(name);
            }
        }
        for (name, hca) in &mut self.hcas {
            if hca.ports.is_empty() {
                // The kernel adds an HCA before its ports.
                hca.ports = ports(name, &self.class.join(name));
            }
            let keeps = hca.pin.is_some();
            let changed = hca.ports.iter_mut().filter_map(|port| port.read(keeps).then_some(&port.reading));
            changes.ports.extend(changed.cloned());
        }
        changes
    }

    /// Lists the HCAs' ports again. A port that was added after the others is part of the next poll.
    pub fn relist(&mut self) {
        for (name, hca) in &mut self.hcas {
            let known = std::mem::take(&mut hca.ports).into_iter().map(|port| (port.reading.port, port));
            let mut known: BTreeMap<u32, WatchedPort> = known.collect();
            let listed = ports(name, &self.class.join(name)).into_iter();
            hca.ports = listed.map(|port| known.remove(&port.reading.port).unwrap_or(port)).collect();
        }
    }

    /// The readings of the last poll, sorted by HCA and port.
    pub fn readings(&self) -> impl Iterator<Item = &Reading> {
        self.hcas.values().flat_map(|hca| &hca.ports).map(|port| &port.reading)
    }

    fn watched(&self, name: &str, inode: u64) -> Watched {
        let may_keep = self.hcas.values().filter(|hca| hca.pin.is_some()).count() < KEPT_HCAS;
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let pin = may_keep.then(|| openat(CWD, self.class.join(name), flags, Mode::empty()).ok()).flatten();
        Watched { inode, pin, ports: Vec::new() }
    }
}

/// The HCAs and the inodes of their entries.
fn listed(class: &Path) -> BTreeMap<String, u64> {
    let entries = std::fs::read_dir(class).into_iter().flatten().take(ENTRIES_MOST).flatten();
    let named = entries.filter_map(|entry| Some((entry.file_name().into_string().ok()?, entry.ino())));
    named.filter(|(name, _)| attribute::hca_name(name).is_some()).collect()
}

/// The ports of an HCA, not yet read. Warnings are dropped here: the inventory reports them.
fn ports(hca: &str, folder: &Path) -> Vec<WatchedPort> {
    let folder = folder.join("ports");
    let numbers = entries(&folder, &mut Warnings::default());
    let mut numbers: Vec<u32> = numbers.iter().filter_map(|number| attribute::port_number(number)).collect();
    numbers.sort_unstable();
    numbers.iter().map(|number| WatchedPort::new(hca, *number, folder.join(number.to_string()))).collect()
}

impl WatchedPort {
    fn new(hca: &str, number: u32, folder: PathBuf) -> Self {
        let reading = Reading {
            hca: hca.to_owned(),
            port: number,
            state: PortState::default(),
            phys_state: PhysState::default(),
        };
        Self { folder, state: None, phys_state: None, reading, is_new: true }
    }

    /// Reads the port. True if it is new or its state changed.
    fn read(&mut self, keeps: bool) -> bool {
        let state = read(&mut self.state, keeps, &self.folder, "state", attribute::port_state).unwrap_or_default();
        let phys_state =
            read(&mut self.phys_state, keeps, &self.folder, "phys_state", attribute::phys_state).unwrap_or_default();
        let before = (self.reading.state, self.reading.phys_state);
        (self.reading.state, self.reading.phys_state) = (state, phys_state);
        std::mem::take(&mut self.is_new) || before != (state, phys_state)
    }
}

/// Reads an attribute through its open file, or opens it if that fails.
fn read<T>(
    file: &mut Option<Attribute>,
    keeps: bool,
    folder: &Path,
    name: &str,
    decode: fn(&str) -> Option<T>,
) -> Option<T> {
    let mut buffer = [0; STATE_BYTES];
    if let Some(open) = file.take()
        && let Ok(text) = open.read(&mut buffer)
    {
        *file = Some(open);
        return decode(text);
    }
    let open = Attribute::open(&folder.join(name)).ok()?;
    let value = open.read(&mut buffer).ok().and_then(decode);
    *file = keeps.then_some(open);
    value
}
