//! The answer to a lost pod: that of the first of the job's rules for its role and exit code, or else that of the job's
//! scope.

use larder_api::training_job::RestartAction;

use super::loss::Cause;
use super::observed::{Scope, Terms};
use super::pod::{Pod, PodId};

/// The answer to a lost pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Answer {
    /// The rule at this position fails the job.
    Fail(usize),
    /// These pods are replaced.
    Replace {
        what: Replaced,
        /// The crash does not count against the job's limit.
        is_ignored: bool,
    },
}

/// The pods that are replaced after a loss.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Replaced {
    /// The lost pod.
    Pod,
    /// All pods of its role.
    Role,
    /// All pods of the job.
    Job,
}

/// The answer to the loss of a pod. `exit_code` is that of a pod that has crashed, if it is known.
pub(super) fn answer(terms: &Terms, lost: PodId, cause: Cause, exit_code: Option<u8>, has_ended: bool) -> Answer {
    let is_alone = terms.scope == Scope::Worker && (terms.two_pods(lost.role) || has_ended);
    let by_scope = if is_alone { Replaced::Pod } else { Replaced::Job };
    let matches = |at: &usize| cause == Cause::Crashed && terms.rules[*at].matches(lost.role, exit_code);
    let Some(rule) = (0..terms.rules.len()).find(matches) else {
        return Answer::Replace { what: by_scope, is_ignored: false };
    };
    let action = terms.rules[rule].action;
    let what = match action {
        RestartAction::Fail => return Answer::Fail(rule),
        RestartAction::RestartPod => Replaced::Pod,
        RestartAction::RestartRole => Replaced::Role,
        RestartAction::RestartJob => Replaced::Job,
        RestartAction::Ignore => by_scope,
    };
    Answer::Replace { what, is_ignored: action == RestartAction::Ignore }
}

/// The answer to a crash after which the kubelet has restarted the pod's containers. `None`: it stays at that, because
/// only this pod would be replaced, and it has restarts left.
pub(super) fn answer_in_place(terms: &Terms, pod: &Pod) -> Option<Answer> {
    if terms.in_place == 0 || pod.restarts == 0 {
        return None;
    }
    let answer = answer(terms, pod.id, Cause::Crashed, pod.exit_code, true);
    let is_alone = matches!(answer, Answer::Replace { what: Replaced::Pod, .. });
    (!is_alone || pod.restarts > terms.in_place).then_some(answer)
}
