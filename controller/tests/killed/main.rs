//! The controller as a process on a real API server: killed at random moments, and two concurrent controllers. Jobs and
//! larderds are simulated.

mod process;
mod script;
mod server;

use std::time::Duration;

use larder_testkit::scaled;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use script::Script;
use server::{Server, State, in_cluster};

/// Kills in an ordinary run.
const KILLS: u32 = 10;

/// Changes of the cluster between two kills.
const STEPS_A_KILL: u32 = 2;

/// The longest life of a process before it is killed.
const LIFE: Duration = Duration::from_millis(2000);

/// Longer than any pause of the controller between two writes.
const SETTLED: Duration = Duration::from_secs(25);

/// The seed of the generated datasets and of the lives of the processes.
const SEED: u64 = 15;

#[test]
fn killed_at_random_moments_it_comes_to_the_same_end() {
    in_cluster(async |server| {
        let kills = scaled(KILLS);
        let script = Script::new(SEED, kills * STEPS_A_KILL);
        let wanted = undisturbed(server, &script).await;
        assert!(wanted.keys().any(|name| name.starts_with("promise ")), "the script makes promises: {wanted:#?}");

        eprintln!("{kills} kills, seed {SEED}");
        let mut moments = StdRng::seed_from_u64(SEED);
        let mut steps = script.steps.chunks(STEPS_A_KILL as usize);
        for _ in 0..kills {
            let process = server.start("a");
            for step in steps.next().into_iter().flatten() {
                server.take(step).await;
            }
            live(&mut moments).await;
            process.kill();
        }
        let process = server.start("a");
        server.wait_until(&wanted).await;
        process.kill();

        // Also while all of it is being deleted.
        server.delete_all().await;
        for _ in 0..kills.div_ceil(5) {
            let process = server.start("a");
            live(&mut moments).await;
            process.kill();
        }
        let _process = server.start("a");
        server.wait_until(&State::new()).await;
    });
}

async fn live(moments: &mut StdRng) {
    tokio::time::sleep(LIFE.mul_f64(moments.random())).await;
}

/// The final state of the script under a controller that is never killed. Afterwards that controller has deleted
/// everything.
async fn undisturbed(server: &Server, script: &Script) -> State {
    let _process = server.start("a");
    for step in &script.steps {
        server.take(step).await;
    }
    let wanted = server.settled(SETTLED).await;
    for name in &script.living {
        let dataset = &wanted[&format!("dataset {name}")];
        assert!(dataset["status"]["conditions"].to_string().contains("Ready True"), "{name}: {dataset:#}");
    }
    server.delete_all().await;
    server.wait_until(&State::new()).await;
    wanted
}

#[test]
fn of_two_one_acts_and_after_its_kill_the_other() {
    in_cluster(async |server| {
        let (first, second) = (server.start("a"), server.start("b"));
        let leads = async || [first.leads().await, second.leads().await].contains(&Some(true));
        server.wait_for("one of them acts", leads).await;
        server.apply("one", 2).await;
        server.wait_for("a dataset is ready", async || server.is_ready("one").await).await;
        let figures = (first.figures().await, second.figures().await);
        let (holder, transitions) = server.lease().await;
        // If the machine stalls for this long, the leader exits and is restarted, or the Lease changes hands.
        if let (Some(one), Some(other), 0) = (figures.0, figures.1, transitions) {
            let wrote = [one.all_writes(), other.all_writes()];
            assert!(wrote.contains(&0) && wrote != [0, 0], "one of them writes: {wrote:?}");
        } else {
            eprintln!("who writes was not looked at: the machine stalled");
        }
        let (acting, waiting) = if holder == first.identity() { (first, second) } else { (second, first) };

        let name = acting.identity();
        acting.kill();
        server.apply("two", 2).await;
        server.wait_for("the other one acts", async || waiting.leads().await == Some(true)).await;
        // The killed controller is back, and now waits.
        let back = server.start(name);
        server.wait_for("it is back", async || back.leads().await.is_some()).await;
        server.wait_for("the next dataset is ready", async || server.is_ready("two").await).await;
        let figures = back.figures().await;
        let (now_holder, now) = server.lease().await;
        assert!(now > transitions, "{now} changes of the lease after {transitions}");
        if let (Some(figures), true) = (figures, now == transitions + 1) {
            assert_eq!(now_holder, waiting.identity());
            assert_eq!((figures.get("leading"), figures.all_writes()), (0, 0));
        } else {
            eprintln!("who waits was not looked at: the machine stalled");
        }
    });
}
