//! Amounts of a flavor. They are listed beside the amounts of all nodes, under names such as `nvidia.com/gpu h100`: no
//! resource has a space in its name.

/// The name of a resource on the nodes of a flavor.
pub fn on(resource: &str, flavor: &str) -> String {
    format!("{resource} {flavor}")
}

/// The resource and the flavor of such a name; no flavor for a resource on all nodes.
pub fn split(name: &str) -> (&str, Option<&str>) {
    match name.split_once(' ') {
        Some((resource, flavor)) => (resource, Some(flavor)),
        None => (name, None),
    }
}
