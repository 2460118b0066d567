//! The health of one GPU: its fault, the driver's recovery action, and whether the GPU answers.

use std::time::{Duration, Instant, SystemTime};

use super::event::{Now, RecoveryAction, action_of, words};
use super::fault::{Fault, Reason};
use super::silence::Silence;
use crate::config::{HealthConfig, XidAction};

/// The faults that began within this time of the newest one extend the quiet time.
const MEMORY: Duration = Duration::from_secs(24 * 3600);

/// The quiet time doubles up to this, or is `gpuQuiet` if that is longer.
const LONGEST_QUIET: Duration = Duration::from_secs(4 * 3600);

const NOT_REPORTED: &str = "the driver does not report recovery actions";

/// The most faults that count. Fewer reach [`LONGEST_QUIET`], unless `gpuQuiet` is a few milliseconds.
const MOST_FAULTS: usize = 32;

#[derive(Clone, Debug, Default)]
pub(super) struct GpuHealth {
    presence: Presence,
    /// `None` until it was first read, and after the GPU was removed.
    recovery: Option<RecoveryAction>,
    fault: Option<GpuFault>,
    /// When the newest fault and those of the day before it began, oldest first.
    begun: Vec<SystemTime>,
    pub(super) silence: Silence,
}

/// Whether the inventory has the GPU.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Presence {
    /// It never had.
    #[default]
    Unseen,
    Present,
    Removed,
}

/// A fault that takes a GPU out of service.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct GpuFault {
    /// DrainGpu or DrainNode.
    pub(super) action: XidAction,
    /// The last observation.
    pub(super) what: String,
    /// When the fault began.
    pub(super) since: SystemTime,
    /// When the last problem was observed; the quiet time starts here.
    pub(super) last: Now,
    /// True until the GPU was seen to be reset. Matters only while the driver does not report recovery actions: one
    /// that does says itself whether a reset is still needed.
    pub(super) awaits_reset: bool,
    /// True if the driver, when it was last heard, waited for a reset to repair the GPU's memory.
    pub(super) repair_pending: bool,
}

impl GpuHealth {
    /// A GPU whose fault and history an earlier process stored.
    pub(super) fn remembered(fault: Option<GpuFault>, begun: Vec<SystemTime>) -> Self {
        Self { fault, begun, ..Self::default() }
    }

    /// Sets whether the inventory has the GPU.
    pub(super) fn there(&mut self, present: bool) {
        self.presence = match (self.presence, present) {
            (Presence::Removed, true) => {
                self.see_reset();
                Presence::Present
            }
            (_, true) => Presence::Present,
            (Presence::Present, false) => {
                self.recovery = None;
                Presence::Removed
            }
            (absent, false) => absent,
        };
    }

    /// Takes the GPU out of service because of an Xid, or extends its fault.
    pub(super) fn drain(&mut self, action: XidAction, what: String, now: Now) {
        let fault = self.fault_at(action, &what, now);
        (fault.what, fault.awaits_reset) = (what, true);
    }

    /// The fault, with at least this action and a problem now. It begins now if there was none.
    fn fault_at(&mut self, action: XidAction, what: &str, now: Now) -> &mut GpuFault {
        let begun = &mut self.begun;
        let fault = self.fault.get_or_insert_with(|| {
            // A time in the future comes from a clock that was set back since.
            begun.iter_mut().for_each(|at| *at = (*at).min(now.wall));
            begun.retain(|at| now.wall.duration_since(*at).is_ok_and(|age| age < MEMORY));
            begun.push(now.wall);
            begun.drain(..begun.len().saturating_sub(MOST_FAULTS));
            let (what, since) = (what.to_owned(), now.wall);
            GpuFault { action, what, since, last: now, awaits_reset: true, repair_pending: false }
        });
        fault.action = fault.action.max(action);
        fault.last = now;
        fault
    }

    /// The GPU answered with its recovery action.
    pub(super) fn answer(&mut self, recovery: RecoveryAction, now: Now) {
        self.silence.answer();
        let before = self.recovery.replace(recovery).and_then(action_of);
        if let Some(action) = action_of(recovery) {
            // An existing fault keeps its text: an Xid is more specific than the recovery action that followed from it.
            let fault = self.fault_at(action, &format!("the driver asks for {}", words(recovery)), now);
            fault.repair_pending = recovery == RecoveryAction::GpuReset;
            return;
        }
        let Some(fault) = &mut self.fault else { return };
        let is_repaired = std::mem::take(&mut fault.repair_pending);
        if before.is_some() || is_repaired {
            // The quiet time begins when the driver no longer asks for an action.
            fault.last = now;
        }
        if is_repaired {
            self.see_reset();
        }
    }

