//! The result of one epoch.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::figures::percentile;

/// Speed and latency of one epoch.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Epoch {
    /// Number of files read.
    pub files: u64,
    /// Bytes read.
    pub bytes: u64,
    /// Duration of the epoch.
    pub seconds: f64,
    /// Files per second.
    pub files_per_second: f64,
    /// MB (10^6 bytes) per second.
    pub mb_per_second: f64,
    /// Half of the files took at most this long to open and read, in ms.
    pub p50_ms: f64,
    /// 99 of 100 files took at most this long, in ms.
    pub p99_ms: f64,
    /// Seconds of CPU that this process used during the epoch, user and kernel.
    pub cpu_seconds: f64,
}

impl Epoch {
    /// An epoch from the time of each file, in any order.
    pub fn new(mut times: Vec<Duration>, bytes: u64, seconds: f64, cpu_seconds: f64) -> Self {
        times.sort_unstable();
        let ms = |share| percentile(&times, share).map_or(0.0, |time| time.as_secs_f64() * 1e3);
        Self {
            files: times.len() as u64,
            bytes,
            seconds,
            files_per_second: times.len() as f64 / seconds,
            mb_per_second: bytes as f64 / 1e6 / seconds,
            p50_ms: ms(0.5),
            p99_ms: ms(0.99),
            cpu_seconds,
        }
    }
}
