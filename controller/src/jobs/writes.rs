//! All that is written for a job after a step: its status first, then the objects that its pods share, then its pods.
//!
//! The status has what the state machine has decided before anything is done about it, so that the successor of a controller
//! that was killed in between does the same. Changes that alter no decision wait and are written together.

use std::collections::{BTreeMap, BTreeSet};

use larder_api::job_type::{Indexes, Outcome};
use larder_api::names::JOB_SERVING_LABEL;
use larder_api::training_job::conditions::JobConditionKind;
use larder_api::{InvalidField, Phase, TrainingJobStatus};
use serde_json::{Value, json};

use crate::events::write_event;
use crate::jobs::cluster_view::{ClusterView, Seen};
use crate::jobs::eligibility::Eligibility;
use crate::jobs::job_state::{JobState, Pending, Record};
use crate::jobs::machine::{Action, Cause, Observed, PodId, PodStage, Stage, State};
use crate::jobs::objects::JobObject;
use crate::jobs::pod_group::choice::Planner;
use crate::jobs::pod_group::groups::{changes, of_attempt};
use crate::jobs::pod_group::known::KnownGroup;
use crate::jobs::queue::Verdict;
use crate::jobs::render::{Facts, Place, Rendered, Renderer, claims, secret, service};
use crate::jobs::report;
use crate::time::{Earliest, Seconds};
use crate::write::{Change, Write};
use larder_kube::events::Severity;
use larder_kube::kinds::Kind;

/// How long small changes of a status wait, so that several are written together.
const SMALL_NEWS_SECONDS: i64 = 20;

/// How many small changes are written in a second, of all jobs together.
const SMALL_NEWS_A_SECOND: i64 = 25;

/// A job that starts this soon after its creation never reports that it waits.
const FIRST_NEWS_SECONDS: i64 = 2;

/// The least time between two changes of a job's files.
const FILES_SECONDS: i64 = 5;

/// How many pods of a job are created in one go. The others follow, so that only pods about to be written are in memory.
const PODS_AT_ONCE: usize = 256;

/// The same in bytes, as the API takes them.
const BYTES_AT_ONCE: usize = 4 << 20;

/// What was writer and decided about a job.
pub struct Inputs<'a> {
    /// What the round looks at.
    pub view: &'a ClusterView<'a>,
    pub object: &'a JobObject,
    /// What renders its objects; `None` if its spec or its type cannot be read.
    pub rendered: Option<Rendered<'a>>,
    /// Whether it may start.
    pub eligibility: &'a Eligibility,
    pub pods: &'a [Seen<'a>],
    /// What was observed of it.
    pub observed: &'a Observed,
    /// What is to be done.
    pub actions: &'a [Action],
    /// What the queues have decided.
    pub verdict: Option<&'a Verdict>,
    /// Who finds its nodes.
    pub planner: Planner,
    /// Where its pods may be, by role; `None` as long as none may be made.
    pub places: Option<&'a [Place]>,
    /// What Kueue waits for.
    pub for_kueue: &'a [Write],
    /// How many jobs wait.
    pub waiting: usize,
    /// Makes the key of a launcher.
    pub draw: &'a dyn Fn() -> String,
}

/// The writes for a job, and all that goes with them.
#[derive(Default)]
pub struct Output {
    pub writes: Vec<Write>,
    /// What is remembered once they succeed.
    pub pending: Pending,
    /// When there may be others by time alone.
    pub again: Earliest,
    /// Why an object cannot be made.
    pub unrendered: Option<String>,
}

/// All that is to be written for a job.
pub fn of(inputs: &Inputs<'_>, job_state: &JobState) -> Output {
    let mut writer = Writer { inputs, job_state, output: Output::default(), last: None };
    let groups: Vec<&KnownGroup> = inputs.view.jobs.groups.of(&inputs.object.meta.key).collect();
    writer.status();
    writer.share();
    writer.group(&groups);
    writer.pods(&groups);
    writer.suspend();
    // Nothing of the job waits for Kueue.
    writer.output.writes.extend(inputs.for_kueue.iter().cloned());
    writer.remove();
    // As long as nothing is rendered of it, what could not be still cannot.
    if !job_state.record.state.phase.has_pods() {
        writer.output.unrendered.clone_from(&job_state.unrendered);
    }
    writer.output
}

struct Writer<'a> {
    inputs: &'a Inputs<'a>,
    job_state: &'a JobState,
    output: Output,
    /// The write without which the following make no sense.
    last: Option<(Kind, String)>,
}

