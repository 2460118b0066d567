//! Simulates the platform around `larder-controller` on a real API server, so that the controller alone can be measured
//! and disturbed: no origin is listed, no byte is fetched, and no pod has to run.
//!
//! The cast: [`handover`] takes the jobs of one namespace from Kubernetes' Job controller; `jobs` completes them as their
//! pods would, with a report of the import; `larderd` simulates the daemon of each node, which accepts promises and
//! reports bytes that grow while a job warms. [`program`] starts the controller and reads its metrics.
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

/// The simulation; it stops when it is dropped.
#[derive(Debug)]
pub struct FakePlatform {
    seen: Arc<Seen>,
    /// Its tasks end with it.
    _tasks: JoinSet<()>,
}

impl FakePlatform {
    /// Starts the simulation. Jobs must have been handed over before. Must be called in a runtime.
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

    /// What has happened so far.
    pub fn seen(&self) -> &Seen {
        &self.seen
    }
}
