//! Stands in for what `larder-controller` needs around it on a real API server, so that its own work can be measured
//! and disturbed: no origin is listed, no byte is fetched, and no pod has to run.
//!
//! The cast: [`handover`] makes Kubernetes leave the jobs of one namespace alone; `jobs` ends them as their pods would,
//! with a report of the import; `larderd` is one of each node: it takes promises, and reports bytes that grow while a
//! job warms. [`program`] starts the controller and reads its figures.
//!
//! Invariant: it writes what the kubelet, Kubernetes' controllers and larderd would, and no object of the controller's.

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

/// Writes at the same time.
const WRITERS: usize = 16;

/// Plays its parts until it is dropped.
#[derive(Debug)]
pub struct FakePlatform {
    seen: Arc<Seen>,
    /// Its tasks end with it.
    _tasks: JoinSet<()>,
}

impl FakePlatform {
    /// Starts to play. Jobs must have been handed over before. Must be called in a runtime.
    pub fn start(client: &Client, config: Config) -> Self {
        let (config, seen) = (Arc::new(config), Arc::new(Seen::default()));
        let writers = Arc::new(Semaphore::new(WRITERS));
        let mut tasks = JoinSet::new();
        let mut nodes = HashMap::new();
        for node in &config.nodes {
            let (ears, told) = larderd::ears();
            nodes.insert(node.clone(), ears);
            let larderd =
                larderd::Larderd::new(client, node, Arc::clone(&config), Arc::clone(&seen), Arc::clone(&writers));
            tasks.spawn(larderd.run(told));
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
