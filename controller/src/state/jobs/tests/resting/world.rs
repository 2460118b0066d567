//! A cluster whose objects change event by event, and two controllers that see it.

use std::collections::BTreeMap;

use larder_kube::kinds::{KueueKind, KueueVersion};
use larder_testkit::fake_api::merge;

use super::super::*;
use super::ops::Op;

pub(super) const SNAPSHOT: &str = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";

pub(super) const WORKLOAD: Kind = Kind::Kueue(KueueKind::Workload, KueueVersion::V1beta2);

/// How long ended jobs are kept.
pub(super) const KEEP_SECONDS: i64 = 200;

/// The first and the third job are in a queue with quota, the second in one with flavors. The fourth is a trial of the
/// sweep, if there is one. Kueue admits the fifth, and another cluster has placed the last one here.
pub(super) const JOBS: usize = 6;
pub(super) const NODES: usize = 3;
pub(super) const PODS: usize = 16;
/// The number of PodGroups, and of Workloads, to which events happen.
pub(super) const FEW: usize = 3;

/// The kinds of an optional part of the API.
pub(super) fn kinds(part: Part) -> Vec<Kind> {
    match part {
        Part::Kueue => KueueKind::ALL.map(|kind| Kind::Kueue(kind, KueueVersion::V1beta2)).to_vec(),
        Part::Jobs => Kind::OF_JOBS.to_vec(),
        Part::Gangs => vec![Kind::PodGroup],
        Part::Clusters => vec![Kind::Cluster],
    }
}

pub(super) fn of_team(name: &str) -> Key {
    Key::new("team-a", name)
}

pub(super) fn key_of(object: &Value) -> Key {
    let text = |field: &str| object["metadata"][field].as_str().unwrap_or_default();
    Key::new(text("namespace"), text("name"))
}

pub(super) fn node_name(at: usize) -> String {
    format!("n{at:05}")
}

pub(super) fn of_kind(objects: &BTreeMap<(Kind, Key), Value>, kind: Kind) -> impl Iterator<Item = &Value> {
    objects.iter().filter(move |((of, _), _)| *of == kind).map(|(_, object)| object)
}

/// Objects as the API has them, and two controllers that see them: only in the first, jobs may rest.
pub(super) struct World {
    pub(super) states: [State; 2],
    pub(super) now: Seconds,
    pub(super) version: u64,
    pub(super) generation: u32,
    pub(super) objects: BTreeMap<(Kind, Key), Value>,
    /// The optional parts of the API that the cluster serves.
    pub(super) parts: Vec<Part>,
}

impl World {
    /// A cluster with all optional parts except gangs, without jobs.
    pub(super) fn new() -> Self {
        let states = [state(0, 0), state(0, 0)].map(|mut state| {
            state.settings.keep_ended_jobs = Some(KEEP_SECONDS);
            state
        });
        let (objects, parts) = (BTreeMap::new(), Vec::new());
        let mut world = Self { states, now: NOW, version: 1, generation: 1, objects, parts };
        for part in [Part::Jobs, Part::Kueue, Part::Clusters] {
            world.apply(&Op::Part(part, true));
        }
        world.apply(&Op::Part(Part::Gangs, false));
        (0..NODES).for_each(|at| world.edit_node(at, |_| ()));
        let quota = json!({"nvidia.com/gpu": {"nominal": 6}});
        world.put(
            Kind::JobQueue,
            json!({"apiVersion": "larder.dev/v1alpha1", "kind": "Queue",
                "metadata": {"name": "blue", "uid": "uid-blue", "generation": 1},
                "spec": {"namespaces": ["team-a"], "flavors": [{"name": "h100", "quota": quota}]}}),
        );
        for op in [
            Op::Type(0),
            Op::Settings(1),
            Op::Priority(1),
            Op::Quota(6),
            Op::Dataset(2),
            Op::OfKueue(KueueKind::ResourceFlavor, true),
            Op::OfKueue(KueueKind::PriorityClass, true),
        ] {
            world.apply(&op);
        }
        world
    }

    /// True if the cluster serves a kind.
    pub(super) fn serves(&self, kind: Kind) -> bool {
        kind.part().is_none_or(|part| self.parts.contains(&part))
    }

