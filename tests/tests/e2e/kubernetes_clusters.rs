//! Jobs in other clusters: real control planes with a kubelet each, Larder deployed on all as its users deploy it, and
//! links between them that break.

mod lab;
mod multikueue;
mod wire;

use std::time::{Duration, Instant};

use larder_e2e::Watch;
use larder_e2e::platform::{SUMS, TIMEOUT, kill_process, sums};
use larder_testkit::scaled;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use serde_json::{Value, json};

use lab::{Lab, Place, TEAM};
use wire::Link;

/// A job that may run in any cluster, with all of a Dataset at /set.
fn anywhere(dataset: &str) -> Value {
    json!({"clusters": ["any"], "datasets": [{"name": dataset, "mountPath": "/set", "minWarm": 100}]})
}

/// Waits until a job waits for its data in a place whose way to the data hangs, and asserts that it has no pods there.
/// Then it gets its data.
fn is_warmed_first(lab: &Lab, place: &Place, job: &str) {
    lab.wait_for_phase(job, "DataWarming");
    assert_eq!(place.live_pods(job), [""; 0], "it waits for its data");
    place.origin.set(Link::Passes);
}

// SEMANTICS: J18, J20
#[test]
fn a_job_goes_where_its_data_is_or_where_it_fits_and_is_seen_and_ended_from_home() {
    let lab = Lab::start();
    let (home, west) = (&lab.home, lab.west());
    let far = lab.put_dataset("far", &["west"]);
    lab.put_dataset("near", &["here"]);

    // Where its data is.
    let script = format!("echo it runs in $SITE; cd /set && {SUMS}");
    lab.submit("first", 100, &script, &anywhere("far"));
    lab.wait_for_phase("first", "Succeeded");
    assert_eq!(lab.placement("first")["cluster"], "west");
    assert_eq!(home.live_pods("first"), [""; 0]);
    let logs = lab.larder(&["job", "logs", "first", "-n", TEAM]);
    assert!(logs.starts_with("it runs in west\n"), "{logs}");
    assert_eq!(sums(&logs), far);
    let events = lab.larder(&["job", "events", "first", "-n", TEAM]);
    assert!(events.lines().any(|line| line.contains("Pod/first-worker-0-")), "{events}");
    assert!(lab.gets(home, "far").iter().all(|gets| *gets == 0), "no byte of it was brought to the home");
    assert!(lab.gets(west, "far").iter().all(|gets| *gets == 1), "it was read from the cache");
    let listed = lab.larder(&["cluster", "list"]);
    let row = listed.lines().find(|line| line.starts_with("west ")).unwrap_or_default();
    assert_eq!(row.split_whitespace().nth(1), Some("yes"), "{listed}");
    let described = lab.larder(&["cluster", "describe", "west"]);
    assert!(described.contains(&format!("{TEAM}/far")) && described.contains("100 %"), "{described}");

    namespace_that_was_not_given(&lab);

    // Where it fits, once its data is there: at home.
    lab.fill("west");
    home.origin.set(Link::Hangs);
    lab.submit("second", 400, &script, &anywhere("far"));
    is_warmed_first(&lab, home, "second");
    lab.wait_for_phase("second", "Succeeded");
    let placement = lab.placement("second");
    assert_eq!(placement["cluster"], "here");
    assert!(placement["terms"].to_string().contains("its pods do not fit there now"), "{placement:#}");
    assert_eq!(sums(&lab.larder(&["job", "logs", "second", "-n", TEAM])), far);
    lab.larder(&["job", "cancel", "fill-west", "-n", TEAM, "--wait"]);

    // And over there.
    lab.fill("here");
    west.origin.set(Link::Hangs);
    lab.submit("third", 700, &format!("{script}; sleep 3600"), &anywhere("near"));
    is_warmed_first(&lab, west, "third");
    lab.wait_for_phase("third", "Running");
    assert_eq!(lab.placement("third")["cluster"], "west");

    // It is suspended and resumed there.
    let pod = west.live_pods("third");
    lab.larder(&["job", "cancel", "third", "-n", TEAM, "--suspend", "--wait"]);
    assert_eq!(west.live_pods("third"), [""; 0]);
    assert_eq!(lab.home.job("third")["status"]["phase"], "Suspended");
    lab.larder(&["job", "resume", "third", "-n", TEAM]);
    lab.wait_for_phase("third", "Running");
    let resumed = west.live_pods("third");
    assert!(resumed.len() == 1 && resumed != pod, "{pod:?} {resumed:?}");

    credentials_that_end(&lab, &resumed);

    lab.larder(&["job", "cancel", "third", "-n", TEAM, "--wait"]);
    assert_eq!(west.job("third"), Value::Null);
    west.cluster.wait_for("its pods are gone", TIMEOUT, || west.live_pods("third").is_empty());
}

