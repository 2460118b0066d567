//! The state that a cluster should have: which copies of jobs, and the lease.

use std::collections::BTreeMap;

use larder_kube::key::Key;

use super::objects::RemoteJob;
use crate::time::Seconds;

/// The desired state of a cluster. A lease is only ever written together with the jobs that belong to it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Desired {
    /// The id of this home in the cluster; empty while nothing is known.
    pub home: String,
    /// The last time that was read in the cluster: the time of the next lease.
    pub read: Option<Seconds>,
    pub jobs: BTreeMap<Key, Wanted>,
}

/// A job that is in the cluster or has left it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Wanted {
    pub uid: String,
    /// The generation of its spec.
    pub generation: i64,
    /// After how many seconds without a lease the copy has no pods.
    pub fence_after: Option<i64>,
    /// The copy should exist.
    pub is_kept: bool,
    /// The copy may be created: the cluster is reachable, so that the copy has a time of it, and the job has not ended.
    pub may_begin: bool,
}

/// A home whose lease is older than this many seconds is gone, and another home may take over its jobs.
pub const GONE_SECONDS: i64 = 600;

/// The leases of homes in the cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Leases {
    /// The time of the cluster when they were read; `None` if they are unknown.
    pub read: Option<Seconds>,
    /// By the id of the home.
    pub of: BTreeMap<String, Seconds>,
}

impl Leases {
    /// How old the lease of the home of a copy is, in seconds, on the cluster's own clock.
    pub fn age(&self, copy: &RemoteJob) -> Option<i64> {
        let lease = self.of.get(&copy.home.id).copied().unwrap_or_default();
        Some(self.read? - lease.max(copy.home.read))
    }
}

/// A step towards the desired state of a copy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    Create(Key),
    /// Take over the copy of a home that is gone, in this version.
    Adopt(Key, u64),
    /// Bring the spec of the copy up to this generation.
    Update(Key, i64),
    /// Delete the copy with this uid.
    Delete(Key, String),
}

impl Step {
    /// The job that the step is about.
    pub fn key(&self) -> &Key {
        let (Self::Create(key) | Self::Adopt(key, _) | Self::Update(key, _) | Self::Delete(key, _)) = self;
        key
    }
}

impl Desired {
    /// The steps from the copies in the cluster to the desired ones, deletions first. Copies of other homes are left
    /// alone while those homes are there.
    pub fn steps(&self, there: &BTreeMap<Key, RemoteJob>, leases: &Leases) -> Vec<Step> {
        if self.home.is_empty() {
            return Vec::new();
        }
        let is_ours = |copy: &RemoteJob| copy.home.id == self.home && !copy.meta.deleting;
        let wanted = |key: &Key, copy: &RemoteJob| self.jobs.get(key).filter(|wanted| wanted.uid == copy.home.job);
        let is_right = |key: &Key, copy: &RemoteJob| {
            let is_late = copy.home.is_late(Seconds(copy.meta.created));
            !is_late && wanted(key, copy).is_some_and(|wanted| wanted.is_kept)
        };
        let gone = there.iter().filter(|(key, copy)| is_ours(copy) && !is_right(key, copy));
        let mut steps: Vec<Step> = gone.map(|(key, copy)| Step::Delete(key.clone(), copy.meta.uid.clone())).collect();
        for (key, wanted) in self.jobs.iter().filter(|(_, wanted)| wanted.is_kept) {
            match there.get(key) {
                Some(copy) if is_ours(copy) && is_right(key, copy) && copy.home.generation != wanted.generation => {
                    steps.push(Step::Update(key.clone(), wanted.generation));
                }
                Some(copy) if copy.home.id != self.home && !copy.meta.deleting => {
                    let is_gone = leases.age(copy).is_some_and(|age| age > GONE_SECONDS);
                    steps.extend((is_gone && wanted.may_begin).then(|| Step::Adopt(key.clone(), copy.meta.version)));
                }
                None if wanted.may_begin && self.read.is_some() => steps.push(Step::Create(key.clone())),
                // A copy that is being deleted, or a job of others with the name, is in the way.
                _ => {}
            }
        }
        steps
    }

