use std::collections::BTreeSet;

use larder_kube::api::DynamicObject;
use proptest::prelude::*;

use super::*;
use crate::jobs::read;

const NOW: Seconds = Seconds(1_000_000);

/// The sweep `tune` with these fields in its `spec.sweep`, and a status.
fn tune(sweep: &Value, suspend: bool, status: &Value) -> JobObject {
    let container = json!({"name": "main", "image": "image"});
    let spec = json!({
        "type": "single", "queue": "vision", "suspend": suspend, "ttlAfterFinished": "1h", "sweep": sweep,
        "roles": [{"name": "worker", "template": {"spec": {"containers": [container]}}}],
    });
    read(&json!({
        "apiVersion": "larder.dev/v1alpha1", "kind": "TrainingJob",
        "metadata": {"namespace": "team-a", "name": "tune", "uid": "u", "generation": 1, "resourceVersion": "7"},
        "spec": spec, "status": status,
    }))
}

fn read(object: &Value) -> JobObject {
    let object: DynamicObject = serde_json::from_value(object.clone()).expect("an object");
    read::training_job(object).expect("readable").expect("a job")
}

/// A list of this many trials.
fn list(trials: usize, fields: Value) -> Value {
    let sets: Vec<Value> = (0..trials).map(|value| json!({"LR": value.to_string()})).collect();
    let mut sweep = fields;
    sweep["list"] = sets.into();
    sweep
}

/// A world of one sweep: an API server that does what it is asked to.
struct World {
    sweep: Value,
    suspend: bool,
    status: Value,
    /// The TrainingJobs of trials, by name.
    jobs: BTreeMap<String, Value>,
    /// The names of all trials that were ever created, with the number of times.
    created: BTreeMap<String, u32>,
    now: Seconds,
    is_gone: bool,
    /// The trial that was refused the last time, and why.
    refused: Option<(Key, String)>,
}

impl World {
    fn new(sweep: Value) -> Self {
        Self {
            sweep,
            suspend: false,
            status: json!({}),
            jobs: BTreeMap::new(),
            created: BTreeMap::new(),
            now: NOW,
            is_gone: false,
            refused: None,
        }
    }

    fn decide(&self) -> Decision {
        let object = tune(&self.sweep, self.suspend, &self.status);
        let trials: Vec<JobObject> = self.jobs.values().map(read).collect();
        let job = object.job.as_ref().expect("valid");
        decide(&View {
            now: self.now,
            object: &object,
            job,
            sweep: job.sweep.as_ref().expect("a sweep"),
            owned: trials.iter().collect(),
            keep_ended_jobs: None,
            refused: self.refused.as_ref().map(|(trial, why)| (trial, why.as_str())),
        })
    }

    fn apply(&mut self, write: &Write) {
        match &write.change {
            Change::ApplyStatus(fields) => self.status = fields["status"].clone(),
            Change::Make(text) => {
                let mut job: Value = serde_json::from_str(text).expect("a trial");
                job["apiVersion"] = "larder.dev/v1alpha1".into();
                job["kind"] = "TrainingJob".into();
                job["metadata"]["namespace"] = write.namespace.clone().into();
                job["metadata"]["name"] = write.name.clone().into();
                job["metadata"]["uid"] = format!("u-{}", write.name).into();
                *self.created.entry(write.name.clone()).or_default() += 1;
                assert!(self.jobs.insert(write.name.clone(), job).is_none(), "{} exists", write.name);
            }
            Change::Merge(fields) => {
                let job = self.jobs.get_mut(&write.name).expect("a trial");
                job["spec"]["suspend"] = fields["spec"]["suspend"].clone();
            }
            Change::Delete(_) if write.name == "tune" => self.is_gone = true,
            Change::Delete(_) => assert!(self.jobs.remove(&write.name).is_some(), "{} is gone", write.name),
            other => panic!("{other:?}"),
        }
    }

    /// Decides and applies the first `done` writes, until nothing is left to do if all are applied.
    fn turn(&mut self, done: usize) {
        for _ in 0..100 {
            let writes = self.decide().writes;
            for write in writes.iter().take(done) {
                self.apply(write);
            }
            if writes.is_empty() || done != usize::MAX {
                return;
            }
        }
        panic!("it never rests: {:?}", self.decide().writes);
    }

    fn end(&mut self, trial: u32, result: Option<&str>, phase: &str) {
        if let Some(job) = self.jobs.get_mut(&format!("tune-{trial}")) {
            job["status"] = json!({"phase": phase, "result": result});
        }
    }

    fn succeed(&mut self, trial: u32, result: &str) {
        self.end(trial, Some(result), "Succeeded");
        self.turn(usize::MAX);
    }

    fn live(&self) -> Vec<String> {
        let has_ended = |job: &Value| ["Succeeded", "Failed"].contains(&job["status"]["phase"].as_str().unwrap_or(""));
        self.jobs.iter().filter(|(_, job)| !has_ended(job)).map(|(name, _)| name.clone()).collect()
    }