/// A job of a namespace in which the home may run no jobs over there.
fn namespace_that_was_not_given(lab: &Lab) {
    for place in [&lab.home, lab.west()] {
        place.cluster.kubectl_ok(&["create", "namespace", "team-b"]);
    }
    let mut job = lab.job("stranger", 100, "true", &json!({"clusters": ["west"]}));
    job["metadata"]["namespace"] = "team-b".into();
    lab.home.apply(&[job]);
    lab.home.cluster.wait_for("the job says that it is refused", TIMEOUT, || {
        let job = lab.home.get(&["tj", "-n", "team-b", "stranger"]);
        let why = job["status"]["waitingFor"].as_str().unwrap_or_default();
        why.starts_with("cluster west refuses the job: ") && why.contains("home-hq")
    });
    assert_eq!(lab.west().get(&["tj", "-n", "team-b", "stranger"]), Value::Null);
    lab.home.cluster.kubectl_ok(&["delete", "tj", "-n", "team-b", "stranger", "--timeout=120s"]);
}

/// The token of the home ends, and is replaced. `third` is in `west`, where it has these pods, and `fill-here` is at
/// home.
fn credentials_that_end(lab: &Lab, pods: &[String]) {
    lab.west().cluster.kubectl_ok(&["delete", "secret", "-n", "larder-system", "home-hq"]);
    lab.wait_until_reachable("west", "False");
    let is_unknown = |job: &Value| job["status"]["placement"]["unknownSince"].is_string();
    lab.home.cluster.wait_for("the job is unknown", TIMEOUT, || is_unknown(&lab.home.job("third")));
    assert_eq!(lab.home.job("third")["status"]["shown"]["why"], "Unknown");
    let other = lab.home.job("fill-here");
    assert!(other["status"]["phase"] == "Running" && !is_unknown(&other), "{other:#}");
    assert_eq!(lab.west().live_pods("third"), pods, "it runs on");
    let events = || {
        let events = lab.home.cluster.get_json(&["events", "-A"]);
        let is_lost = |event: &&Value| event["reason"] == "NoAnswer" && event["involvedObject"]["name"] == "west";
        events["items"].as_array().unwrap().iter().filter(is_lost).count()
    };
    lab.home.cluster.wait_for("there is an event", TIMEOUT, || events() > 0);
    lab.join("west");
    lab.wait_until_reachable("west", "True");
    lab.home.cluster.wait_for("the job is known", TIMEOUT, || !is_unknown(&lab.home.job("third")));
    lab.wait_for_phase("third", "Running");
    assert_eq!(lab.west().live_pods("third"), pods);
    assert_eq!(events(), 1);
}

/// The jobs that are submitted each time that the link breaks.
const JOBS_OF_A_BREAK: usize = 5;

/// `kill -9` of the controllers of both clusters, leaders and others.
fn kill_controllers(lab: &Lab) {
    for place in [&lab.home, lab.west()] {
        for pid in place.cluster.pids("larder-controller") {
            kill_process(pid);
        }
    }
}

