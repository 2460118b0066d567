//! Chooses a cluster for a job, as larder-controller does for each job that may run in several.

use std::hint::black_box;
use std::time::Duration;

use criterion::{BatchSize, Criterion, criterion_group, criterion_main};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use larder_api::cluster::{ClusterStatus, DATASETS_MAX, HeldDataset, SHAPES_MAX, Shape};
use larder_controller::clusters::choice::{Ask, Candidate, choose};
use larder_controller::clusters::summary::{free, held};
use larder_controller::jobs::queue::Role;

/// Number of clusters, and of nodes in each.
const CLUSTERS: usize = 20;
const NODES: usize = 1000;

/// The description of a cluster with as many groups of nodes and as many datasets as one can have.
fn description(cluster: usize) -> ClusterStatus {
    let shape = |at: usize| {
        let amounts = [
            ("cpu", (8 + at).to_string()),
            ("memory", format!("{}Gi", 64 + at)),
            ("nvidia.com/gpu", (at % 9).to_string()),
            ("pods", "110".to_owned()),
        ];
        let free = amounts.map(|(resource, amount)| (resource.to_owned(), Quantity(amount)));
        // The first groups have one node more than the others.
        let nodes = NODES / SHAPES_MAX + usize::from(at < NODES % SHAPES_MAX);
        Shape { nodes: u32::try_from(nodes).unwrap_or(u32::MAX), free: free.into() }
    };
    let dataset = |at: usize| {
        let held_bytes = 1_000_000 * ((cluster + at) % 7) as u64;
        HeldDataset { name: dataset_name(at), bytes: 6_000_000, held_bytes, percent: 0 }
    };
    ClusterStatus {
        shapes: (0..SHAPES_MAX).map(shape).collect(),
        datasets: (0..DATASETS_MAX).map(dataset).collect(),
        ..ClusterStatus::default()
    }
}

fn dataset_name(at: usize) -> String {
    format!("team-{}/dataset-{at:04}", at % 50)
}

/// The clusters as candidates for jobs.
fn candidates(descriptions: &[ClusterStatus]) -> Vec<Candidate> {
    let candidate = |(at, status): (usize, &ClusterStatus)| Candidate {
        name: format!("cluster-{at:02}"),
        free: free(status),
        datasets: held(status),
        cost: 1 + at as u32 % 3,
        weight: 1 + at as u32 % 2,
        obstacle: None,
    };
    descriptions.iter().enumerate().map(candidate).collect()
}

fn clusters(criterion: &mut Criterion) {
    let descriptions: Vec<ClusterStatus> = (0..CLUSTERS).map(description).collect();
    let role = |name: &str, pods: u32, gpus: u64| Role {
        name: name.to_owned(),
        requests: [("cpu", 8_000), ("memory", 32 << 30), ("nvidia.com/gpu", gpus)].into_iter().collect(),
        min: pods,
        wanted: pods,
        max: pods,
        apart: true,
        ..Role::default()
    };
    let roles = [role("launcher", 1, 1), role("worker", 256, 4)];
    let datasets = [0, 17, 900].map(|at| (dataset_name(at), 6_000_000));
    let ask = Ask { roles: &roles, datasets: &datasets };
    let (terms, chosen) = choose(ask, &mut candidates(&descriptions));
    assert!(terms.len() == CLUSTERS && chosen.is_some(), "a cluster is chosen: {terms:?}");

    let mut group = criterion.benchmark_group("choice");
    group.bench_function("of 20 clusters of 1,000 nodes, from their descriptions", |bencher| {
        bencher.iter(|| black_box(choose(ask, &mut candidates(black_box(&descriptions)))));
    });
    let known = candidates(&descriptions);
    group.bench_function("of 20 clusters of 1,000 nodes, for each further job", |bencher| {
        bencher.iter_batched_ref(
            || known.clone(),
            |known| black_box(choose(black_box(ask), known.iter_mut())),
            BatchSize::LargeInput,
        );
    });
    group.finish();
}

criterion_group! {
    name = benches;
    config = Criterion::default().measurement_time(Duration::from_secs(3));
    targets = clusters
}
criterion_main!(benches);
