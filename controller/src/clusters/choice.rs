//! In which cluster a job runs: a pure function, whose terms are kept for the user.
//!
//! A cluster can be chosen if all required pods of the job fit there now. Of these, the one is chosen for which
//! `missing bytes × cost ÷ weight` is least; then the one that holds more of the data, then the one whose name comes
//! first, with `here` before all others.

use std::cmp::Ordering;
use std::collections::BTreeMap;

use larder_api::names::HERE;
use larder_api::training_job::ClusterTerm;
use larder_api::training_job::conditions::JobReason;
use larder_kube::pod::amounts::Amounts;

use crate::jobs::queue::Role;

/// Nodes with the same free room.
#[derive(Clone, Debug, PartialEq)]
struct Group {
    nodes: u64,
    free: Amounts,
}

/// The free room of a cluster.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Free(Vec<Group>);

impl Free {
    /// The room of groups of nodes: how many nodes have how much.
    pub fn new(groups: impl IntoIterator<Item = (u32, Amounts)>) -> Self {
        Self(groups.into_iter().map(|(nodes, free)| Group { nodes: u64::from(nodes), free }).collect())
    }

    /// Takes the room of the fewest pods that a job with these roles runs with. If they do not all fit, takes nothing
    /// and returns false.
    pub fn take(&mut self, roles: &[Role]) -> bool {
        let before = self.0.clone();
        let fits = roles.iter().all(|role| self.take_pods(role));
        if !fits {
            self.0 = before;
        }
        fits
    }

    /// Takes the room of the pods of a role, as far as they fit. Returns whether they all do.
    fn take_pods(&mut self, role: &Role) -> bool {
        let mut request = role.requests.clone();
        request.add(&[("pods", 1)].into_iter().collect(), 1);
        let mut left = u64::from(role.min);
        let mut changed = Vec::new();
        for group in &mut self.0 {
            if left == 0 {
                break;
            }
            let most = if role.apart { 1 } else { u64::MAX };
            let on_each = fitting(&group.free, &request).min(most);
            if on_each == 0 || group.nodes == 0 {
                continue;
            }
            let full = (left / on_each).min(group.nodes);
            changed.push(Group { nodes: full, free: without(&group.free, &request, on_each) });
            (group.nodes, left) = (group.nodes - full, left - full * on_each);
            if left > 0 && group.nodes > 0 {
                changed.push(Group { nodes: 1, free: without(&group.free, &request, left) });
                (group.nodes, left) = (group.nodes - 1, 0);
            }
        }
        self.0.extend(changed);
        self.0.retain(|group| group.nodes > 0);
        left == 0
    }
}

/// How many pods with this request fit into the free room of a node.
fn fitting(free: &Amounts, request: &Amounts) -> u64 {
    request.iter().map(|(resource, amount)| free.get(resource) / amount).min().unwrap_or(u64::MAX)
}

fn without(free: &Amounts, request: &Amounts, pods: u64) -> Amounts {
    let rest = |(resource, amount): (&str, u64)| {
        (resource.to_owned(), amount.saturating_sub(request.get(resource).saturating_mul(pods)))
    };
    free.iter().map(rest).collect()
}

/// The bytes of a dataset in a cluster.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Held {
    pub bytes: u64,
    pub held: u64,
}

/// A cluster that a job may be placed in.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Candidate {
    pub name: String,
    pub free: Free,
    /// By NAMESPACE/NAME.
    pub datasets: BTreeMap<String, Held>,
    pub cost: u32,
    pub weight: u32,
    /// Why it cannot be chosen.
    pub obstacle: Option<String>,
}

/// The pods and the data of a job.
#[derive(Clone, Copy, Debug)]
pub struct Ask<'a> {
    pub roles: &'a [Role],
    /// NAMESPACE/NAME of its datasets, and their sizes here.
    pub datasets: &'a [(String, u64)],
}

/// The result of looking for a cluster for a job.
#[derive(Clone, Debug, PartialEq)]
pub enum Choice {
    /// The job is to be placed in this cluster.
    Place { cluster: String, terms: Vec<ClusterTerm> },
    /// The job waits.
    Wait { terms: Vec<ClusterTerm>, reason: JobReason, why: String },
}

