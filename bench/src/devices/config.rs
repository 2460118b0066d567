//! The settings of a run.

use serde::Serialize;

/// The settings of a run.
#[derive(Clone, Debug, Default, Serialize)]
pub struct DevicesConfig {
    /// Number of calls of each kind in each round.
    pub calls: u32,
    /// How long each process is measured while idle.
    pub idle_seconds: u64,
    /// Number of rounds.
    pub rounds: u32,
}
