//! Simulates the platform around `larder-controller` on a real API server, so that tests and benchmarks can measure and
//! disturb the controller alone. No origin is listed, no byte is fetched, and no pod has to run.
//!
//! The cast: [`handover`] takes the jobs of one namespace from Kubernetes' Job controller; `jobs` completes them as
//! their pods would, with a report of the import; `larderd` simulates the daemon of each node, which accepts promises
//! and reports bytes that grow while a job warms. [`program`] starts the controller and reads its metrics.
//!
//! Invariant: it writes only what the kubelet, Kubernetes' controllers and larderd would write.

mod config;
pub mod handover;
mod jobs;
mod larderd;
pub mod program;

use std::collections::HashMap;
use std::sync::Arc;

use larder_kube::Client;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

pub use config::{Config, Filled, Seen, snapshot_of};

/// Concurrent writes to the API.
const WRITERS: usize = 16;

/// A running simulation. Dropping it stops the simulation.
#[derive(Debug)]
pub struct FakePlatform {
    seen: Arc<Seen>,
    /// Dropping the set aborts its tasks.
    _tasks: JoinSet<()>,
}

impl FakePlatform {
    /// Starts the simulation. Call [`handover::hand_over`] first. Must be called within a Tokio runtime.
    pub fn start(client: &Client, config: Config) -> Self {
        let (config, seen) = (Arc::new(config), Arc::new(Seen::default()));
        let writers = Arc::new(Semaphore::new(WRITERS));
        let mut tasks = JoinSet::new();
        let mut nodes = HashMap::new();
        for node in &config.nodes {
            let (sender, messages) = larderd::mailbox();
            nodes.insert(node.clone(), sender);
            let larderd =
                larderd::Larderd::new(client, node, Arc::clone(&config), Arc::clone(&seen), Arc::clone(&writers));
            tasks.spawn(larderd.run(messages));
        }
        let nodes = Arc::new(nodes);
        tasks.spawn(larderd::listen(client.clone(), Arc::clone(&nodes)));
        tasks.spawn(jobs::Jobs { client: client.clone(), config, seen: Arc::clone(&seen), nodes, writers }.follow());
        Self { seen, _tasks: tasks }
    }

    /// The events so far.
    pub fn seen(&self) -> &Seen {
        &self.seen
    }
}