impl Writer<'_> {
    fn add(&mut self, kind: Kind, name: &str, change: Change) {
        let mut write = Write::new(kind, &self.inputs.object.meta.key.namespace, name, change);
        write.needs.clone_from(&self.last);
        self.output.writes.push(write);
    }

    /// The same; what follows needs it.
    fn add_first(&mut self, kind: Kind, name: &str, change: Change) {
        self.add(kind, name, change);
        self.last = Some((kind, name.to_owned()));
    }

    fn state(&self) -> &State {
        &self.job_state.record.state
    }

    fn status(&mut self) {
        let (inputs, job_state) = (self.inputs, self.job_state);
        let facts = report::Facts {
            now: inputs.view.now,
            object: inputs.object,
            job_state,
            observed: inputs.observed,
            eligibility: inputs.eligibility,
            verdict: inputs.verdict,
        };
        let mut status = report::status(&facts);
        let gist = job_state.record.gist();
        if job_state.written.as_ref() == Some(&gist) && same(&status, &job_state.status) {
            return;
        }
        let due = self.due(&gist, &status);
        if inputs.view.now < due {
            self.output.again.note(due);
            return;
        }
        status.record = Some(job_state.record.text());
        let key = &inputs.object.meta.key;
        self.events(&status);
        let fields = json!({"metadata": {"uid": inputs.object.meta.uid}, "status": status});
        self.add_first(Kind::TrainingJob, &key.name, Change::ApplyStatus(fields));
        self.output.pending.status = Some((gist, status));
    }

    /// When the status is to be written.
    fn due(&self, gist: &Record, status: &TrainingJobStatus) -> Seconds {
        let now = self.inputs.view.now;
        let job_state = self.job_state;
        let Some(written) = &job_state.written else {
            let is_news = gist.state.phase != Phase::Queued || self.inputs.eligibility.refusal().is_some();
            return if is_news { now } else { Seconds(self.inputs.object.meta.created) + FIRST_NEWS_SECONDS };
        };
        if written != gist || news(status) != news(&job_state.status) {
            return now;
        }
        let share = i64::try_from(self.inputs.waiting).unwrap_or(i64::MAX) / SMALL_NEWS_A_SECOND;
        job_state.written_at + SMALL_NEWS_SECONDS.saturating_add(share)
    }

    /// Events for those who look after the job.
    fn events(&mut self, status: &TrainingJobStatus) {
        let (state, before) = (self.state(), &self.job_state.status);
        let mut events: Vec<(Severity, String, String)> = Vec::new();
        let valid = |status: &TrainingJobStatus| {
            JobConditionKind::Valid.find(&status.conditions).filter(|valid| valid.status == "False").cloned()
        };
        if let Some(refused) =
            valid(status).filter(|refused| valid(before).is_none_or(|old| old.reason != refused.reason))
        {
            events.push((Severity::Warning, refused.reason, refused.message));
        }
        let old = &before.restarts;
        let counts = [old.crashed, old.preempted, old.evicted, old.node_lost, old.device_fault];
        for (cause, old) in Cause::ALL.into_iter().zip(counts) {
            let now = state.restarts.of(cause);
            if now > old {
                let why = if state.why.is_empty() { String::new() } else { format!(": {}", state.why) };
                let message = format!("{} pods were lost for this reason, {now} in total{why}", now - old);
                events.push((Severity::Warning, cause.name().to_owned(), message));
            }
        }
        if state.phase == Phase::Failed && before.phase != Some(Phase::Failed) {
            events.push((Severity::Warning, "JobFailed".to_owned(), state.why.clone()));
        }
        let meta = &self.inputs.object.meta;
        for (severity, reason, message) in events {
            let said = (severity, &*reason, &*message);
            let identity = [&*meta.uid, &*reason, &*message];
            let mut write = write_event(self.inputs.view.now.0, Kind::TrainingJob, meta, &identity, said);
            write.needs.clone_from(&self.last);
            self.output.writes.push(write);
        }
    }

    /// The objects that all pods share, before the first of them and whenever all are made again; and files whenever they change.
    fn share(&mut self) {
        let Some(rendered) = self.inputs.rendered.filter(|_| self.state().phase.has_pods()) else { return };
        let creates = self.inputs.actions.iter().any(|action| matches!(action, Action::Create { .. }));
        let oldest = self.state().slots().map(|(pod, _)| pod.attempt).min();
        let equips = creates && self.job_state.equipped != oldest;
        if equips {
            for claim in claims(&rendered) {
                self.make(Kind::Claim, claim.metadata.name.clone(), &claim);
            }
            if let Some(service) = service(&rendered) {
                self.make(Kind::Service, service.metadata.name.clone(), &service);
            }
            if rendered.kind.launcher.is_some()
                && let Some(secret) = secret(&rendered, (self.inputs.draw)().as_bytes())
            {
                self.make(Kind::Secret, secret.metadata.name.clone(), &secret);
            }
            self.output.pending.equipped = oldest;
        }
        if rendered.kind.files.is_empty() && rendered.kind.launcher.is_none() {
            return;
        }
        let facts = self.facts();
        let now = self.inputs.view.now;
        if let Some((before, at)) = &self.job_state.files {
            if *before == facts && !equips {
                return;
            }
            let due = *at + FILES_SECONDS;
            if !creates && now < due {
                self.output.unrendered.clone_from(&self.job_state.unrendered);
                self.output.again.note(due);
                return;
            }
        }
        let files = Renderer::new(rendered, &facts).config_map();
        if let Some(files) = self.made(files).flatten() {
            let name = files.metadata.name.clone().unwrap_or_default();
            let value = serde_json::to_value(&files).unwrap_or_default();
            self.add_first(Kind::ConfigMap, &name, Change::Apply(value));
            self.output.pending.files = Some((facts, now));
        }
    }

    /// What was rendered. A job of which something cannot be says so with its next status, and gets no more pods.
    fn made<T>(&mut self, rendered: Result<T, InvalidField>) -> Option<T> {
        match rendered {
            Ok(object) => Some(object),
            Err(error) => {
                if self.job_state.unrendered.is_none() {
                    self.output.again.note(self.inputs.view.now + 1);
                }
                self.output.unrendered = Some(error.to_string());
                None
            }
        }
    }

    fn make(&mut self, kind: Kind, name: Option<String>, object: &impl serde::Serialize) {
        let value = serde_json::to_value(object).unwrap_or_default();
        self.add_first(kind, &name.unwrap_or_default(), Change::Make(value));
    }

    /// The facts that pods and files are rendered with.
    fn facts(&self) -> Facts {
        let state = self.state();
        let roles = &self.inputs.observed.terms.roles;
        let desired = roles.iter().zip(state.granted()).map(|(role, granted)| (role.name.clone(), granted));
        let mut ready: BTreeMap<String, BTreeSet<u32>> = BTreeMap::new();
        for pod in self.inputs.observed.pods.iter().filter(|pod| pod.stage == PodStage::Ready) {
            if state.slot(pod.id).is_some()
                && let Some(role) = roles.get(pod.id.role)
            {
                ready.entry(role.name.clone()).or_default().insert(pod.id.index);
            }
        }
        Facts { desired: desired.collect(), ready, agent_image: self.inputs.view.image.to_owned() }
    }

    /// The groups of its pods, before the first of them.
    fn group(&mut self, there: &[&KnownGroup]) {
        let Some(rendered) = self.inputs.rendered else { return };
        if self.inputs.planner != Planner::Native && there.is_empty() {
            return;
        }
        let class = self.job_state.profile.as_ref().and_then(|profile| profile.priority_class.as_deref());
        for write in changes(&rendered, self.state(), &self.inputs.observed.terms, class, there) {
            match write.change {
                Change::Make(_) if self.inputs.planner != Planner::Native => {}
                Change::Make(_) => self.add_first(write.kind, &write.name, write.change),
                change => self.add(write.kind, &write.name, change),
            }
        }
    }

    fn pods(&mut self, groups: &[&KnownGroup]) {
        let seen: BTreeMap<PodId, &Seen<'_>> = self.inputs.pods.iter().map(|seen| (seen.pod.id, seen)).collect();
        self.stop_serving();
        // The status may be refused for good. A job that has given its pods up, as its spec or the queues say, keeps none for that.
        let has_none = matches!(self.state().phase, Phase::Queued | Phase::Suspended);
        let is_recorded = has_none || self.job_state.written.as_ref() == Some(&self.job_state.record.gist());
        for action in self.inputs.actions {
            if let Action::Delete(id) = action
                && let Some(seen) = seen.get(id)
            {
                let meta = &seen.object.meta;
                let delete = Change::Delete(meta.uid.clone());
                if is_recorded {
                    let namespace = &self.inputs.object.meta.key.namespace;
                    self.output.writes.push(Write::new(Kind::Pod, namespace, &meta.key.name, delete));
                } else {
                    self.add(Kind::Pod, &meta.key.name, delete);
                }
            }
        }
        let (Some(rendered), Some(places)) = (self.inputs.rendered, self.inputs.places) else { return };
        let mut creates = self.inputs.actions.iter().filter_map(|action| match action {
            Action::Create { pod, node } => Some((*pod, node.clone())),
            _ => None,
        });
        let Some(first) = creates.next().filter(|_| self.output.unrendered.is_none()) else { return };
        let facts = self.facts();
        let renderer = Renderer::new(rendered, &facts);
        let (mut pods, mut bytes) = (Vec::new(), 0);
        for (id, node) in std::iter::once(first).chain(creates).take(PODS_AT_ONCE) {
            let (Some(role), Some(place)) = (rendered.job.roles.get(id.role), places.get(id.role)) else { continue };
            let terms = &self.inputs.observed.terms;
            let group = of_attempt(rendered.name, id.attempt, self.state(), terms, groups);
            let group = group.filter(|_| self.inputs.planner == Planner::Native);
            let place = Place { node, group, ..place.clone() };
            // Without one of them the others would wait for it in vain.
            let Some(pod) = self.made(renderer.pod(&role.name, id.index, id.attempt, &place)) else { return };
            let name = pod.metadata.name.clone().unwrap_or_default();
            let value = serde_json::to_value(&pod).unwrap_or_default();
            bytes += value.to_string().len();
            pods.push((name, value));
            if bytes > BYTES_AT_ONCE {
                break;
            }
        }
        for (name, pod) in pods {
            self.add(Kind::Pod, &name, Change::Make(pod));
        }
    }

    /// The service leads no longer to pods that others replace.
    fn stop_serving(&mut self) {
        let has_service = self.inputs.rendered.is_some_and(|rendered| rendered.kind.service.is_some());
        if !has_service || !self.state().phase.has_pods() {
            return;
        }
        let is_replaced = |id: PodId| {
            let slots = self.state().roles.get(id.role);
            let slot = slots.and_then(|slots| slots.get(id.index as usize));
            slot.is_some_and(|slot| slot.attempt != id.attempt)
        };
        let replaced: Vec<String> = self
            .inputs
            .pods
            .iter()
            .filter(|seen| seen.of_job.serves && !seen.pod.stage.has_ended() && is_replaced(seen.pod.id))
            .map(|seen| seen.object.meta.key.name.clone())
            .collect();
        for name in replaced {
            let labels: Value = [(JOB_SERVING_LABEL.to_owned(), Value::Null)].into_iter().collect();
            self.add(Kind::Pod, &name, Change::Merge(json!({"metadata": {"labels": labels}})));
        }
    }

    /// Suspends a job of a type that is suspended when it is done, such as a notebook that was idle.
    fn suspend(&mut self) {
        let Some(rendered) = self.inputs.rendered else { return };
        let success = &rendered.kind.success;
        if success.then != Outcome::Suspend || rendered.job.suspend || !self.state().phase.has_pods() {
            return;
        }
        let roles = &rendered.job.roles;
        let decides = success.roles.iter().find_map(|name| roles.iter().position(|role| role.name == *name));
        let slots = decides.and_then(|role| self.state().roles.get(role)).map_or(&[][..], Vec::as_slice);
        let counted = match success.indexes {
            Indexes::First => &slots[..slots.len().min(1)],
            Indexes::All => slots,
        };
        if !counted.is_empty() && counted.iter().all(|slot| slot.stage == Stage::Done) {
            let meta = &self.inputs.object.meta;
            let fields = json!({"metadata": {"uid": meta.uid}, "spec": {"suspend": true}});
            self.add(Kind::TrainingJob, &meta.key.name, Change::Merge(fields));
        }
    }

    fn remove(&mut self) {
        if self.inputs.actions.contains(&Action::Remove) {
            let meta = &self.inputs.object.meta;
            self.add(Kind::TrainingJob, &meta.key.name, Change::Delete(meta.uid.clone()));
        }
    }
}

/// True if two statuses are equal but for their records.
fn same(one: &TrainingJobStatus, other: &TrainingJobStatus) -> bool {
    let cut = |status: &TrainingJobStatus| TrainingJobStatus { record: None, ..status.clone() };
    cut(one) == cut(other)
}

/// The part of a status that its readers must learn of at once.
fn news(status: &TrainingJobStatus) -> impl PartialEq {
    let at_once = [JobConditionKind::Valid, JobConditionKind::QuotaReserved, JobConditionKind::DataWarm];
    let conditions: Vec<(String, String)> = at_once
        .into_iter()
        .filter_map(|kind| kind.find(&status.conditions))
        .map(|condition| (condition.status.clone(), condition.reason.clone()))
        .collect();
    (status.phase, status.observed_generation, status.restarts, conditions)
}
