//! Events: the difference between the state and the observed facts.

use larder_api::Phase;
use std::collections::{BTreeMap, BTreeSet};

use super::answer::{Answer, Replaced, answer, answer_in_place};
use super::apply::Event;
use super::loss::{Cause, cause, is_live, is_lost};
use super::observed::{Decides, Decisions, Observed, Terms};
use super::pod::{Pod, PodId};
use super::state::{REFUSALS_MAX, Stage, State};
use crate::jobs::planned::{Plan, RefusedBy};
use crate::jobs::queue::{Running, Verdict};
use crate::objects::PodStage;
use crate::time::Seconds;

/// How long room must stay free before a job grows into it: a minute, doubled after each growth that failed, up to
/// about an hour.
pub(super) fn room_seconds(state: &State) -> i64 {
    60 << state.failed_growths.min(6)
}

/// How long a node is avoided after it refused a pod. The reason may no longer hold by then.
pub(super) const REFUSED_SECONDS: i64 = 60 * 60;

/// After this many pods in quick succession that kubelets rejected, a gang gives its room back.
const REJECTIONS: u32 = 4;

/// The deadline for binding pods; `None` if none are unbound, or there is no timeout. Each pod that is created or bound
/// moves it: a scheduler binds the pods of a large gang one after the other.
pub(super) fn bound_until(state: &State, observed: &Observed) -> Option<Seconds> {
    let (since, timeout) = (state.binding_since?, timeout(state, &observed.terms)?);
    let progress = observed.pods.iter().filter(|pod| state.slot(pod.id).is_some()).map(|pod| pod.since);
    Some(progress.max().unwrap_or(since).max(since) + timeout)
}

/// True if the job has waited for its data for long enough, or has enough of it.
pub fn is_warm(state: &State, observed: &Observed, now: Seconds) -> bool {
    observed.data.iter().all(|data| data.percent >= data.enough || now >= state.since + data.timeout)
}

/// How long pods may take to be bound; `None`: no limit.
fn timeout(state: &State, terms: &Terms) -> Option<i64> {
    // The autoscaler may be gone since the job's pods were created.
    terms.nodes_timeout.filter(|_| state.awaits_nodes).or(terms.gang_timeout)
}

/// The observed facts, and the decisions that earlier events of this step have not used up.
pub(super) struct News<'a> {
    observed: &'a Observed,
    pods: BTreeMap<PodId, &'a Pod>,
    verdict: Option<&'a Verdict>,
    /// The decisions say that the job has its room.
    has_room: bool,
    plan: Option<&'a Plan>,
    now: Seconds,
}

/// The pods, by role and index, that need a node now. The caller answers with a [`Plan`] for all of them, or none if
/// the job cannot run without them.
///
/// Returns nothing while a live pod must end first: the previous pod of an index if the type does not allow two, or all
/// previous pods if the whole gang is restarted. Also returns nothing before [`State::not_before`].
pub fn unplaced(state: &State, observed: &Observed, now: Seconds) -> Vec<Vec<u32>> {
    let nothing = || vec![Vec::new(); state.roles.len()];
    if !state.phase.is_making() || state.not_before.is_some_and(|until| until > now) {
        return nothing();
    }
    let mut asked = nothing();
    let mut is_whole_gang = true;
    for (pod, slot) in state.slots() {
        match slot.stage {
            Stage::Unplaced => asked[pod.role].push(pod.index),
            Stage::Placed | Stage::Seen | Stage::Done => is_whole_gang = false,
        }
    }
    let blocks = |pod: &Pod| {
        let is_asked = asked.get(pod.id.role).is_some_and(|asked| asked.binary_search(&pod.id.index).is_ok());
        is_asked && is_live(pod, now) && (!observed.terms.two_pods(pod.id.role) || is_whole_gang)
    };
    if observed.pods.iter().any(blocks) { nothing() } else { asked }
}

/// A lost pod.
struct Loss {
    pod: PodId,
    cause: Cause,
    /// Its program does not run any more.
    has_ended: bool,
    answer: Answer,
}

impl Loss {
    /// The rule that fails the job for it.
    fn failed_by(&self) -> Option<usize> {
        match self.answer {
            Answer::Fail(rule) => Some(rule),
            Answer::Replace { .. } => None,
        }
    }
}

