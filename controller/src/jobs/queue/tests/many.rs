use super::*;

/// 30 queues in 6 cohorts, 15,000 jobs of three sizes, 1,000 nodes of 8 GPUs.
#[test]
#[ignore = "measures; run with --release --ignored --nocapture"]
fn fifteen_thousand_jobs_in_thirty_queues() {
    let queues = (0..30).map(|at| queue(&format!("q{at:02}"), &format!("c{}", at % 6), quota(260, Some(100), None)));
    let mut world = World::new(queues.collect(), 1_000, 8);
    for at in 0..15_000_u32 {
        let pods = [1, 5, 20][at as usize % 3];
        let name = format!("j{at:05}");
        world.now += 1;
        world.submit(job(&name, &format!("q{:02}", at % 30), at as i32 % 2, (pods, pods, pods)));
    }
    let decide = |world: &World, what: &str| {
        let rooms = world.rooms();
        let mut times = Vec::new();
        let mut starts = 0;
        for _ in 0..7 {
            let started = std::time::Instant::now();
            let decided = decide(&world.queues, &world.jobs, &[], &mut Cluster::new(&rooms), world.now);
            times.push(started.elapsed());
            starts = decided.values().filter(|verdict| matches!(verdict, Verdict::Start { .. })).count();
        }
        times.sort();
        println!(
            "{what}: {starts} of {} jobs start, {:?}, {:?} to {:?}",
            world.jobs.len(),
            times[3],
            times[0],
            times[6]
        );
    };
    decide(&world, "an empty cluster");
    world.step();
    decide(&world, "a full one");
    let ended: Vec<Key> =
        world.jobs.iter().filter(|job| job.is_admitted()).take(100).map(|job| job.key.clone()).collect();
    world.jobs.retain(|job| !ended.contains(&job.key));
    decide(&world, "after 100 jobs have ended");
}