    fn phase(&self) -> &str {
        self.status["phase"].as_str().unwrap_or_default()
    }
}

// SEMANTICS: J33
#[test]
fn a_sweep_runs_its_trials_a_few_at_a_time_each_with_its_parameters() {
    let mut world = World::new(list(3, json!({"parallelism": 2})));
    world.turn(usize::MAX);
    assert_eq!(world.live(), ["tune-0", "tune-1"]);
    let trial = &world.jobs["tune-1"];
    let parameters = json!([{"name": "LR", "value": "1"}, {"name": "LARDER_TRIAL", "value": "1"}]);
    let spec = &trial["spec"];
    assert_eq!((&spec["parameters"], &spec["queue"], &spec["type"]), (&parameters, &json!("vision"), &json!("single")));
    assert!(spec.get("sweep").is_none() && spec.get("ttlAfterFinished").is_none(), "{spec}");
    assert_eq!(trial["metadata"]["labels"]["larder.dev/sweep"], "tune");
    assert_eq!(trial["metadata"]["ownerReferences"][0]["uid"], "u");
    world.succeed(1, "0.5");
    assert_eq!(world.live(), ["tune-0", "tune-2"]);
    world.end(0, None, "Failed");
    world.end(2, None, "Succeeded");
    world.turn(usize::MAX);
    assert_eq!(world.phase(), "Succeeded");
    assert_eq!(world.status["sweep"], json!({"trials": 3, "active": 0, "succeeded": 2, "failed": 1}));
    assert_eq!(world.status["shown"]["ready"], "3/3");
    assert!(!world.is_gone);
    world.now += 3_600;
    world.turn(1);
    assert!(world.is_gone, "after its spec.ttlAfterFinished");
}

#[test]
fn a_status_is_written_over_the_one_that_was_read_and_no_other() {
    let writes = World::new(list(2, json!({}))).decide().writes;
    let Change::ApplyStatus(fields) = &writes[0].change else { panic!("{writes:?}") };
    assert_eq!(fields["metadata"], json!({"uid": "u", "resourceVersion": "7"}));
}

// SEMANTICS: J34
#[test]
fn a_sweep_stops_at_its_target_and_ends_the_other_trials() {
    let objective = json!({"goal": "minimize", "target": "0.1"});
    let mut world = World::new(list(10, json!({"parallelism": 3, "objective": objective})));
    world.turn(usize::MAX);
    world.succeed(0, "0.3");
    world.succeed(1, "0.2");
    world.succeed(2, "0.4");
    let best = json!({"name": "tune-1", "result": "0.2", "parameters": {"LR": "1"}});
    assert_eq!(world.status["sweep"]["best"], best);
    world.succeed(4, "0.1");
    assert_eq!((world.phase(), world.live()), ("Succeeded", vec![]));
    assert_eq!(world.status["sweep"]["active"], 0);
    let complete = &world.status["conditions"][1];
    assert_eq!(
        (&complete["status"], &complete["message"]),
        (&json!("True"), &json!("tune-4 has reached the target with 0.1"))
    );
    assert_eq!(world.created.len(), 6);
}

// SEMANTICS: J34
#[test]
fn a_sweep_stops_when_trials_get_no_better_or_fail_too_often() {
    let objective = json!({"goal": "maximize", "patience": 2});
    let mut world = World::new(list(10, json!({"parallelism": 1, "objective": objective})));
    world.turn(usize::MAX);
    for (trial, result) in ["1", "3", "2", "high"].into_iter().enumerate() {
        assert_eq!(world.phase(), "Running", "{trial}");
        world.succeed(trial as u32, result);
    }
    assert_eq!((world.phase(), world.live()), ("Succeeded", vec![]));
    let mut world = World::new(list(10, json!({"parallelism": 1, "maxFailed": 1})));
    world.turn(usize::MAX);
    for trial in 0..2 {
        assert_eq!(world.phase(), "Running", "{trial}");
        world.end(trial, None, "Failed");
        world.turn(usize::MAX);
    }
    assert_eq!((world.phase(), world.live()), ("Failed", vec![]));
    let failed = &world.status["conditions"][1];
    assert_eq!((&failed["type"], &failed["reason"]), (&json!("Failed"), &json!("TrialsFailed")));
    // One trial that has failed is not more than may fail, but all of them.
    let mut world = World::new(list(1, json!({})));
    world.turn(usize::MAX);
    world.end(0, None, "Failed");
    world.turn(usize::MAX);
    assert_eq!(world.phase(), "Failed");
}

// SEMANTICS: J33
#[test]
fn trials_that_are_refused_keep_no_other_waiting() {
    let mut world = World::new(list(6, json!({"parallelism": 1})));
    let taken = ["tune-1", "tune-2", "tune-4"];
    for _ in 0..30 {
        let writes = world.decide().writes;
        let is_taken = |write: &&Write| taken.contains(&write.name.as_str());
        let refused = writes.iter().find(is_taken);
        world.refused = refused.map(|write| (Key::new(&write.namespace, &write.name), "taken".to_owned()));
        writes.iter().filter(|write| !is_taken(write)).for_each(|write| world.apply(write));
        for name in world.live() {
            world.end(name["tune-".len()..].parse().expect("a number"), None, "Succeeded");
        }
    }
    assert_eq!(world.created.keys().collect::<Vec<_>>(), ["tune-0", "tune-3", "tune-5"]);
    let why = world.status["waitingFor"].as_str().unwrap_or_default();
    assert!(why.contains("refuses the trial team-a/tune-"), "{why}");
}