    /// True if the cluster may get the lease: none of the copies there is to be deleted.
    pub fn may_renew(&self, there: &BTreeMap<Key, RemoteJob>) -> bool {
        !self.steps(there, &Leases::default()).iter().any(|step| matches!(step, Step::Delete(..)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clusters::fence::{CREATE_SECONDS, Home};
    use larder_kube::key::Meta;

    fn key() -> Key {
        Key::new("team-a", "train")
    }

    fn desired(is_kept: bool) -> Desired {
        let wanted = Wanted { uid: "u".into(), generation: 2, is_kept, may_begin: true, fence_after: None };
        Desired { home: "home".into(), read: Some(Seconds(100)), jobs: [(key(), wanted)].into() }
    }

    fn copy(home: &str, job: &str, generation: i64) -> RemoteJob {
        let home = Home { id: home.into(), job: job.into(), generation, read: Seconds(100), fence_after: None };
        let meta = Meta { key: key(), uid: "there".into(), created: 101, version: 7, ..Meta::default() };
        RemoteJob { meta, home, ..RemoteJob::default() }
    }

    fn steps(desired: &Desired, copy: Option<RemoteJob>) -> Vec<Step> {
        let there: BTreeMap<Key, RemoteJob> = copy.into_iter().map(|copy| (key(), copy)).collect();
        let leases = Leases { read: Some(Seconds(1_000)), of: [("other".to_owned(), Seconds(400))].into() };
        let steps = desired.steps(&there, &leases);
        assert_eq!(desired.may_renew(&there), !steps.iter().any(|step| matches!(step, Step::Delete(..))));
        steps
    }

    #[test]
    fn a_copy_is_created_once_kept_up_to_date_and_deleted_when_its_job_has_left() {
        assert_eq!(steps(&desired(true), None), [Step::Create(key())]);
        assert_eq!(steps(&desired(true), Some(copy("home", "u", 1))), [Step::Update(key(), 2)]);
        assert_eq!(steps(&desired(true), Some(copy("home", "u", 2))), []);
        let delete = [Step::Delete(key(), "there".into())];
        assert_eq!(steps(&desired(false), Some(copy("home", "u", 2))), delete);
        assert_eq!(steps(&desired(false), None), []);
        let nothing = Desired { jobs: BTreeMap::new(), ..desired(true) };
        assert_eq!(steps(&nothing, Some(copy("home", "u", 2))), delete, "a copy of no job");
        // The home has not read its own objects yet.
        assert_eq!(steps(&Desired::default(), Some(copy("home", "u", 2))), []);
    }

    #[test]
    fn a_copy_of_an_earlier_job_or_one_that_came_too_late_goes_first() {
        let delete = [Step::Delete(key(), "there".into())];
        assert_eq!(steps(&desired(true), Some(copy("home", "earlier", 2))), delete);
        let mut late = copy("home", "u", 2);
        late.meta.created = 101 + CREATE_SECONDS;
        assert_eq!(steps(&desired(true), Some(late)), delete);
        let mut leaving = copy("home", "earlier", 2);
        leaving.meta.deleting = true;
        assert_eq!(steps(&desired(true), Some(leaving)), [], "it is in the way, and no other is created");
    }

    #[test]
    fn a_job_of_another_home_or_of_the_cluster_itself_is_left_alone() {
        assert_eq!(steps(&desired(true), Some(copy("other", "u", 1))), []);
        assert_eq!(steps(&desired(false), Some(copy("other", "u", 1))), []);
    }

    // SEMANTICS: J21
    #[test]
    fn the_copy_of_a_home_that_is_gone_is_taken_over() {
        assert_eq!(steps(&desired(true), Some(copy("gone", "u", 1))), [Step::Adopt(key(), 7)]);
        // Its lease is not old enough, or it has placed the copy a moment ago.
        assert_eq!(steps(&desired(true), Some(copy("other", "u", 1))), []);
        let mut new = copy("gone", "u", 1);
        new.home.read = Seconds(400);
        assert_eq!(steps(&desired(true), Some(new)), []);
        assert_eq!(steps(&desired(false), Some(copy("gone", "u", 1))), []);
        let there = [(key(), copy("gone", "u", 1))].into();
        assert_eq!(desired(true).steps(&there, &Leases::default()), [], "no lease was read");
    }

    #[test]
    fn a_job_that_has_ended_is_not_created_again_nor_one_without_a_time_of_the_cluster() {
        let mut ended = desired(true);
        ended.jobs.get_mut(&key()).unwrap().may_begin = false;
        assert_eq!(steps(&ended, None), []);
        assert_eq!(steps(&Desired { read: None, ..desired(true) }, None), []);
    }
}