impl<'a> News<'a> {
    pub(super) fn new(observed: &'a Observed, decisions: &'a Decisions, now: Seconds) -> Self {
        let pods = observed.pods.iter().map(|pod| (pod.id, pod)).collect();
        let (verdict, plan) = (decisions.verdict.as_ref(), decisions.plan.as_ref());
        let has_room = matches!(verdict, Some(Verdict::Start { .. } | Verdict::Run(_)));
        Self { observed, pods, verdict, has_room, plan, now }
    }

    /// Updates timestamps that no event covers.
    pub(super) fn note(&self, state: &mut State) {
        let all_bound = state.slots().all(|(pod, slot)| slot.stage == Stage::Done || self.is_bound(pod));
        if state.phase.has_pods() && all_bound {
            (state.binding_since, state.planned_again) = (None, false);
        }
        if !state.phase.is_terminal() {
            state.refused_by.retain(|refused| self.now - refused.at < REFUSED_SECONDS);
        }
        if state.phase != Phase::Running {
            state.room_since = None;
        } else if let Some(Verdict::Run(running)) = self.verdict {
            let has_room = state.granted().iter().zip(&running.may_grow_to).any(|(now, most)| most > now);
            state.room_since = if has_room { Some(state.room_since.unwrap_or(self.now)) } else { None };
        }
    }

    /// Remembers the nodes of pods that an event gives up because the scheduler did not bind them there.
    pub(super) fn remember_refusals(&self, event: &Event, state: &mut State) {
        let given_up: Option<BTreeSet<PodId>> = match event {
            Event::Unbound { pods } | Event::NoRoom { pods, .. } => Some(pods.iter().copied().collect()),
            Event::Released { .. } => None,
            _ => return,
        };
        if state.has_leeway(&self.observed.terms) {
            return;
        }
        let is_refused = |pod: PodId| {
            let is_given_up = given_up.as_ref().is_none_or(|given_up| given_up.contains(&pod));
            is_given_up && self.pods.get(&pod).is_some_and(|pod| pod.is_refused && pod.stage == PodStage::Pending)
        };
        let refused = state.slots().filter(|(pod, _)| is_refused(*pod));
        let refused: BTreeSet<(usize, String)> =
            refused.filter_map(|(pod, slot)| Some((pod.role, slot.node.clone()?))).collect();
        state.refused_by.retain(|before| !refused.contains(&(before.role, before.node.clone())));
        let now = |(role, node): (usize, String)| RefusedBy { role, node, at: self.now };
        state.refused_by.extend(refused.into_iter().map(now));
        let excess = state.refused_by.len().saturating_sub(REFUSALS_MAX);
        state.refused_by.drain(..excess);
    }

    /// The earliest of the events that the state does not contain yet.
    pub(super) fn events(&mut self, state: &State) -> Vec<Event> {
        let one = |event: Option<Event>| event.into_iter().collect::<Vec<_>>();
        if state.phase.is_terminal() {
            return Vec::new();
        }
        let wanted = one(self.wanted(state));
        if !wanted.is_empty() {
            return wanted;
        }
        if state.phase.has_pods() {
            let seen = self.seen(state);
            if !seen.is_empty() {
                return seen;
            }
            let ended = one(self.finished(state).or_else(|| self.deadline(state)));
            let ended = if ended.is_empty() { self.lost(state) } else { ended };
            if !ended.is_empty() {
                return ended;
            }
        }
        let ruled = self.verdict.take().and_then(|verdict| self.ruled(state, verdict));
        one(ruled
            .or_else(|| self.doomed(state))
            .or_else(|| self.warm(state))
            .or_else(|| self.planned(state))
            .or_else(|| self.unmade(state))
            .or_else(|| self.unbound(state))
            .or_else(|| self.up(state)))
    }

    fn wanted(&self, state: &State) -> Option<Event> {
        match (self.observed.terms.suspend, state.phase == Phase::Suspended) {
            (true, false) => Some(Event::Suspend),
            (false, true) => Some(Event::Resume),
            _ => None,
        }
    }

