//! The health of one GPU: its fault, the driver's recovery action, and whether the GPU answers.

use std::time::{Instant, SystemTime};

use super::event::{Now, RecoveryAction, action_of, words};
use super::fault::{Fault, Reason};
use super::silence::Silence;
use crate::config::{HealthConfig, XidAction};

#[derive(Clone, Debug, Default)]
pub(super) struct GpuHealth {
    /// True while the inventory has the GPU.
    present: bool,
    /// `None` until it was first read, and after the GPU was removed.
    recovery: Option<RecoveryAction>,
    fault: Option<GpuFault>,
    pub(super) silence: Silence,
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
}

impl GpuHealth {
    /// A GPU with a fault that an earlier process stored.
    pub(super) fn remembered(fault: GpuFault) -> Self {
        Self { fault: Some(fault), ..Self::default() }
    }

    /// Sets whether the inventory has the GPU.
    pub(super) fn there(&mut self, present: bool) {
        if self.present && !present {
            self.recovery = None;
        }
        self.present = present;
    }

    /// Takes the GPU out of service, or extends its fault.
    pub(super) fn drain(&mut self, action: XidAction, what: String, now: Now) {
        let (since, before) = self.fault.as_ref().map_or((now.wall, action), |fault| (fault.since, fault.action));
        self.fault = Some(GpuFault { action: action.max(before), what, since, last: now });
    }

    /// The GPU answered with its recovery action.
    pub(super) fn answer(&mut self, recovery: RecoveryAction, now: Now) {
        self.silence.answer();
        let before = self.recovery.replace(recovery).and_then(action_of);
        match (action_of(recovery), &mut self.fault) {
            (Some(action), Some(fault)) => {
                // The fault keeps its text: an Xid is more specific than the recovery action that followed from it.
                fault.action = fault.action.max(action);
                fault.last = now;
            }
            (Some(action), None) => self.drain(action, format!("the driver asks for {}", words(recovery)), now),
            // The quiet time begins when the driver no longer asks for an action.
            (None, Some(fault)) if before.is_some() => fault.last = now,
            (None, _) => {}
        }
    }

    /// The current fault.
    pub(super) fn standing(&self) -> Option<&GpuFault> {
        self.fault.as_ref()
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
        let asks_for_nothing = self.recovery.is_some_and(|recovery| action_of(recovery).is_none());
        let recovers = self.present && driver_answers && self.silence.answers() && asks_for_nothing;
        self.fault.as_ref().filter(|_| recovers).map(|fault| fault.last.instant + config.gpu_quiet)
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
            recovery: recovery(config),
        });
        own.or_else(|| self.silence.fault("the GPU does not answer"))
    }
}

/// The recovery condition of a GPU.
pub(super) fn recovery(config: &HealthConfig) -> String {
    let quiet = config.gpu_quiet.as_secs_f64();
    format!("NVML's recovery action is NONE, queries succeed, and {quiet} s have passed since the last fault")
}
