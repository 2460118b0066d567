//! The ports of one HCA, with hysteresis.

use std::time::{Duration, Instant, SystemTime};

use super::event::{Now, PortSeen};
use super::fault::{Fault, Reason};
use crate::config::HealthConfig;

/// An HCA leaves service when no port has been up for `port_down`, and returns when any port has been up for `port_up`.
/// A port that was never cabled therefore does not matter beside a cabled port.
#[derive(Clone, Debug)]
pub(super) struct HcaHealth {
    ports: Vec<PortSeen>,
    /// When the HCA last changed between up and down.
    changed: Now,
    /// When the HCA left service; `None` while it is in service.
    out: Option<SystemTime>,
}

impl HcaHealth {
    /// A new HCA. The first reading decides without a waiting time, so a restart of the process loses no capacity.
    pub(super) fn new(ports: Vec<PortSeen>, now: Now) -> Self {
        let out = (!is_up(&ports)).then_some(now.wall);
        Self { ports, changed: now, out }
    }

    pub(super) fn see(&mut self, ports: Vec<PortSeen>, now: Now) {
        if is_up(&ports) != is_up(&self.ports) {
            self.changed = now;
        }
        self.ports = ports;
    }

    pub(super) fn settle(&mut self, config: &HealthConfig, now: Now) {
        if self.next(config).is_some_and(|due| due <= now.instant) {
            self.out = if is_up(&self.ports) { None } else { Some(self.changed.wall) };
        }
    }

    pub(super) fn next(&self, config: &HealthConfig) -> Option<Instant> {
        let wait: Duration = match (is_up(&self.ports), self.out.is_some()) {
            (true, true) => config.port_up,
            (false, false) => config.port_down,
            (true, false) | (false, true) => return None,
        };
        Some(self.changed.instant + wait)
    }

    pub(super) fn fault(&self, config: &HealthConfig) -> Option<Fault> {
        let since = self.out?;
        let states: Vec<String> = self
            .ports
            .iter()
            .map(|port| format!("port {} is {} and {}", port.number, port.state, port.phys_state))
            .collect();
        let message = match (states.is_empty(), is_up(&self.ports)) {
            (true, _) => "it has no port".to_owned(),
            (false, true) => format!("not up for long enough: {}", states.join(", ")),
            (false, false) => format!("no port is up: {}", states.join(", ")),
        };
        let recovery = format!("a port is ACTIVE and LinkUp for {} s", config.port_up.as_secs_f64());
        Some(Fault { reason: Reason::PortDown, message, since, recovery })
    }
}

fn is_up(ports: &[PortSeen]) -> bool {
    ports.iter().any(PortSeen::is_up)
}
