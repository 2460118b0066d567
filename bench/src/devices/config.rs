//! The settings of a run.

use serde::Serialize;

/// The settings of a run.
#[derive(Clone, Debug, Default, Serialize)]
pub struct DevicesConfig {
    /// Calls of each kind in each round.
    pub calls: u32,
    /// How long each process rests.
    pub idle_seconds: u64,
    /// How often.
    pub rounds: u32,
}
