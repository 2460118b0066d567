//! A controller that is killed at any of its writes for jobs.

use std::time::Duration;

use super::super::api::{Api, Dies, serve_jobs};
use super::super::kubelet::set_fates;
use super::super::{World, assert_same, end_state};
use super::{job, phase, pods};

/// A job of one pod, a job whose first pod crashes, a gang with a Service, and a job that waits for the gang's room.
fn begin(api: &Api) {
    set_fates(api, &[("crash-worker-0-1", "failed"), ("gang-worker", "running")]);
    api.put("trainingjobs", job("one", "single", &[("worker", 1)]));
    api.put("trainingjobs", job("crash", "single", &[("worker", 1)]));
    api.put("trainingjobs", job("gang", "mpi", &[("launcher", 1), ("worker", 2)]));
    let mut waits = job("waits", "pytorch", &[("worker", 4)]);
    waits["spec"]["ttlAfterFinished"] = "1h".into();
    api.put("trainingjobs", waits);
}

// SEMANTICS: J2
#[tokio::test(start_paused = true)]
async fn a_controller_killed_at_any_write_for_jobs_ends_in_the_same_state_and_runs_no_pod_twice() {
    let state = |api: &Api| {
        let mut all = end_state(api);
        // The key is random, and its name contains the job's uid.
        all.retain(|(plural, ..), _| plural != "secrets");
        all
    };
    let mut world = World::with_jobs(1);
    begin(&world.api);
    world.start();
    world.rest().await;
    let all_done = |api: &Api| ["one", "crash", "gang"].iter().all(|name| phase(api, name) == "Succeeded");
    assert!(all_done(&world.api), "{:#?}", world.api.list("trainingjobs"));
    let (expected, writes, names) = (state(&world.api), world.api.writes().len(), pods(&world.api));
    assert!(writes > 15 && names.len() > 3, "{writes}: {names:?}");
    drop(world);
    let mut kills = 0;
    for write in 0..writes {
        for dies in [Dies::BeforeTheWrite, Dies::AfterTheWrite] {
            let mut world = World::with_jobs(1);
            begin(&world.api);
            world.api.die_at(write, dies);
            world.start();
            kills += usize::from(world.until_killed().await);
            world.kill();
            world.api.revive();
            world.start();
            world.rest().await;
            let when = format!("killed at {write}, {dies:?}");
            assert_eq!(pods(&world.api), names, "{when}: {:#?}", world.api.writes());
            assert_same(&state(&world.api), &expected, &when);
            assert_eq!(world.api.list("secrets").len(), 1, "{when}");
        }
    }
    assert!(kills > writes, "{kills} of {}", 2 * writes);
}

#[tokio::test(start_paused = true)]
async fn a_refusal_to_read_that_passes_makes_the_controller_forget_nothing() {
    let mut world = World::with_jobs(2);
    set_fates(&world.api, &[("train", "running")]);
    world.start();
    world.api.put("trainingjobs", job("train", "single", &[("worker", 1)]));
    world.until("it runs", |api| phase(api, "train") == "Running").await;
    tokio::time::sleep(Duration::from_secs(120)).await;
    serve_jobs(&world.api, false);
    world.api.break_watches(&["jobtypes"]);
    tokio::time::sleep(Duration::from_secs(1)).await;
    world.api.break_watches(&[]);
    tokio::time::sleep(Duration::from_secs(15)).await;
    serve_jobs(&world.api, true);
    world.api.delete("pods", "team-a", "train-worker-0-1");
    tokio::time::sleep(Duration::from_secs(30)).await;
    assert_eq!(pods(&world.api), ["train-worker-0-2"]);
    assert_eq!(phase(&world.api, "train"), "Running");
}