    /// Pods that were observed for the first time, and pods that have succeeded.
    fn seen(&self, state: &State) -> Vec<Event> {
        let seen = state.slots().filter_map(|(id, slot)| {
            let pod = self.pods.get(&id)?;
            match (slot.stage, pod.stage) {
                (Stage::Placed | Stage::Seen, PodStage::Succeeded) => {
                    let roles = &self.observed.terms.roles;
                    let decides = roles.get(id.role).is_some_and(|role| role.decides != Decides::Nothing);
                    Some(Event::Done { pod: id, result: pod.result.clone().filter(|_| decides && id.index == 0) })
                }
                (Stage::Placed, _) => Some(Event::Seen(id)),
                _ => None,
            }
        });
        seen.collect()
    }

    fn finished(&self, state: &State) -> Option<Event> {
        let is_done = |role: usize, decides: Decides| {
            let slots = state.roles.get(role).map_or(&[][..], Vec::as_slice);
            match decides {
                Decides::Nothing => true,
                Decides::First => slots.first().is_some_and(|slot| slot.stage == Stage::Done),
                Decides::All => slots.iter().all(|slot| slot.stage == Stage::Done),
            }
        };
        let roles = &self.observed.terms.roles;
        let decide = roles.iter().enumerate().filter(|(_, role)| role.decides != Decides::Nothing);
        let has_slots = |role: usize| state.roles.get(role).is_some_and(|slots| !slots.is_empty());
        let some_decide = decide.clone().any(|(at, _)| has_slots(at));
        (some_decide && decide.clone().all(|(at, role)| is_done(at, role.decides))).then_some(Event::Finished)
    }

    fn deadline(&self, state: &State) -> Option<Event> {
        let ends = state.started? + self.observed.terms.active_deadline?;
        (self.now >= ends).then_some(Event::Deadline)
    }

    /// The lost pods. A pod that was observed earlier and no longer exists was deleted by another client. The list ends
    /// with the first loss that restarts other pods or fails the job, because further losses may belong to it. A crash
    /// for which a rule fails the job comes before all others, which may follow from it.
    fn lost(&self, state: &State) -> Vec<Event> {
        let terms = &self.observed.terms;
        let losses: Vec<Loss> = state.slots().filter_map(|(pod, slot)| self.loss(pod, slot.stage)).collect();
        if let Some((rule, pod)) = losses.iter().find_map(|loss| Some((loss.failed_by()?, loss.pod))) {
            return vec![Event::Spent { pod, rule: Some(self.failed_by_rule(rule, pod)) }];
        }
        let mut crashes_left = terms.max_crashes.saturating_sub(state.crashes(terms, self.now));
        let mut events = Vec::new();
        for Loss { pod, cause, has_ended, answer } in losses {
            let Answer::Replace { what, is_ignored } = answer else { continue };
            let counts = cause == Cause::Crashed && !is_ignored;
            if counts && crashes_left == 0 {
                events.push(Event::Spent { pod, rule: None });
                break;
            }
            crashes_left -= u32::from(counts);
            let lost = Event::Lost { pod, cause, has_ended, what, is_ignored };
            let released = self.rejected(state, &lost);
            let is_last = released.is_some() || what != Replaced::Pod;
            events.extend([Some(lost), released].into_iter().flatten());
            if is_last {
                break;
            }
        }
        events
    }

    /// The loss of the pod of a slot, if it was lost.
    fn loss(&self, pod: PodId, stage: Stage) -> Option<Loss> {
        let terms = &self.observed.terms;
        let (cause, has_ended, exit_code) = match (stage, self.pods.get(&pod)) {
            (Stage::Placed | Stage::Seen, Some(there)) => match cause(there, self.now) {
                Some(cause) => (cause, there.stage.has_ended(), there.exit_code),
                None => {
                    let answer = answer_in_place(terms, there)?;
                    return Some(Loss { pod, cause: Cause::Crashed, has_ended: true, answer });
                }
            },
            (Stage::Seen, None) => (Cause::Evicted, true, None),
            _ => return None,
        };
        Some(Loss { pod, cause, has_ended, answer: answer(terms, pod, cause, exit_code, has_ended) })
    }