/// Compares the clusters. Returns the terms of each, the best first, and the chosen one, whose room is then taken.
pub fn choose<'c>(
    ask: Ask<'_>,
    candidates: impl IntoIterator<Item = &'c mut Candidate>,
) -> (Vec<ClusterTerm>, Option<String>) {
    let mut compared: Vec<(ClusterTerm, &mut Candidate)> =
        candidates.into_iter().map(|candidate| (term(ask, candidate), candidate)).collect();
    compared.sort_by(|(one, _), (other, _)| order(one, other));
    let chosen = compared.first_mut().filter(|(term, _)| term.fits).map(|(term, candidate)| {
        candidate.free.take(ask.roles);
        term.cluster.clone()
    });
    (compared.into_iter().map(|(term, _)| term).collect(), chosen)
}

fn term(ask: Ask<'_>, candidate: &Candidate) -> ClusterTerm {
    let (mut held_bytes, mut missing_bytes) = (0_u64, 0_u64);
    for (name, size) in ask.datasets {
        let there = candidate.datasets.get(name).copied().unwrap_or(Held { bytes: *size, held: 0 });
        let held = there.held.min(there.bytes);
        held_bytes = held_bytes.saturating_add(held);
        missing_bytes = missing_bytes.saturating_add(there.bytes - held);
    }
    let fits = candidate.obstacle.is_none() && candidate.free.clone().take(ask.roles);
    let why = match &candidate.obstacle {
        Some(obstacle) => obstacle.clone(),
        None if !fits => "its pods do not fit there now".to_owned(),
        None => String::new(),
    };
    let (cluster, cost, weight) = (candidate.name.clone(), candidate.cost, candidate.weight.max(1));
    ClusterTerm { cluster, fits, held_bytes, missing_bytes, cost, weight, why }
}

