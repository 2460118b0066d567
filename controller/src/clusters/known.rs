//! Everything that the controller knows about other clusters.

use std::collections::{BTreeMap, BTreeSet};

use larder_api::ClusterReason;
use larder_api::cluster::ClusterStatus;
use larder_api::names::HERE;
use larder_kube::key::Key;
use larder_kube::store::Store;

use super::choice::Choice;
use super::desired::Leases;
use super::fence::Void;
use super::objects::{ClusterObject, RemoteJob};
use crate::jobs::profile::{Generations, Profile};
use crate::jobs::queue::LeftoverPod;
use crate::jobs::refusal::Refusal;
use crate::optional_api::Presence;
use crate::time::{Millis, Seconds};

/// A cluster that has not answered, or whose controller has not written, for this long is not reachable.
const SILENCE_MILLIS: u64 = 35_000;

/// The known clusters.
#[derive(Debug, Default)]
pub struct Clusters {
    /// Whether this cluster knows of others.
    pub presence: Presence,
    pub objects: Store<ClusterObject>,
    /// The links to other clusters, by the names of the Clusters.
    pub links: BTreeMap<String, Link>,
    /// The leases of homes whose jobs are here, by the ids of the homes.
    pub leases: BTreeMap<String, Seconds>,
    /// Those times in them that do not count.
    pub void: Void,
    /// The jobs that may run in other clusters.
    pub jobs: Vec<Key>,
    /// The quota here that those in other clusters use.
    pub counted: Vec<LeftoverPod>,
    /// The requirements of these jobs, and of those that MultiKueue moves.
    pub needs: BTreeMap<Key, Needs>,
    /// Where jobs are to be placed, or why they wait.
    pub choices: BTreeMap<Key, Choice>,
    /// The clusters that are nominated for the Workloads that MultiKueue is to move, and for which others are nominated by
    /// now.
    pub nominations: BTreeMap<Key, Vec<String>>,
    /// Since when jobs wait because another home has a job of their name in a cluster.
    pub collisions: BTreeMap<Key, Millis>,
    /// The jobs, by uid, that this process has decided to take from a cluster. The cluster gets no newer lease before
    /// their copies are gone, even if the decision is not written yet.
    pub leaving: BTreeMap<String, BTreeSet<String>>,
    /// The monotonic time of the event that is being applied.
    pub now: Millis,
}

/// The pods of a job, of these generations of the job and its type.
#[derive(Clone, Debug, PartialEq)]
pub struct Needs {
    pub of: Generations,
    pub profile: Result<Profile, Refusal>,
}

/// A report of a link.
#[derive(Debug)]
pub enum Report {
    /// The id of this home there. It comes before everything else.
    Home(String),
    /// The cluster has answered after so many milliseconds, and this is its `here`: the status and the leases.
    Beat(Box<ClusterStatus>, BTreeMap<String, Seconds>, u32),
    /// All copies of jobs that have a home.
    All(Vec<RemoteJob>),
    Changed(Box<RemoteJob>),
    Gone(Key),
    /// The link is lost. It is made again.
    Lost(ClusterReason, String),
    /// The cluster refuses the copy of the job with this uid.
    Refused(Key, String, String),
}

/// A link to a cluster.
#[derive(Debug, Default)]
pub struct Link {
    /// The number of the link, which its reports have.
    pub number: u64,
    /// The id of this home over there, which its copies have; empty until it is known.
    pub home: String,
    pub status: ClusterStatus,
    /// The leases of all homes there.
    pub leases: Leases,
    pub latency_millis: u32,
    /// The last heartbeat that was read there while the copies were known: the time that the next lease has.
    pub read: Option<Seconds>,
    /// When it was read, or when the link was made.
    pub read_at: Millis,
    /// The last heartbeat that was read there, and when. It counts once the copies are known: a cluster that answers
    /// but does not list them gets no lease.
    latest: (Option<Seconds>, Millis),
    /// Why the link is lost.
    pub lost: Option<(ClusterReason, String)>,
    /// The copies there are known.
    pub is_listed: bool,
    /// It has answered since it was lost last.
    has_answered: bool,
    pub jobs: BTreeMap<Key, RemoteJob>,
    /// The copies that the cluster refused: the uid of the job, and why.
    pub refused: BTreeMap<Key, (String, String)>,
}

impl Link {
    /// A link that begins now.
    pub fn new(number: u64, now: Millis) -> Self {
        Self { number, read_at: now, latest: (None, now), ..Self::default() }
    }

    /// Applies a report that arrives now.
    pub fn apply(&mut self, report: Report, now: Millis) {
        match report {
            Report::Home(id) => self.home = id,
            Report::Beat(status, leases, latency_millis) => {
                let heartbeat = status.heartbeat.as_ref().map(Seconds::of);
                // A controller that has stopped leaves an old heartbeat.
                if heartbeat.is_some() && heartbeat != self.latest.0 {
                    self.latest = (heartbeat, now);
                }
                self.leases = Leases { read: heartbeat, of: leases };
                (self.status, self.latency_millis, self.has_answered) = (*status, latency_millis, true);
            }
            Report::All(jobs) => {
                self.jobs = jobs.into_iter().map(|job| (job.meta.key.clone(), job)).collect();
                self.is_listed = true;
            }
            Report::Changed(job) => {
                let key = job.meta.key.clone();
                self.refused.remove(&key);
                self.jobs.insert(key, *job);
            }
            Report::Gone(key) => _ = self.jobs.remove(&key),
            Report::Lost(reason, why) => {
                (self.lost, self.is_listed, self.has_answered) = (Some((reason, why)), false, false);
            }
            Report::Refused(key, uid, why) => _ = self.refused.insert(key, (uid, why)),
        }
        if self.is_listed && self.has_answered {
            (self.read, self.read_at) = self.latest;
            self.lost = None;
        }
    }