/// A status without the fields that only one of a job and its copy has, or that count their own generations.
fn outcome(job: &Value) -> Value {
    let mut status = job["status"].clone();
    let fields = status.as_object_mut().unwrap();
    for own in ["placement", "record", "observedGeneration"] {
        fields.remove(own);
    }
    for condition in fields.get_mut("conditions").and_then(Value::as_array_mut).into_iter().flatten() {
        condition.as_object_mut().unwrap().remove("observedGeneration");
    }
    status
}

// SEMANTICS: J19
#[test]
fn jobs_are_neither_lost_nor_run_twice_while_the_link_breaks_and_both_controllers_are_killed() {
    let lab = Lab::start();
    let (home, west) = (&lab.home, lab.west());
    let names: Vec<String> = (0..scaled(20).min(100)).map(|at| format!("job-{at}")).collect();
    // The link is cut for up to so many seconds, with the kill somewhere in between.
    let longest = if names.len() > 20 { 600 } else { 30 };
    // A folder is made once, whichever cluster a pod is in.
    let job = |name: &String| {
        let at: usize = name["job-".len()..].parse().unwrap();
        let script = format!(
            "mkdir /shared/{name} || {{ mkdir -p /shared/twice/{name}; exit 1; }}\n\
             sleep {}; echo $SITE >/shared/{name}/site",
            1 + at * 7 % 40
        );
        let clusters = if at % JOBS_OF_A_BREAK == 4 { "any" } else { "west" };
        lab.job(name, 50, &script, &json!({"clusters": [clusters]}))
    };
    let mut random = StdRng::seed_from_u64(37);
    let mut pause = |longest: u64| std::thread::sleep(Duration::from_millis(random.random_range(0..longest * 1000)));
    for (nth, share) in names.chunks(JOBS_OF_A_BREAK).enumerate() {
        let (before, during) = share.split_at(3);
        home.apply(&before.iter().map(job).collect::<Vec<_>>());
        // Some are placed by now, or are being created or deleted, or run.
        pause(5);
        let link = [Link::Resets, Link::Hangs, Link::Slow][nth % 3];
        lab.link().set(link);
        home.apply(&during.iter().map(job).collect::<Vec<_>>());
        if nth == 1 {
            lab.wait_until_reachable("west", "False");
        }
        pause(longest / 2);
        kill_controllers(&lab);
        pause(longest / 2);
        lab.link().set(Link::Passes);
        pause(10);
        eprintln!("break {nth}: {link:?}");
    }

    home.cluster.wait_for("all jobs have ended", TIMEOUT, || {
        let jobs = home.jobs();
        let failed: Vec<&Value> = jobs.values().filter(|job| job["status"]["phase"] == "Failed").collect();
        assert!(failed.is_empty(), "{failed:#?}");
        names.iter().all(|name| jobs[name]["status"]["phase"] == "Succeeded")
    });
    assert!(!lab.shared.path().join("twice").exists(), "a job has run twice");
    let here = home.jobs();
    for name in &names {
        let ran_in = std::fs::read_to_string(lab.shared.path().join(name).join("site")).unwrap();
        assert_eq!(here[name]["status"]["placement"]["cluster"], ran_in.trim(), "{name}");
        assert_eq!(here[name]["status"]["restarts"], Value::Null, "{name}");
    }
    let away: Vec<&String> =
        names.iter().filter(|name| here[*name]["status"]["placement"]["cluster"] == "west").collect();
    assert!(away.len() * 2 > names.len(), "most are in the other cluster: {away:?}");
    west.cluster.wait_for("both clusters say the same of each job, and west has no other", TIMEOUT, || {
        let (here, there) = (home.jobs(), west.jobs());
        there.len() == away.len()
            && away.iter().all(|name| there.get(*name).is_some_and(|copy| outcome(copy) == outcome(&here[*name])))
    });
    home.cluster.kubectl_ok(&["delete", "tj", "-n", TEAM, "--all", "--timeout=240s"]);
    assert_eq!(west.jobs().len(), 0, "a job that is deleted stays until its copy is gone");
}