fn order(one: &ClusterTerm, other: &ClusterTerm) -> Ordering {
    // Both sides are multiplied by both weights, so that nothing is rounded.
    let price =
        |term: &ClusterTerm, weight: u32| u128::from(term.missing_bytes) * u128::from(term.cost) * u128::from(weight);
    let is_away = |term: &ClusterTerm| term.cluster != HERE;
    other
        .fits
        .cmp(&one.fits)
        .then_with(|| price(one, other.weight).cmp(&price(other, one.weight)))
        .then_with(|| other.held_bytes.cmp(&one.held_bytes))
        .then_with(|| is_away(one).cmp(&is_away(other)))
        .then_with(|| one.cluster.cmp(&other.cluster))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn amounts(gpus: u64) -> Amounts {
        [("nvidia.com/gpu", gpus), ("pods", 110)].into_iter().collect()
    }

    fn role(min: u32, gpus: u64, apart: bool) -> Role {
        let requests = [("nvidia.com/gpu", gpus)].into_iter().collect();
        Role { min, wanted: min, max: min, requests, apart, ..Role::default() }
    }

    fn cluster(name: &str, groups: &[(u32, u64)], held: u64) -> Candidate {
        Candidate {
            name: name.to_owned(),
            free: Free::new(groups.iter().map(|(nodes, gpus)| (*nodes, amounts(*gpus)))),
            datasets: [("team-a/pets".to_owned(), Held { bytes: 1000, held })].into(),
            cost: 1,
            weight: 1,
            obstacle: None,
        }
    }

    fn pets() -> Vec<(String, u64)> {
        vec![("team-a/pets".to_owned(), 1000)]
    }

    fn chosen(roles: &[Role], candidates: &mut [Candidate]) -> Option<String> {
        choose(Ask { roles, datasets: &pets() }, candidates).1
    }

    #[test]
    fn a_job_goes_where_its_data_is_and_where_it_fits_when_that_is_full() {
        let mut clusters = [cluster("cloud", &[(4, 8)], 0), cluster("west", &[(1, 8)], 1000)];
        let roles = [role(2, 4, false)];
        assert_eq!(chosen(&roles, &mut clusters).as_deref(), Some("west"));
        // Its room is taken, so the next job goes elsewhere, until all are full.
        assert_eq!(chosen(&roles, &mut clusters).as_deref(), Some("cloud"));
        for _ in 0..3 {
            assert_eq!(chosen(&roles, &mut clusters).as_deref(), Some("cloud"));
        }
        assert_eq!(chosen(&roles, &mut clusters), None);
    }

    #[test]
    fn cost_and_weight_count_and_here_comes_first_among_equals() {
        let roles = [role(1, 1, false)];
        let mut dear = cluster("dear", &[(1, 8)], 500);
        dear.cost = 3;
        assert_eq!(chosen(&roles, &mut [dear.clone(), cluster("far", &[(1, 8)], 0)]).as_deref(), Some("far"));
        dear.weight = 2;
        assert_eq!(chosen(&roles, &mut [dear, cluster("far", &[(1, 8)], 0)]).as_deref(), Some("dear"));
        let equal = [cluster("away", &[(1, 8)], 0), cluster("here", &[(1, 8)], 0)];
        assert_eq!(chosen(&roles, &mut equal.clone()).as_deref(), Some("here"));
    }

    #[test]
    fn pods_that_must_be_apart_need_as_many_nodes_and_an_obstacle_is_among_the_terms() {
        let mut clusters = [cluster("one", &[(1, 8)], 1000), cluster("two", &[(2, 8)], 0)];
        assert_eq!(chosen(&[role(2, 1, true)], &mut clusters).as_deref(), Some("two"));
        clusters[1].obstacle = Some("has not answered for 40 s".to_owned());
        let (terms, chosen) = choose(Ask { roles: &[role(2, 1, true)], datasets: &pets() }, &mut clusters);
        assert_eq!(chosen, None);
        let why: Vec<(&str, &str)> = terms.iter().map(|term| (term.cluster.as_str(), term.why.as_str())).collect();
        assert_eq!(why, [("one", "its pods do not fit there now"), ("two", "has not answered for 40 s")]);
    }

    fn any_cluster() -> impl Strategy<Value = Candidate> {
        let groups = prop::collection::vec((1..4_u32, 0..9_u64), 0..4);
        (0..30_u32, groups, 0..2_000_u64, 0..4_u32, 1..4_u32, any::<bool>()).prop_map(
            |(name, groups, held, cost, weight, is_well)| Candidate {
                cost,
                weight,
                obstacle: (!is_well).then(|| "is lost".to_owned()),
                ..cluster(&format!("c{name}"), &groups, held)
            },
        )
    }

    fn total(free: &Free) -> u64 {
        free.0.iter().map(|group| group.nodes * group.free.get("nvidia.com/gpu")).sum()
    }

    proptest! {
        // SEMANTICS: J18
        #[test]
        fn the_chosen_cluster_fits_and_none_that_fits_is_cheaper_whatever_their_order(
            mut clusters in prop::collection::vec(any_cluster(), 0..8),
            (pods, gpus, apart) in (1..6_u32, 1..5_u64, any::<bool>()),
        ) {
            clusters.sort_by(|one, other| one.name.cmp(&other.name));
            clusters.dedup_by(|one, other| one.name == other.name);
            let roles = [role(pods, gpus, apart)];
            let before = clusters.clone();
            let (terms, chosen) = choose(Ask { roles: &roles, datasets: &pets() }, &mut clusters);
            prop_assert_eq!(terms.len(), before.len());
            prop_assert_eq!(chosen.is_some(), terms.iter().any(|term| term.fits));
            let mut reversed: Vec<Candidate> = before.iter().rev().cloned().collect();
            let again = choose(Ask { roles: &roles, datasets: &pets() }, &mut reversed);
            prop_assert_eq!(&again, &(terms.clone(), chosen.clone()));
            for (before, after) in before.iter().zip(&clusters) {
                let taken = total(&before.free) - total(&after.free);
                let is_chosen = chosen.as_ref() == Some(&before.name);
                prop_assert_eq!(taken, if is_chosen { u64::from(pods) * gpus } else { 0 });
                prop_assert!(!is_chosen || before.obstacle.is_none());
            }
            if let Some(best) = terms.first().filter(|best| best.fits) {
                let price = |term: &ClusterTerm| {
                    term.missing_bytes as f64 * f64::from(term.cost) / f64::from(term.weight)
                };
                for other in terms.iter().filter(|other| other.fits) {
                    prop_assert!(price(best) <= price(other) + 1e-9, "{best:?} {other:?}");
                }
            }
        }
    }
}