    /// Why a job fails because of a rule.
    fn failed_by_rule(&self, rule: usize, pod: PodId) -> String {
        let role = self.observed.terms.roles.get(pod.role).map_or("", |role| &role.name);
        let code = self.pods.get(&pod).and_then(|pod| pod.exit_code);
        let code = code.map_or_else(|| "an unknown exit code".to_owned(), |code| format!("exit code {code}"));
        format!("its pod {role} {} ended with {code}, for which spec.restart.rules[{rule}] fails the job", pod.index)
    }

    /// Gives the gang's room back after repeated rejections by kubelets, so that its other pods do not wait forever.
    fn rejected(&self, state: &State, lost: &Event) -> Option<Event> {
        let Event::Lost { pod: id, cause: Cause::Evicted, .. } = lost else { return None };
        let pod = self.pods.get(id).filter(|pod| pod.stage == PodStage::Failed && pod.never_ran)?;
        if !state.phase.is_making() || state.failed_soon + 1 < REJECTIONS {
            return None;
        }
        let role = self.observed.terms.roles.get(id.role).map_or("", |role| &role.name);
        let reason = if pod.reason.is_empty() { "no reason" } else { &pod.reason };
        let why =
            format!("the kubelets of its nodes keep rejecting its pods, most recently {role} {} ({reason})", id.index);
        // If the job can run without the pod, the others continue, and the pod is recreated after a delay.
        let released = self.without(state, vec![*id], &why);
        matches!(released, Event::Released { .. }).then_some(released)
    }

    fn ruled(&self, state: &State, verdict: &Verdict) -> Option<Event> {
        match verdict {
            Verdict::Start { granted, nodes, .. } if state.phase == Phase::Queued => {
                Some(Event::Granted { granted: granted.clone(), nodes: nodes.clone() })
            }
            Verdict::Stop { why } if state.holds_room() => Some(Event::Revoked { why: why.clone() }),
            Verdict::Run(running) if state.holds_room() => self.resized(state, running),
            _ => None,
        }
    }

    fn resized(&self, state: &State, running: &Running) -> Option<Event> {
        let before = state.granted();
        let of = |to: &[u32], pick: fn(u32, u32) -> u32| -> Vec<u32> {
            before
                .iter()
                .enumerate()
                .map(|(role, before)| pick(*before, to.get(role).map_or(*before, |to| *to)))
                .collect()
        };
        let fewer = of(&running.granted, u32::min);
        if fewer != before {
            return Some(Event::Shrunk { granted: fewer });
        }
        let more = of(&running.may_grow_to, u32::max);
        let stayed_free = state.room_since.is_some_and(|since| self.now - since >= room_seconds(state));
        (state.phase == Phase::Running && stayed_free && more != before).then_some(Event::Grown { granted: more })
    }

    fn warm(&self, state: &State) -> Option<Event> {
        let may_start = self.has_room || !self.observed.terms.unreserved;
        let is_warm = || is_warm(state, self.observed, self.now);
        (state.phase == Phase::DataWarming && may_start && is_warm()).then_some(Event::Warm)
    }

    /// A node of the plan was lost while the job waits for its data there: it gets another plan.
    fn doomed(&self, state: &State) -> Option<Event> {
        let is_planned = |node: &str| state.slots().any(|(_, slot)| slot.node.as_deref() == Some(node));
        let mut planned = self.observed.planned.iter().filter(|_| state.phase == Phase::DataWarming);
        let (node, _) = planned.find(|(node, health)| is_lost(*health, self.now) && is_planned(node))?;
        Some(Event::Revoked { why: format!("the node {node}, on which its data was being fetched, is lost") })
    }

    /// The answer to [`unplaced`]. A negative answer is ignored while superseded pods of the job are terminating,
    /// because they may occupy the room.
    fn planned(&mut self, state: &State) -> Option<Event> {
        let plan = self.plan.take()?;
        if unplaced(state, self.observed, self.now).iter().all(Vec::is_empty) {
            return None;
        }
        match plan {
            Plan::Nodes(pods) => Some(Event::Planned(pods.clone())),
            Plan::None(_) if self.has_strays(state) => None,
            Plan::None(why) => Some(self.without(state, Vec::new(), why)),
        }
    }

