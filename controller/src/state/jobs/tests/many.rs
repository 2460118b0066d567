//! Measurements of rounds: run with `--release --ignored --nocapture`.

use super::*;

/// 1,000 jobs of one pod each on 1,000 nodes.
#[test]
#[ignore = "measures; run with --release --ignored --nocapture"]
fn a_round_of_a_thousand_jobs() {
    let mut state = state(1_000, 1_000);
    println!("new: {:?}", look(&mut state, NOW).1);
    accept(&mut state);
    let (writes, took) = look(&mut state, NOW);
    println!("admitted, {} writes: {took:?}", writes.len());
    for job_state in state.jobs.job_states.values_mut() {
        job_state.end(true, true, None, NOW);
    }
    for at in 1..4 {
        println!("nothing new: {:?}", look(&mut state, NOW + at).1);
    }
}

fn resident_mib() -> usize {
    let statm = std::fs::read_to_string("/proc/self/statm").expect("the memory of this process");
    let pages: usize = statm.split(' ').nth(1).and_then(|pages| pages.parse().ok()).expect("a number of pages");
    (pages * rustix::param::page_size()) >> 20
}

/// 10,000 jobs of five pods each run on 5,000 nodes. One after the other ends, and another is submitted.
#[test]
#[ignore = "measures; run with --release --ignored --nocapture"]
fn rounds_of_ten_thousand_jobs_and_fifty_thousand_pods() {
    const JOBS: usize = 10_000;
    const ENDS: usize = 200;
    let before = resident_mib();
    let mut state = state(5_000, 0);
    let large = (0..5_000).map(|at| {
        let mut node = node(&format!("n{at:05}"));
        node["status"]["allocatable"]["nvidia.com/gpu"] = "10".into();
        read(Kind::Node, node)
    });
    state.apply(News::All(Kind::Node, large.collect(), Vec::new()));
    let of_five = |name: &str| {
        let mut job = job(name);
        job["spec"]["roles"][0]["replicas"] = 5.into();
        read(Kind::TrainingJob, job)
    };
    let jobs = (0..JOBS).map(|at| of_five(&format!("j{at:05}"))).collect();
    state.apply(News::All(Kind::TrainingJob, jobs, Vec::new()));
    println!("new: {:?}", look(&mut state, NOW).1);
    accept(&mut state);
    let mut pods = Vec::new();
    let mut run = |state: &mut State, writes: Vec<Write>| {
        let begun = pods.len();
        for write in writes {
            let Some(mut pod) = made_pod(&write) else { continue };
            pod["metadata"]["uid"] = format!("uid-{}", write.name).into();
            run_pod(&mut pod);
            state.apply(News::Changed(Kind::Pod, read(Kind::Pod, pod)));
            pods.push(write.name);
        }
        end_writes(state);
        pods.len() - begun
    };
    let mut made = 0;
    for at in 0.. {
        let (writes, took) = look(&mut state, NOW + at);
        println!("{} writes: {took:?}", writes.len());
        match run(&mut state, writes) {
            0 => break,
            more => made += more,
        }
    }
    assert_eq!(made, 5 * JOBS);
    println!("all run: {} MiB", resident_mib() - before);

    let mut times = Vec::new();
    for at in 0..ENDS {
        let now = NOW + 100 + at as i64;
        let name = format!("j{at:05}");
        state.apply(News::Gone(Kind::TrainingJob, Key::new("team-a", &name), 2));
        for index in 0..5 {
            state.apply(News::Gone(Kind::Pod, Key::new("team-a", &format!("{name}-worker-{index}-1")), 2));
        }
        state.apply(News::Changed(Kind::TrainingJob, of_five(&format!("k{at:05}"))));
        let (writes, took) = look(&mut state, now);
        times.push(took);
        assert_eq!(run(&mut state, writes), 5, "{name}");
    }
    times.sort();
    println!(
        "a job for another: median {:?}, p99 {:?}, longest {:?}; {} MiB",
        times[ENDS / 2],
        times[ENDS * 99 / 100],
        times[ENDS - 1],
        resident_mib() - before
    );
}
