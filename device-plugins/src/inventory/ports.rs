//! The states of all ports, read again and again.
//!
//! The files stay open, so a poll costs two calls a port and one look at the folder of HCAs. An HCA that vanished and came back
//! between two polls is noticed by its files, which the kernel makes unreadable, and by the inode of its entry.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::os::unix::fs::DirEntryExt;
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, Mode, OFlags, openat};

use super::attribute;
use super::folder::{Attribute, ENTRIES_MOST, Warnings, entries};
use super::roots::Roots;
use crate::machine::{PhysState, PortState};

/// The most HCAs whose files stay open, since a process may have few by default. Those of others are opened for each poll.
const KEPT_HCAS: usize = 64;

/// Room for the text of a state.
const STATE_BYTES: usize = 64;

/// The ports of a node.
#[derive(Debug)]
pub struct PortWatch {
    class: PathBuf,
    hcas: BTreeMap<String, Watched>,
}

/// The state of a port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reading {
    /// The name of its HCA.
    pub hca: String,
    /// Its number.
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

/// What is not as it was when it was last looked at.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Changes {
    /// HCAs that are gone. One that came back since is among those that appeared, too.
    pub vanished: Vec<String>,
    /// HCAs that were not there.
    pub appeared: Vec<String>,
    /// Ports of another state than before, and all ports of HCAs that appeared.
    pub ports: Vec<Reading>,
}

impl Changes {
    /// True if nothing changed.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// An HCA that is watched.
#[derive(Debug)]
struct Watched {
    inode: u64,
    /// Its entry, held so that no other gets the same inode. `None` if its files do not stay open.
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
    /// Watches from the next poll on, which finds that everything appeared.
    pub fn new(roots: &Roots) -> Self {
        Self { class: roots.class("infiniband"), hcas: BTreeMap::new() }
    }

    /// Reads all states. Blocks for as long as the HCAs' firmware takes to tell them: not for the runtime's threads.
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

    /// Looks which ports the HCAs have now: one that came after the others is part of the next poll.
    pub fn relist(&mut self) {
        for (name, hca) in &mut self.hcas {
            let known = std::mem::take(&mut hca.ports).into_iter().map(|port| (port.reading.port, port));
            let mut known: BTreeMap<u32, WatchedPort> = known.collect();
            let listed = ports(name, &self.class.join(name)).into_iter();
            hca.ports = listed.map(|port| known.remove(&port.reading.port).unwrap_or(port)).collect();
        }
    }

    /// What the last poll read, by HCA and port.
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

/// The ports of an HCA, unread. What is odd about them, the inventory tells.
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

    /// Reads it. True if it is new or of another state than before.
    fn read(&mut self, keeps: bool) -> bool {
        let state = read(&mut self.state, keeps, &self.folder, "state", attribute::port_state).unwrap_or_default();
        let phys_state =
            read(&mut self.phys_state, keeps, &self.folder, "phys_state", attribute::phys_state).unwrap_or_default();
        let before = (self.reading.state, self.reading.phys_state);
        (self.reading.state, self.reading.phys_state) = (state, phys_state);
        std::mem::take(&mut self.is_new) || before != (state, phys_state)
    }
}

/// Reads an attribute by its open file, else by a new one.
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