#[test]
fn a_best_number_that_is_none_is_not_better_than_others() {
    let mut world = World::new(list(3, json!({"parallelism": 1, "objective": {"goal": "minimize"}})));
    world.turn(usize::MAX);
    world.succeed(0, "1");
    // Somebody has changed the status.
    let record = world.status["record"].as_str().expect("a record").replace("\"1\"", "\"NaN\"");
    world.status["record"] = record.into();
    world.succeed(1, "5");
    assert_eq!(world.status["sweep"]["best"]["name"], "tune-1");
}

#[test]
fn a_suspended_sweep_suspends_its_trials_and_creates_none() {
    let mut world = World::new(list(4, json!({"parallelism": 2})));
    world.turn(usize::MAX);
    world.suspend = true;
    world.turn(usize::MAX);
    assert_eq!(world.phase(), "Suspended");
    assert!(world.jobs.values().all(|job| job["spec"]["suspend"] == true));
    world.end(0, None, "Succeeded");
    world.turn(usize::MAX);
    assert_eq!(world.live(), ["tune-1"]);
    world.suspend = false;
    world.turn(usize::MAX);
    assert_eq!((world.phase(), world.live()), ("Running", vec!["tune-1".to_owned(), "tune-2".to_owned()]));
    assert!(world.jobs["tune-1"]["spec"]["suspend"] == false);
}

#[test]
fn a_few_ended_trials_are_kept_and_the_best_one() {
    let objective = json!({"goal": "minimize"});
    let mut world = World::new(list(150, json!({"parallelism": 1, "objective": objective})));
    world.turn(usize::MAX);
    for trial in 0..150 {
        world.succeed(trial, if trial == 7 { "0" } else { "1" });
    }
    assert_eq!(world.phase(), "Succeeded");
    let why = "all 150 trials have ended, 0 of them failed; the best is tune-7 with 0";
    assert_eq!(world.status["conditions"][1]["message"], why);
    let kept: BTreeSet<String> = (50..150).chain([7]).map(|trial| format!("tune-{trial}")).collect();
    assert_eq!(world.jobs.keys().cloned().collect::<BTreeSet<_>>(), kept);
}

#[test]
fn jobs_of_other_names_are_no_trials() {
    let mut world = World::new(list(2, json!({"parallelism": 1})));
    world.turn(usize::MAX);
    for name in ["tune-00", "tune-2", "tune-x", "other-1"] {
        let mut job = world.jobs["tune-0"].clone();
        job["metadata"]["name"] = name.into();
        world.jobs.insert(name.to_owned(), job);
    }
    world.succeed(0, "1");
    assert!(world.live().contains(&"tune-1".to_owned()), "{:?}", world.live());
    assert_eq!(world.status["sweep"]["active"], 1);
}

proptest! {
    // SEMANTICS: J33
    #[test]
    fn each_trial_ends_once_whatever_dies_between_two_writes(
        trials in 1..8_usize,
        parallelism in 1..4_usize,
        ops in prop::collection::vec((0..8_u32, 0..3_u8, 0..4_usize), 0..60),
    ) {
        let mut world = World::new(list(trials, json!({"parallelism": parallelism, "maxFailed": 100})));
        let mut ended = BTreeSet::new();
        for (trial, what, done) in ops {
            let name = format!("tune-{trial}");
            match what {
                0 => world.end(trial, Some("1"), "Succeeded"),
                1 => world.end(trial, None, "Failed"),
                // A user deletes a trial that runs. It is created again.
                _ if world.live().contains(&name) => _ = world.jobs.remove(&name),
                _ => {}
            }
            world.turn(done);
            prop_assert!(world.live().len() <= parallelism, "{:?}", world.live());
            for (name, job) in &world.jobs {
                if job["status"]["phase"].is_string() {
                    ended.insert(name.clone());
                }
            }
        }
        for _ in 0..=trials {
            world.turn(usize::MAX);
            for name in world.live() {
                world.end(name["tune-".len()..].parse().expect("a number"), None, "Succeeded");
                ended.insert(name);
            }
        }
        world.turn(usize::MAX);
        prop_assert!(["Succeeded", "Failed"].contains(&world.phase()), "{}", world.status);
        prop_assert_eq!(ended.len(), trials);
        let sweep = &world.status["sweep"];
        let counted = sweep["succeeded"].as_u64().unwrap_or(0) + sweep["failed"].as_u64().unwrap_or(0);
        prop_assert_eq!(counted, trials as u64);
        prop_assert!(world.decide().writes.is_empty(), "{:?}", world.decide().writes);
    }
}