    pub(super) fn put(&mut self, kind: Kind, mut object: Value) {
        self.version += 1;
        object["metadata"]["resourceVersion"] = self.version.to_string().into();
        if self.serves(kind) {
            for state in &mut self.states {
                state.apply(News::Changed(kind, parse(kind, object.clone())));
            }
        }
        self.objects.insert((kind, key_of(&object)), object);
    }

    pub(super) fn gone(&mut self, kind: Kind, key: &Key) {
        self.version += 1;
        self.objects.remove(&(kind, key.clone()));
        if self.serves(kind) {
            for state in &mut self.states {
                state.apply(News::Gone(kind, key.clone(), self.version));
            }
        }
    }

    /// A job is gone, and with it all that it owns but pods and trials, which the garbage collector leaves for later.
    pub(super) fn job_gone(&mut self, key: &Key) {
        let Some(job) = self.objects.get(&(Kind::TrainingJob, key.clone())) else { return };
        let uid = job["metadata"]["uid"].clone();
        self.gone(Kind::TrainingJob, key);
        for kind in [Kind::PodGroup, WORKLOAD] {
            let is_owned = |object: &&Value| object["metadata"]["ownerReferences"][0]["uid"] == uid;
            let owned: Vec<Key> = of_kind(&self.objects, kind).filter(is_owned).map(key_of).collect();
            owned.iter().for_each(|key| self.gone(kind, key));
        }
    }

    /// The pods of jobs.
    pub(super) fn pods(&self) -> impl Iterator<Item = &Value> {
        of_kind(&self.objects, Kind::Pod).filter(|pod| pod["metadata"]["namespace"] == "team-a")
    }

    pub(super) fn job(&self, name: &str) -> &Value {
        &self.objects[&(Kind::TrainingJob, of_team(name))]
    }

    pub(super) fn edit(&mut self, kind: Kind, key: &Key, edit: impl FnOnce(&mut Value)) {
        let Some(mut object) = self.objects.get(&(kind, key.clone())).cloned() else { return };
        edit(&mut object);
        let metadata = &object["metadata"];
        let has_finalizers = metadata["finalizers"].as_array().is_some_and(|names| !names.is_empty());
        if kind == WORKLOAD && metadata["deletionTimestamp"].is_string() && !has_finalizers {
            self.gone(kind, key);
        } else {
            self.put(kind, object);
        }
    }

    pub(super) fn edit_job(&mut self, at: usize, edit: impl FnOnce(&mut Value)) {
        self.edit(Kind::TrainingJob, &of_team(&format!("j{at}")), edit);
    }

    pub(super) fn edit_pod(&mut self, at: usize, edit: impl FnOnce(&mut Value)) {
        let Some(key) = self.pods().nth(at).map(key_of) else { return };
        self.edit(Kind::Pod, &key, edit);
    }

    pub(super) fn edit_node(&mut self, at: usize, edit: impl FnOnce(&mut Value)) {
        let there = self.objects.get(&(Kind::Node, Key::cluster(&node_name(at)))).cloned();
        let mut object = there.unwrap_or_else(|| {
            let (gpu, mut new) = (if at < 2 { "h100" } else { "a100" }, node(&node_name(at)));
            new["metadata"]["labels"] = json!({"gpu": gpu});
            new
        });
        edit(&mut object);
        self.put(Kind::Node, object);
    }

    /// The PodGroup or Workload with this number.
    pub(super) fn nth(&self, kind: Kind, at: usize) -> Option<Key> {
        of_kind(&self.objects, kind).nth(at).map(key_of)
    }

    /// The part of the API appears with its objects, or disappears.
    pub(super) fn serve(&mut self, part: Part, is_there: bool) {
        self.parts.retain(|other| *other != part);
        self.parts.extend(is_there.then_some(part));
        for state in &mut self.states {
            if !is_there {
                state.apply(News::Absent(part));
                continue;
            }
            for kind in kinds(part) {
                let objects = of_kind(&self.objects, kind).map(|object| parse(kind, object.clone())).collect();
                state.apply(News::All(kind, objects, Vec::new()));
            }
        }
    }

