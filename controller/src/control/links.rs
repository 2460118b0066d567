//! The links to other clusters, each of them a task.

use std::collections::BTreeMap;
use std::sync::Arc;

use larder_kube::Client;
use tokio::sync::{mpsc, watch};
use tokio::task::{AbortHandle, JoinSet};

use crate::clusters::desired::Desired;
use crate::clusters::link::{Connect, Link};
use crate::watch::News;

pub(super) struct Links {
    home: Client,
    connect: Arc<dyn Connect>,
    news: mpsc::Sender<News>,
    running: BTreeMap<String, Running>,
    /// The number of the last link.
    last: u64,
    tasks: JoinSet<()>,
}

/// A link is made anew if any of this changes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Target {
    /// The uid of the Cluster. It is part of the id of this home: two Clusters that reach the same cluster are two homes,
    /// and neither touches the copies of the other.
    pub(super) uid: String,
    pub(super) secret: String,
}

struct Running {
    target: Target,
    desired: watch::Sender<Desired>,
    task: AbortHandle,
}

impl Links {
    pub(super) fn new(home: Client, connect: Arc<dyn Connect>, news: mpsc::Sender<News>) -> Self {
        Self { home, connect, news, running: BTreeMap::new(), last: 0, tasks: JoinSet::new() }
    }

    /// Ends all links but those to the wanted targets.
    pub(super) fn retain(&mut self, wanted: &BTreeMap<String, Target>) {
        self.running.retain(|name, running| {
            let is_wanted = wanted.get(name) == Some(&running.target);
            if !is_wanted {
                running.task.abort();
            }
            is_wanted
        });
        while self.tasks.try_join_next().is_some() {}
    }

    pub(super) fn has(&self, name: &str) -> bool {
        self.running.contains_key(name)
    }

    /// Starts a link to the Cluster with this name. Returns its number.
    pub(super) fn start(&mut self, name: &str, target: Target) -> u64 {
        self.last += 1;
        let (sender, desired) = watch::channel(Desired::default());
        let link = Link {
            name: name.to_owned(),
            number: self.last,
            uid: target.uid.clone(),
            secret: target.secret.clone(),
            home: self.home.clone(),
            connect: Arc::clone(&self.connect),
            desired,
            news: self.news.clone(),
        };
        let task = self.tasks.spawn(link.run());
        self.running.insert(name.to_owned(), Running { target, desired: sender, task });
        self.last
    }

    /// Passes on the desired state of each cluster.
    pub(super) fn publish(&self, desired: impl Fn(&str) -> Desired) {
        for (name, running) in &self.running {
            let now = desired(name);
            running.desired.send_if_modified(|before| {
                let is_new = *before != now;
                if is_new {
                    *before = now;
                }
                is_new
            });
        }
    }
}