    /// Pods that the API server does not create for lack of quota. A job that cannot run without them gives its room
    /// back. Ignored while superseded pods of the job are terminating, because they may use the quota.
    fn unmade(&self, state: &State) -> Option<Event> {
        let why = self.observed.shortage.as_ref().filter(|_| state.phase.is_making())?;
        let unmade = state.slots().filter(|(pod, slot)| slot.stage == Stage::Placed && !self.pods.contains_key(pod));
        let pods: Vec<PodId> = unmade.map(|(pod, _)| pod).collect();
        if pods.is_empty() || self.has_strays(state) {
            return None;
        }
        Some(self.without(state, pods, why)).filter(|event| matches!(event, Event::Released { .. }))
    }

    /// True while superseded pods of the job are live.
    fn has_strays(&self, state: &State) -> bool {
        self.observed.pods.iter().any(|pod| state.slot(pod.id).is_none() && is_live(pod, self.now))
    }

    /// Pods that were not bound in time. They are planned a second time, unless the scheduler chose their nodes. After
    /// that the job continues without them, or gives its room back if it cannot.
    fn unbound(&self, state: &State) -> Option<Event> {
        let terms = &self.observed.terms;
        if !state.phase.is_making() || self.now < bound_until(state, self.observed)? {
            return None;
        }
        let is_planned = !terms.by_scheduler && !state.awaits_nodes;
        // A pod whose role starts after another one is late only once it exists.
        let starts_later = |role: usize| terms.roles.get(role).is_some_and(|role| !role.starts_after.is_empty());
        let is_late = |pod: PodId, stage: Stage| match stage {
            Stage::Placed => !starts_later(pod.role) || self.pods.contains_key(&pod),
            Stage::Seen => true,
            Stage::Unplaced | Stage::Done => false,
        };
        let late = state.slots().filter(|(pod, slot)| is_late(*pod, slot.stage) && !self.is_bound(*pod));
        let pods: Vec<PodId> = late.map(|(pod, _)| pod).collect();
        match pods.len() {
            0 => None,
            _ if !state.planned_again && is_planned => Some(Event::Unbound { pods }),
            late => {
                let s = if late == 1 { " was" } else { "s were" };
                let planned = if is_planned { " planned twice and" } else { "" };
                let said = self.observed.scheduler_message.as_ref().map(|said| format!(": {said}")).unwrap_or_default();
                Some(self.without(state, pods, &format!("{late} pod{s}{planned} not bound in time{said}")))
            }
        }
    }

    /// Handles pods without a node: the job continues if enough pods of each role are bound; otherwise it gives all its
    /// room back.
    fn without(&self, state: &State, pods: Vec<PodId>, why: &str) -> Event {
        let late: BTreeSet<PodId> = pods.iter().copied().collect();
        let goes_on = state.roles.iter().zip(&self.observed.terms.roles).enumerate().all(|(role, (slots, terms))| {
            let is_up = |(id, stage): (PodId, Stage)| stage == Stage::Done || self.is_bound(id) && !late.contains(&id);
            let ids = (0..).zip(slots).map(|(index, slot)| (PodId { role, index, attempt: slot.attempt }, slot.stage));
            ids.filter(|slot| is_up(*slot)).count() >= terms.floor().min(slots.len())
        });
        if goes_on && state.phase != Phase::Starting {
            Event::NoRoom { pods, why: why.to_owned() }
        } else {
            Event::Released { why: why.to_owned(), are_unbound: !pods.is_empty() }
        }
    }

    fn up(&self, state: &State) -> Option<Event> {
        let is_up = |(id, stage): (PodId, Stage)| {
            let is_ready = || self.pods.get(&id).is_some_and(|pod| pod.stage == PodStage::Ready);
            stage == Stage::Done || stage == Stage::Seen && is_ready()
        };
        let is_surplus = |pod: &Pod| {
            let slots = state.roles.get(pod.id.role).map_or(0, Vec::len);
            pod.id.index as usize >= slots && is_live(pod, self.now)
        };
        let all_up = state.slots().all(|(id, slot)| is_up((id, slot.stage)));
        (state.phase.is_making() && all_up && !self.observed.pods.iter().any(is_surplus)).then_some(Event::Up)
    }

    fn is_bound(&self, pod: PodId) -> bool {
        self.pods.get(&pod).is_some_and(|pod| !matches!(pod.stage, PodStage::Pending | PodStage::Failed))
    }
}
