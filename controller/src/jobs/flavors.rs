//! The flavors of a job's nodes: which it may have, and what follows for its pods.
//!
//! The administrator's settings say which nodes are of a flavor, and a queue has quota for flavors. A role that
//! requests any resource of which the queue limits flavors has one flavor. All roles of a job try their flavors in the
//! same order and at the same time: the first of each, then the second. Roles whose own node selector excludes a flavor
//! leave it out.

use std::collections::BTreeMap;

use larder_api::names::JOB_FLAVOR_LABEL;
use larder_api::queue::checked::CheckedQueue;
use larder_api::settings::Flavor;

use crate::jobs::queue::Role;
use crate::jobs::render::Place;

fn find<'f>(known: &'f [Flavor], name: &str) -> Option<&'f Flavor> {
    known.iter().find(|flavor| flavor.name == name)
}

/// The roles of a job in a queue on each of its choices of flavors, the preferred one first. Fails, with the reason, if
/// a role can have none.
pub fn choices(name: &str, queue: &CheckedQueue, known: &[Flavor], roles: &[Role]) -> Result<Vec<Vec<Role>>, String> {
    let limits = |flavor: &str, resource: &str| queue.of_flavor(flavor).any(|(limited, _)| limited == resource);
    let mut candidates: Vec<Vec<&Flavor>> = Vec::with_capacity(roles.len());
    for role in roles {
        let requests = role.requests.iter().map(|(resource, _)| resource);
        let limited: Vec<&str> =
            requests.filter(|resource| queue.flavors.iter().any(|flavor| limits(flavor, resource))).collect();
        let suits = |flavor: &&Flavor| {
            let selected = &role.places.labels;
            let has_nodes =
                flavor.node_labels.iter().all(|(key, value)| selected.get(key).is_none_or(|there| there == value));
            has_nodes && limited.iter().all(|resource| limits(&flavor.name, resource))
        };
        let found: Vec<&Flavor> = queue.flavors.iter().filter_map(|flavor| find(known, flavor)).filter(suits).collect();
        if !limited.is_empty() && found.is_empty() {
            return Err(format!(
                "role {} can have none of the flavors of queue {name} ({}): they have no quota of {}, their nodes are not \
                 those of its nodeSelector, or the LarderSettings do not have them",
                role.name,
                queue.flavors.join(", "),
                limited.join(" and ")
            ));
        }
        candidates.push(if limited.is_empty() { Vec::new() } else { found });
    }
    let most = candidates.iter().map(Vec::len).max().unwrap_or(0).max(1);
    let on = |(role, candidates): (&Role, &Vec<&Flavor>), choice: usize| match candidates.last() {
        Some(last) => confined(role, candidates.get(choice).unwrap_or(last)),
        None => role.clone(),
    };
    Ok((0..most).map(|choice| roles.iter().zip(&candidates).map(|role| on(role, choice)).collect()).collect())
}

/// A role on the nodes of a flavor.
fn confined(role: &Role, flavor: &Flavor) -> Role {
    let mut role = Role { flavor: flavor.name.clone(), ..role.clone() };
    role.places.labels.extend(flavor.node_labels.clone());
    role
}

/// The roles of a job that has these flavors, by role; an empty name is none.
pub fn on(known: &[Flavor], roles: &[Role], flavors: &[String]) -> Vec<Role> {
    let on = |(at, role): (usize, &Role)| match flavors.get(at) {
        Some(name) if !name.is_empty() => find(known, name)
            .map_or_else(|| Role { flavor: name.clone(), ..role.clone() }, |flavor| confined(role, flavor)),
        _ => role.clone(),
    };
    roles.iter().enumerate().map(on).collect()
}

/// Where the pods of each role run. `None` if the settings lack one of the flavors: no pods may be created until they
/// have it again.
pub fn places(known: &[Flavor], roles: usize, flavors: &[String]) -> Option<Vec<Place>> {
    let place = |role: usize| {
        let Some(name) = flavors.get(role).filter(|name| !name.is_empty()) else { return Some(Place::default()) };
        let flavor = find(known, name)?;
        Some(Place {
            selector: flavor.node_labels.clone(),
            labels: [(JOB_FLAVOR_LABEL.to_owned(), name.clone())].into(),
            ..Place::default()
        })
    };
    (0..roles).map(place).collect()
}

