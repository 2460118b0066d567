//! Where the pods of an admitted job run, and the labels and annotations that they carry for Kueue.

use std::collections::BTreeMap;
use std::fmt;

use k8s_openapi::api::core::v1::{Pod, Toleration};

use super::names::{POD_SET_LABEL, TOPOLOGY_GATE, TOPOLOGY_REQUESTS, WORKLOAD_ANNOTATION, topology_annotation};
use crate::jobs::render::Place;
use crate::kueue::objects::Flavor;
use crate::kueue::workload::{Assigned, JobWorkload, PodSetUpdate};
use larder_kube::pod::node_affinity::Places;

/// Why pods have no place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NoPlace {
    /// An object is missing that may still appear.
    Unknown(Missing),
    /// Two values for one key. Only a new Workload can resolve this.
    Contradiction(Contradiction),
}

/// The object that is missing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Missing {
    /// The Workload's admission does not contain the role.
    Role {
        /// The name of the Workload.
        workload: String,
        role: String,
    },
    /// The ResourceFlavor is unknown.
    Flavor(String),
}

impl fmt::Display for Missing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Role { workload, role } => write!(f, "Kueue's admission of {workload} has no {role}"),
            Self::Flavor(flavor) => write!(f, "there is no ResourceFlavor {flavor}"),
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Contradiction {
    /// The two contradicting sources, for the message.
    what: String,
    key: String,
    values: (String, String),
}

impl fmt::Display for Contradiction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { what, key, values: (one, other) } = self;
        write!(f, "{what}: {key} is {one:?} in one and {other:?} in the other")
    }
}

/// The place of a role's pods: the constraints of the flavors, then the updates of each check. `pod` is a pod of the
/// role without a place. As in Kueue, two values for one key are an error.
pub fn place<'f>(
    workload: &JobWorkload,
    role: &str,
    pod: &Pod,
    flavor: impl Fn(&str) -> Option<&'f Flavor>,
) -> Result<Place, NoPlace> {
    let name = &workload.meta.key.name;
    let missing = || NoPlace::Unknown(Missing::Role { workload: name.clone(), role: role.to_owned() });
    let assigned = workload.assigned.get(role).ok_or_else(missing)?;
    let mut place = Place::default();
    let mut flavors: Vec<&String> = assigned.flavors.values().collect();
    flavors.sort();
    flavors.dedup();
    for flavor_name in flavors {
        let known = flavor(flavor_name).ok_or_else(|| NoPlace::Unknown(Missing::Flavor(flavor_name.clone())))?;
        place.selector.extend(known.labels.clone());
        add_tolerations(&mut place, known.tolerations.iter().cloned());
    }
    mark(&mut place, workload, pod, role, assigned);
    for check in &workload.checks {
        if let Some(update) = check.pod_set_updates.iter().find(|update| update.name == role) {
            add(&mut place, pod, update, &check.name)?;
        }
    }
    let none = BTreeMap::new();
    let of_pod = pod.spec.as_ref().and_then(|spec| spec.node_selector.as_ref()).unwrap_or(&none);
    agree(of_pod, &place.selector, &format!("nodeSelector of {role}, and the flavors"))
        .map_err(NoPlace::Contradiction)?;
    Ok(place)
}

/// Adds the constraints of a place to the pod's own constraints for the plan. Where Kueue chooses the nodes, nothing is
/// planned.
pub fn confine(places: &mut Places, place: &Place) {
    places.labels.extend(place.selector.clone());
    places.tolerations.extend(place.tolerations.iter().cloned());
}

/// Adds the labels and annotations by which Kueue recognizes its pods, and a scheduling gate if it chooses their nodes.
fn mark(place: &mut Place, workload: &JobWorkload, pod: &Pod, role: &str, assigned: &Assigned) {
    place.labels.insert(POD_SET_LABEL.to_owned(), role.to_owned());
    place.annotations.insert(WORKLOAD_ANNOTATION.to_owned(), workload.meta.key.name.clone());
    if assigned.is_placed_by_kueue() {
        place.gates.push(TOPOLOGY_GATE.to_owned());
        let asked = |annotations: &BTreeMap<String, String>| {
            TOPOLOGY_REQUESTS.iter().any(|request| annotations.contains_key(&topology_annotation(request)))
        };
        if !pod.metadata.annotations.as_ref().is_some_and(asked) {
            place.annotations.insert(topology_annotation("unconstrained"), "true".to_owned());
        }
    }
}

fn add(place: &mut Place, pod: &Pod, update: &PodSetUpdate, check: &str) -> Result<(), NoPlace> {
    let none = BTreeMap::new();
    let metadata = &pod.metadata;
    for (what, there, of_pod, given) in [
        ("labels", &mut place.labels, metadata.labels.as_ref(), &update.labels),
        ("annotations", &mut place.annotations, metadata.annotations.as_ref(), &update.annotations),
        ("nodeSelector", &mut place.selector, None, &update.node_selector),
    ] {
        let what = format!("{what} of {}, and the check {check}", update.name);
        let agreed = agree(of_pod.unwrap_or(&none), given, &what).and_then(|()| agree(there, given, &what));
        agreed.map_err(NoPlace::Contradiction)?;
        there.extend(given.clone());
    }
    add_tolerations(place, update.tolerations.iter().cloned());
    Ok(())
}

/// Checks that two maps agree. Fails if a key has two values.
fn agree(one: &BTreeMap<String, String>, other: &BTreeMap<String, String>, what: &str) -> Result<(), Contradiction> {
    let differs = |(key, value): &(&String, &String)| one.get(*key).is_some_and(|there| there != *value);
    match other.iter().find(differs) {
        Some((key, value)) => {
            let values = (one[key].clone(), value.clone());
            Err(Contradiction { what: what.to_owned(), key: key.clone(), values })
        }
        None => Ok(()),
    }
}

fn add_tolerations(place: &mut Place, given: impl Iterator<Item = Toleration>) {
    for toleration in given {
        if !place.tolerations.contains(&toleration) {
            place.tolerations.push(toleration);
        }
    }
}
