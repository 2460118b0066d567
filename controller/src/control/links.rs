//! The part of the main loop that keeps the links to other clusters.

use std::collections::BTreeMap;
use std::sync::Arc;

use larder_api::names::HERE;
use larder_kube::Client;
use larder_kube::key::Key;
use tokio::sync::{mpsc, watch};
use tokio::task::{AbortHandle, JoinSet};

use super::Control;
use crate::clusters::desired::Desired;
use crate::clusters::elsewhere::Outcome;
use crate::clusters::known;
use crate::clusters::link::{Connect, Link};
use crate::time::{Millis, Seconds};
use crate::watch::News;
use crate::work_queue::Work;
use crate::write::Write;

/// The interval between two heartbeats of this cluster.
const HEARTBEAT_MILLIS: u64 = 10_000;

/// The links, each of them a task.
pub(super) struct Links {
    home: Client,
    connect: Arc<dyn Connect>,
    news: mpsc::Sender<News>,
    running: BTreeMap<String, Running>,
    /// The number of the last link.
    last: u64,
    tasks: JoinSet<()>,
}

struct Running {
    /// The home, and the uid and the Secret of the Cluster.
    of: [String; 3],
    desired: watch::Sender<Desired>,
    task: AbortHandle,
}

impl Links {
    pub(super) fn new(home: Client, connect: Arc<dyn Connect>, news: mpsc::Sender<News>) -> Self {
        Self { home, connect, news, running: BTreeMap::new(), last: 0, tasks: JoinSet::new() }
    }

    /// Starts a link. Returns its number.
    fn start(&mut self, name: &str, of: [String; 3]) -> u64 {
        self.last += 1;
        let (sender, desired) = watch::channel(Desired::default());
        let link = Link {
            name: name.to_owned(),
            number: self.last,
            secret: of[2].clone(),
            home: self.home.clone(),
            connect: Arc::clone(&self.connect),
            desired,
            news: self.news.clone(),
        };
        let task = self.tasks.spawn(link.run());
        self.running.insert(name.to_owned(), Running { of, desired: sender, task });
        self.last
    }
}

impl Control {
    /// Starts a link to each Cluster, and ends those of Clusters that are gone or have changed.
    pub(super) fn follow_clusters(&mut self, now: Millis) {
        let clusters = &self.state.clusters;
        let home = clusters.home().unwrap_or_default();
        let wanted = clusters.objects.iter().filter(|_| !home.is_empty()).filter_map(|object| {
            let of = [home.to_owned(), object.meta.uid.clone(), object.secret.clone()?];
            (object.meta.key.name != HERE).then(|| (object.meta.key.name.clone(), of))
        });
        let wanted: BTreeMap<String, [String; 3]> = wanted.collect();
        self.links.running.retain(|name, running| {
            let is_wanted = wanted.get(name) == Some(&running.of);
            if !is_wanted {
                running.task.abort();
            }
            is_wanted
        });
        while self.links.tasks.try_join_next().is_some() {}
        self.state.clusters.links.retain(|name, _| self.links.running.contains_key(name));
        for (name, of) in wanted {
            if !self.links.running.contains_key(&name) {
                let home = of[0].clone();
                let number = self.links.start(&name, of);
                self.state.clusters.links.insert(name.clone(), known::Link::new(number, &home, now));
            }
            self.add(Work::Cluster(name), now);
        }
        self.add(Work::Jobs, now);
    }

    /// Passes on the desired state of each cluster.
    pub(super) fn publish(&self) {
        for (name, running) in &self.links.running {
            let desired = self.state.desired(name);
            running.desired.send_if_modified(|before| {
                let is_new = *before != desired;
                if is_new {
                    *before = desired;
                }
                is_new
            });
        }
    }

    /// The status of a Cluster. That of this cluster has a heartbeat.
    pub(super) fn plan_cluster(&mut self, name: &str, now: Millis) -> Vec<Write> {
        self.state.clusters.now = now;
        let writes = self.state.cluster_status(name, self.seconds());
        if !writes.is_empty() {
            self.add(Work::Cluster(name.to_owned()), now + HEARTBEAT_MILLIS);
        }
        writes
    }

    /// The writes about a job that may run in other clusters.
    pub(super) fn plan_elsewhere(&mut self, key: &Key, now: Millis) -> Vec<Write> {
        self.state.clusters.now = now;
        let time: Seconds = self.seconds();
        let Outcome { writes, leaves, again_at } = self.state.elsewhere(key, time);
        self.again(Work::Elsewhere(key.clone()), again_at, time, now);
        if leaves.is_some() {
            // The cluster gets no newer lease before the copy is gone.
            self.publish();
        }
        writes
    }
}