    /// True if the state of its jobs is known, and its controller acts on them.
    pub fn is_reachable(&self, now: Millis) -> bool {
        self.has_listed() && self.read.is_some() && !self.is_silent(now)
    }

    /// True if the copies there are known, whether its controller acts on them or not.
    pub fn has_listed(&self) -> bool {
        self.is_listed && self.lost.is_none()
    }

    /// True if nothing was read there for a while.
    pub fn is_silent(&self, now: Millis) -> bool {
        now - self.read_at > SILENCE_MILLIS
    }

    /// For how many seconds nothing was read there. A process that has just begun knows of no silence before.
    pub fn silent_seconds(&self, now: Millis) -> i64 {
        i64::try_from((now - self.read_at) / 1000).unwrap_or(i64::MAX)
    }

    /// The copy of the job with this uid.
    pub fn job(&self, key: &Key, uid: &str) -> Option<&RemoteJob> {
        self.jobs.get(key).filter(|copy| copy.home.id == self.home && copy.home.job == uid)
    }

    /// How old the lease of another home is that has a copy of the job with this name there; `None` if there is none.
    pub fn other_home(&self, key: &Key) -> Option<i64> {
        let copy = self.jobs.get(key).filter(|copy| copy.home.id != self.home && !copy.meta.deleting)?;
        self.leases.age(copy)
    }

    /// Why the cluster refuses the job with this uid.
    pub fn refusal(&self, key: &Key, uid: &str) -> Option<&str> {
        self.refused.get(key).filter(|(of, _)| of == uid).map(|(_, why)| why.as_str())
    }
}

impl Clusters {
    /// True if a cluster may have a copy of the job with this uid. A cluster whose Cluster was deleted is forgotten.
    pub fn may_have(&self, cluster: &str, job: &Key, uid: &str) -> bool {
        if cluster == HERE || self.objects.get(&Key::cluster(cluster)).is_none() {
            return false;
        }
        let link = self.links.get(cluster).filter(|link| link.has_listed());
        link.is_none_or(|link| link.job(job, uid).is_some())
    }

    /// True if this process has decided to take the job with this uid from a cluster.
    pub fn is_leaving(&self, cluster: &str, uid: &str) -> bool {
        self.leaving.get(cluster).is_some_and(|uids| uids.contains(uid))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
    use k8s_openapi::jiff::Timestamp;

    fn beat(at: i64) -> Report {
        let heartbeat = Some(Time(Timestamp::from_second(at).unwrap()));
        Report::Beat(Box::new(ClusterStatus { heartbeat, ..ClusterStatus::default() }), BTreeMap::new(), 3)
    }

    // SEMANTICS: J19
    #[test]
    fn a_cluster_is_reachable_while_its_own_time_goes_on_and_its_jobs_are_known() {
        let mut link = Link::new(1, Millis(0));
        link.apply(beat(100), Millis(1_000));
        assert!(!link.is_reachable(Millis(1_000)), "its jobs are unknown");
        link.apply(Report::All(Vec::new()), Millis(1_000));
        assert!(link.is_reachable(Millis(1_000)));
        // It answers, but its controller has stopped.
        link.apply(beat(100), Millis(36_000));
        assert_eq!((link.read, link.read_at), (Some(Seconds(100)), Millis(1_000)));
        assert!(link.is_reachable(Millis(36_000)) && !link.is_reachable(Millis(36_001)));
        link.apply(beat(140), Millis(40_000));
        assert!(link.is_reachable(Millis(40_000)));
        link.apply(Report::Lost(ClusterReason::NoAnswer, "reset".to_owned()), Millis(41_000));
        assert!(!link.is_reachable(Millis(41_000)));
        // The copies are listed again before any of them counts.
        link.apply(beat(150), Millis(50_000));
        assert!(!link.is_reachable(Millis(50_000)));
    }

    // SEMANTICS: J19
    #[test]
    fn a_cluster_that_answers_but_does_not_list_its_jobs_falls_silent() {
        let mut link = Link::new(1, Millis(0));
        link.apply(beat(100), Millis(1_000));
        link.apply(Report::All(Vec::new()), Millis(2_000));
        assert_eq!((link.read, link.read_at), (Some(Seconds(100)), Millis(1_000)));
        for at in 1..=4 {
            link.apply(Report::Lost(ClusterReason::NoAnswer, "may not list".to_owned()), Millis(at * 10_000));
            link.apply(beat(100 + i64::try_from(at).unwrap() * 10), Millis(at * 10_000));
        }
        assert_eq!((link.read, link.is_silent(Millis(40_000))), (Some(Seconds(100)), true), "no lease is renewed");
        link.apply(Report::All(Vec::new()), Millis(41_000));
        assert_eq!((link.read, link.is_reachable(Millis(41_000))), (Some(Seconds(140)), true));
    }
}
