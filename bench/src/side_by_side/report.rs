//! The types that every comparison reports: the systems, the state of their caches, and the systems that were left out.

use serde::Serialize;

use crate::systems::{Kind, System};

/// The state of the caches at the start of a measurement.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum State {
    /// A new mount, an empty local cache, nothing in the kernel's caches.
    Cold,
    /// Everything in the local cache, nothing in the kernel's caches.
    Warm,
    /// Everything was read through this mount just before.
    Hot,
}

impl State {
    /// All states, in the order in which they are measured.
    pub const ALL: [Self; 3] = [Self::Cold, Self::Warm, Self::Hot];

    /// The name in tables.
    pub fn name(self) -> &'static str {
        match self {
            Self::Cold => "cold",
            Self::Warm => "warm",
            Self::Hot => "hot",
        }
    }
}

/// A system that was measured.
#[derive(Clone, Debug, Serialize)]
pub struct SystemInfo {
    /// Its name.
    pub name: String,
    /// Its role in the comparison.
    pub kind: Kind,
    /// The version that the system's program reports; empty if it has no program.
    pub version: String,
    /// How the system was set up, as a sentence for the table.
    pub options: String,
}

impl SystemInfo {
    pub(crate) fn of(system: &dyn System) -> Self {
        Self {
            name: system.name().to_owned(),
            kind: system.kind(),
            version: system.version(),
            options: system.options().to_owned(),
        }
    }
}

/// A system that is missing in some or all rows, and why.
#[derive(Clone, Debug, Serialize)]
pub struct LeftOut {
    /// Its name.
    pub name: String,
    /// The reason.
    pub why: String,
}

/// Lists how each system was set up, then the systems that were left out.
pub(crate) fn footer(systems: &[SystemInfo], left_out: &[LeftOut]) -> String {
    let measured = systems.iter().map(|system| match system.version.as_str() {
        "" => format!("{}: {}\n", system.name, system.options),
        version => format!("{} ({version}): {}\n", system.name, system.options),
    });
    measured.chain(left_out.iter().map(|one| format!("{}: left out: {}\n", one.name, one.why))).collect()
}