/// The clusters in which the job has run, one for each second.
fn seconds(lab: &Lab) -> Vec<String> {
    let written = std::fs::read_to_string(lab.shared.path().join("seconds")).unwrap_or_default();
    written.lines().map(str::to_owned).collect()
}

#[test]
#[ignore = "a failover takes two minutes at least, and this takes six: make soak"]
fn a_job_with_failover_has_ended_over_there_before_it_starts_at_home_and_bytes_that_come_late_change_nothing() {
    let lab = Lab::start();
    let (home, west) = (&lab.home, lab.west());
    lab.put_dataset("far", &["west"]);
    let mut spec = anywhere("far");
    spec["failover"] = "2m".into();
    lab.submit("moves", 100, "while :; do echo $SITE >>/shared/seconds; sleep 1; done", &spec);
    home.cluster.wait_for("it runs over there", TIMEOUT, || seconds(&lab).len() > 2);
    assert_eq!(lab.placement("moves")["cluster"], "west");
    // The requests that are under way arrive at the end.
    lab.link().set(Link::Hangs);
    home.cluster.wait_for("it runs at home", TIMEOUT, || seconds(&lab).last().is_some_and(|site| site == "here"));
    assert_eq!(west.live_pods("moves"), [""; 0], "its own cluster has ended its pods");
    assert!(west.job("moves").is_object(), "the link was cut, so no process has deleted its copy");
    let placement = lab.placement("moves");
    assert_eq!((&placement["cluster"], &placement["left"]), (&json!("here"), &json!(["west"])));
    lab.link().set(Link::Passes);
    home.cluster.wait_for("its copy is gone", TIMEOUT, || {
        west.job("moves").is_null() && lab.placement("moves")["left"].as_array().is_none_or(Vec::is_empty)
    });
    assert_eq!(home.job("moves")["status"]["phase"], "Running");
    let ran = seconds(&lab);
    let first = ran.iter().position(|site| site == "here").unwrap();
    assert!(first > 0 && ran[..first].iter().all(|site| site == "west"), "{ran:?}");
    assert!(ran[first..].iter().all(|site| site == "here"), "both have run it: {ran:?}");
    lab.larder(&["job", "cancel", "moves", "-n", TEAM, "--wait"]);
}

/// The time from a job's new phase in its status over there until its status at home has that phase.
#[test]
#[ignore = "measures, and asserts nothing about speed"]
fn how_long_a_status_takes_over_a_healthy_link() {
    const JOBS: usize = 10;
    let lab = Lab::start();
    let watch = |place: &Place| Watch::start(&place.cluster, &["tj", "-n", TEAM], "{.metadata.name} {.status.phase}");
    let (at_home, in_west) = (watch(&lab.home), watch(lab.west()));
    let mut delays = ["Running", "Succeeded"].map(|phase| (phase, Vec::new()));
    for at in 0..JOBS {
        let (name, since) = (format!("job-{at}"), Instant::now());
        lab.submit(&name, 100, "sleep 5", &json!({"clusters": ["west"]}));
        for (phase, delays) in &mut delays {
            let line = format!("{name} {phase}");
            let [there, here] = [&in_west, &at_home].map(|watch| watch.after(since, |found| found == line));
            delays.push(here.saturating_sub(there));
        }
    }
    for (phase, mut delays) in delays {
        delays.sort_unstable();
        let nth = [JOBS / 2, (JOBS * 9).div_ceil(10) - 1, JOBS - 1];
        let [median, p90, longest] = nth.map(|nth| delays[nth].as_millis());
        println!(
            "{phase} in west to {phase} at home: median {median} ms, p90 {p90} ms, longest {longest} ms of {JOBS}"
        );
    }
}