    pub(super) fn submit(&mut self, at: usize, pods: u32, reads: bool) {
        let name = format!("j{at}");
        if self.objects.contains_key(&(Kind::TrainingJob, of_team(&name))) {
            return;
        }
        let mut object = job(&name);
        object["metadata"]["uid"] = format!("uid-{name}-{}", self.generation).into();
        object["spec"]["roles"][0]["replicas"] = pods.into();
        match at {
            0 | 2 => object["spec"]["queue"] = "red".into(),
            1 => object["spec"]["queue"] = "blue".into(),
            3 => {
                let owner = |sweep: &Value| {
                    json!({"apiVersion": "larder.dev/v1alpha1", "kind": "TrainingJob", "name": "sweep",
                        "uid": sweep["metadata"]["uid"], "controller": true})
                };
                let sweep = self.objects.get(&(Kind::TrainingJob, of_team("sweep")));
                object["metadata"]["ownerReferences"] = sweep.map(owner).into_iter().collect();
            }
            4 => {
                object["metadata"]["labels"] =
                    json!({"kueue.x-k8s.io/queue-name": "main", "kueue.x-k8s.io/priority-class": "default"});
                object["spec"]["restart"] = json!({"maxCrashes": 0});
            }
            _ => {
                object["metadata"]["labels"] = json!({"larder.dev/home": "hq_u", "larder.dev/home-job": "uid-home"});
                object["metadata"]["annotations"] =
                    json!({"larder.dev/home-read": self.now.0.to_string(), "larder.dev/fence-after": "120"});
            }
        }
        if reads {
            object["spec"]["datasets"] = json!([{"name": "set", "mountPath": "/set", "minWarm": 50}]);
        }
        self.put(Kind::TrainingJob, object);
    }

    /// A round of both controllers. They must decide the same, and the API accepts their writes.
    pub(super) fn round(&mut self) {
        let now = self.now;
        self.states[1].jobs.job_states.values_mut().for_each(|job_state| job_state.rest = None);
        let [quick, thorough] = self.states.each_mut().map(|state| {
            let again_at = state.round(now, &String::new, &mut Vec::new());
            accept(state);
            (std::mem::take(&mut state.jobs.ready), again_at)
        });
        assert_eq!(quick, thorough);
        let [of_quick, of_thorough] = &self.states;
        let records = |state: &State| -> Vec<_> {
            state.jobs.job_states.iter().map(|(key, it)| (key.clone(), it.record.clone(), it.waiting.clone())).collect()
        };
        assert_eq!(records(of_quick), records(of_thorough));
        assert_eq!(of_quick.jobs.warm_requests, of_thorough.jobs.warm_requests);
        assert_eq!(of_quick.jobs.queue_reports, of_thorough.jobs.queue_reports);
        for write in quick.0.into_values().flatten() {
            self.execute(write);
        }
        for state in &mut self.states {
            for job_state in state.jobs.job_states.values_mut() {
                job_state.begin();
                job_state.end(true, true, None, now);
            }
        }
    }

    fn create(&mut self, kind: Kind, key: Key, mut object: Value) {
        object["metadata"]["uid"] = format!("uid-{}-{}", key.name, self.version).into();
        if !self.objects.contains_key(&(kind, key)) {
            self.put(kind, object);
        }
    }

    pub(super) fn execute(&mut self, write: Write) {
        let (kind, key) = (write.kind, Key::new(&write.namespace, &write.name));
        // Rounds read no other kinds that they write.
        if !matches!(kind, Kind::Pod | Kind::TrainingJob | Kind::PodGroup | WORKLOAD) {
            return;
        }
        match write.change {
            Change::Make(text) => self.create(kind, key, serde_json::from_str(&text).expect("an object")),
            Change::Create(object) => self.create(kind, key, object),
            Change::ApplyStatus(fields) => {
                self.edit(kind, &key, |object| object["status"] = fields["status"].clone());
            }
            Change::Merge(patch) | Change::MergeStatus(patch) => {
                self.edit(kind, &key, |object| merge(object, &patch));
            }
            Change::Delete(_) if kind == Kind::TrainingJob => self.job_gone(&key),
            // The watch reports it later.
            Change::Delete(uid) if kind == Kind::PodGroup => {
                self.states.iter_mut().for_each(|state| state.leaves(kind, &key, &uid, &mut Vec::new()));
            }
            Change::Delete(_) => self.edit(kind, &key, |object| {
                object["metadata"]["deletionTimestamp"] = "2033-05-18T03:33:50Z".into();
            }),
            Change::Apply(_) | Change::ApplyStatusAs(..) | Change::Try(_) => {}
        }
    }
}
