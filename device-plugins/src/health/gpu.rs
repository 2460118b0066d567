//! One GPU: its last fault, what the driver asks for, and whether it answers.

use std::time::{Instant, SystemTime};

use super::event::{Now, RecoveryAction, action_of, words};
use super::fault::{Fault, Reason};
use super::silence::Silence;
use crate::config::{HealthConfig, XidAction};

#[derive(Clone, Debug, Default)]
pub(super) struct GpuHealth {
    /// True while the inventory has it.
    present: bool,
    /// `None` until it was read once, and again after the GPU was away.
    recovery: Option<RecoveryAction>,
    fault: Option<GpuFault>,
    pub(super) silence: Silence,
}

/// A fault that takes a GPU out of service.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct GpuFault {
    /// DrainGpu or DrainNode.
    pub(super) action: XidAction,
    /// What was seen last.
    pub(super) what: String,
    /// When it began.
    pub(super) since: SystemTime,
    /// When something was wrong for the last time.
    pub(super) last: Now,
}

impl GpuHealth {
    /// A GPU with a fault of an earlier life of the process.
    pub(super) fn remembered(fault: GpuFault) -> Self {
        Self { fault: Some(fault), ..Self::default() }
    }

    /// Whether the inventory has it.
    pub(super) fn there(&mut self, present: bool) {
        if self.present && !present {
            self.recovery = None;
        }
        self.present = present;
    }

    /// Something that takes it out of service.
    pub(super) fn drain(&mut self, action: XidAction, what: String, now: Now) {
        let (since, before) = self.fault.as_ref().map_or((now.wall, action), |fault| (fault.since, fault.action));
        self.fault = Some(GpuFault { action: action.max(before), what, since, last: now });
    }

    /// The GPU answers with its recovery action.
    pub(super) fn answer(&mut self, recovery: RecoveryAction, now: Now) {
        self.silence.answer();
        let before = self.recovery.replace(recovery).and_then(action_of);
        match (action_of(recovery), &mut self.fault) {
            (Some(action), Some(fault)) => {
                // The Xid says more than the action that followed from it.
                fault.action = fault.action.max(action);
                fault.last = now;
            }
            (Some(action), None) => self.drain(action, format!("the driver asks for {}", words(recovery)), now),
            // The quiet time begins when the driver asks for nothing more.
            (None, Some(fault)) if before.is_some() => fault.last = now,
            (None, _) => {}
        }
    }

    /// The fault, if there is one.
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

    /// When the fault ends if nothing more happens.
    fn quiet_at(&self, config: &HealthConfig, driver_answers: bool) -> Option<Instant> {
        let asks_for_nothing = self.recovery.is_some_and(|recovery| action_of(recovery).is_none());
        let recovers = self.present && driver_answers && self.silence.answers() && asks_for_nothing;
        self.fault.as_ref().filter(|_| recovers).map(|fault| fault.last.instant + config.gpu_quiet)
    }

    /// Its own fault, or its silence.
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

/// The condition of recovery of a GPU.
pub(super) fn recovery(config: &HealthConfig) -> String {
    let quiet = config.gpu_quiet.as_secs_f64();
    format!("NVML's recovery action is NONE, queries succeed, and {quiet} s have passed since the last fault")
}