    /// The GPU was reset, which does not help where the node has to be rebooted.
    fn see_reset(&mut self) {
        if let Some(fault) = self.fault.as_mut().filter(|fault| fault.action < XidAction::DrainNode) {
            fault.awaits_reset = false;
        }
    }

    /// The current fault.
    pub(super) fn standing(&self) -> Option<&GpuFault> {
        self.fault.as_ref()
    }

    /// When the faults that extend the quiet time began.
    pub(super) fn begun(&self) -> &[SystemTime] {
        &self.begun
    }

    pub(super) fn settle(&mut self, config: &HealthConfig, driver_answers: bool, now: Now) {
        self.silence.settle(config.nvml_unknown, now);
        if self.quiet_at(config, driver_answers).is_some_and(|due| due <= now.instant) {
            self.fault = None;
        }
    }

    pub(super) fn next(&self, config: &HealthConfig, driver_answers: bool) -> Option<Instant> {
        self.silence.next(config.nvml_unknown).into_iter().chain(self.quiet_at(config, driver_answers)).min()
    }

    /// When the fault ends if nothing else is observed.
    fn quiet_at(&self, config: &HealthConfig, driver_answers: bool) -> Option<Instant> {
        let needs_nothing = action_of(self.recovery?).is_none() && self.awaiting_reset().is_none();
        let recovers = self.presence == Presence::Present && driver_answers && self.silence.answers() && needs_nothing;
        self.fault.as_ref().filter(|_| recovers).map(|fault| fault.last.instant + self.quiet(config))
    }

    /// How long the GPU must be without faults: twice as long for each further fault within a day.
    fn quiet(&self, config: &HealthConfig) -> Duration {
        let doublings = self.begun.len().saturating_sub(1).min(MOST_FAULTS - 1);
        config.gpu_quiet.saturating_mul(1 << doublings).min(LONGEST_QUIET.max(config.gpu_quiet))
    }

    /// The GPU's own fault, or the fault that it does not answer.
    pub(super) fn fault(&self, config: &HealthConfig) -> Option<Fault> {
        let own = self.fault.as_ref().map(|fault| Fault {
            reason: Reason::GpuFault,
            message: match self.recovery.filter(|recovery| action_of(*recovery).is_some()) {
                Some(recovery) if !fault.what.starts_with("the driver") => {
                    format!("{}; the driver asks for {}", fault.what, words(recovery))
                }
                _ => fault.what.clone(),
            },
            since: fault.since,
            recovery: self.recovery(config),
        });
        own.or_else(|| self.silence.fault("the GPU does not answer"))
    }

    /// The fault, if only a reset that can be seen or a reboot ends it.
    fn awaiting_reset(&self) -> Option<&GpuFault> {
        let is_unsupported = self.recovery == Some(RecoveryAction::Unsupported);
        self.fault.as_ref().filter(|fault| is_unsupported && fault.awaits_reset)
    }

    /// The recovery condition of the GPU.
    fn recovery(&self, config: &HealthConfig) -> String {
        let quiet = self.quiet(config).as_secs_f64();
        match self.awaiting_reset() {
            Some(fault) if fault.action == XidAction::DrainNode => format!("the node is rebooted: {NOT_REPORTED}"),
            Some(_) => {
                format!("the node is rebooted, or the GPU leaves the PCI bus and is back for {quiet} s: {NOT_REPORTED}")
            }
            None => {
                format!(
                    "NVML's recovery action is NONE, queries succeed, and {quiet} s have passed since the last fault"
                )
            }
        }
    }

    /// The recovery condition of the node's other GPUs while this one, with this UUID, needs the node to be rebooted.
    pub(super) fn node_recovery(&self, config: &HealthConfig, uuid: &str) -> String {
        let own = self.recovery(config);
        if self.awaiting_reset().is_some() { own } else { format!("the node is rebooted, or for {uuid}: {own}") }
    }
}