/// The flavor of a node with these labels, or of the nodes that a selector with these labels selects; empty for none.
pub fn of_labels<'f>(known: &'f [Flavor], labels: &BTreeMap<String, String>) -> &'f str {
    let has = |flavor: &&Flavor| flavor.node_labels.iter().all(|(key, value)| labels.get(key) == Some(value));
    known.iter().find(has).map_or("", |flavor| &flavor.name)
}

#[cfg(test)]
mod tests {
    use larder_api::QueueSpec;
    use serde_json::json;

    use super::*;

    fn known() -> Vec<Flavor> {
        let flavor = |name: &str| Flavor { name: name.to_owned(), node_labels: [("gpu".into(), name.into())].into() };
        ["h100", "a100"].map(flavor).to_vec()
    }

    fn queue() -> CheckedQueue {
        let quota = |nominal: u32| json!({"nvidia.com/gpu": {"nominal": nominal}});
        let flavors = json!([{"name": "h100", "quota": quota(8)}, {"name": "a100", "quota": quota(16)},
            {"name": "gone", "quota": quota(1)}]);
        serde_json::from_value::<QueueSpec>(json!({"flavors": flavors})).unwrap().check().unwrap()
    }

    fn role(name: &str, resource: &str) -> Role {
        Role { name: name.into(), requests: [(resource, 1)].into_iter().collect(), ..Role::default() }
    }

    fn flavors(choices: &[Vec<Role>]) -> Vec<Vec<&str>> {
        choices.iter().map(|roles| roles.iter().map(|role| role.flavor.as_str()).collect()).collect()
    }

    // SEMANTICS: J25
    #[test]
    fn roles_try_their_flavors_together_and_roles_without_limited_resources_have_none() {
        let server = role("server", "cpu");
        let worker = role("worker", "nvidia.com/gpu");
        let mut pinned = role("actor", "nvidia.com/gpu");
        pinned.places.labels.insert("gpu".into(), "a100".into());
        let roles = [server, worker, pinned];
        let found = choices("vision", &queue(), &known(), &roles).unwrap();
        assert_eq!(flavors(&found), [["", "h100", "a100"], ["", "a100", "a100"]]);
        assert_eq!(found[0][1].places.labels["gpu"], "h100");
        assert!(found[0][0].places.labels.is_empty());
        assert_eq!(flavors(&choices("vision", &queue(), &known(), &roles[..1]).unwrap()), [[""]]);
        let mut lost = role("worker", "nvidia.com/gpu");
        lost.places.labels.insert("gpu".into(), "b200".into());
        let why = choices("vision", &queue(), &known(), &[lost]).unwrap_err();
        assert!(
            why.starts_with("role worker can have none of the flavors of queue vision (h100, a100, gone)"),
            "{why}"
        );
    }

    // SEMANTICS: J25
    #[test]
    fn pods_of_a_flavor_are_kept_on_its_nodes_and_none_is_created_without_it() {
        let names = [String::new(), "h100".to_owned()];
        let of = |known: &[Flavor]| places(known, 2, &names);
        let found = of(&known()).unwrap();
        assert_eq!(found[0], Place::default());
        assert_eq!((found[1].selector["gpu"].as_str(), found[1].labels[JOB_FLAVOR_LABEL].as_str()), ("h100", "h100"));
        assert_eq!(of(&known()[1..]), None);
        let roles = [role("server", "cpu"), role("worker", "nvidia.com/gpu")];
        assert_eq!(on(&known(), &roles, &names)[1].places.labels["gpu"], "h100");
        assert_eq!(on(&[], &roles, &names)[1].flavor, "h100", "it counts where it has counted");
        let labels = [("gpu".into(), "a100".into()), ("zone".into(), "a".into())].into();
        assert_eq!((of_labels(&known(), &labels), of_labels(&known(), &BTreeMap::new())), ("a100", ""));
    }
}
