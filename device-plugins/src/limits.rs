//! Container limits: those of a resource, lower ones that a pod requests, and what this host can enforce.
//!
//! The cast: [`LowerLimits`] is a pod's annotation; [`effective`] lowers a resource's limits by it; [`line()`] is the hook's argument
//! for an HCA, and [`max()`] the part of it that all HCAs share; [`host`] probes whether this host can enforce limits, and installs
//! the hook.
//!
//! Invariant: an annotation only lowers limits that a resource has. One that cannot be enforced is an error, never ignored.

pub mod host;
mod lower;

use larder_rdma_limit::{Line, Max};

pub use lower::{LowerLimits, Unreadable};

use crate::config::{Limits, ResourceName};
use crate::names::LIMITS_ANNOTATION;

/// A requested limit that is not lower than the resource's.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TooHigh {
    /// The resource allows less.
    #[error(
        "the pod's annotation {LIMITS_ANNOTATION} requests {name}={requested}, but {resource} allows {limit}: request less, or omit it"
    )]
    Above {
        /// The name in the annotation.
        name: &'static str,
        requested: u64,
        limit: u64,
        resource: ResourceName,
    },
    /// The resource has no such limit, so nothing would enforce a lower one.
    #[error(
        "the pod's annotation {LIMITS_ANNOTATION} requests {name}={requested}, but {resource} has no such limit to lower: omit it"
    )]
    NoLimit {
        /// The name in the annotation.
        name: &'static str,
        requested: u64,
        resource: ResourceName,
    },
}

/// The limits of a container: those of its resource, lowered by its pod's annotation.
pub fn effective(
    resource: &ResourceName,
    limits: Option<Limits>,
    lower: &LowerLimits,
) -> Result<Option<Limits>, TooHigh> {
    let fit = |name, requested: Option<u64>, limit: Option<u64>| match (requested, limit) {
        (None, limit) => Ok(limit),
        (Some(requested), Some(limit)) if requested <= limit => Ok(Some(requested)),
        (Some(requested), Some(limit)) => Err(TooHigh::Above { name, requested, limit, resource: resource.clone() }),
        (Some(requested), None) => Err(TooHigh::NoLimit { name, requested, resource: resource.clone() }),
    };
    let count = |name, requested: Option<u32>, limit: Option<u32>| {
        // A requested count is at most the limit, which fits in 32 bits.
        fit(name, requested.map(u64::from), limit.map(u64::from))
            .map(|count| count.and_then(|count| count.try_into().ok()))
    };
    let of = |limit: fn(Limits) -> Option<u32>| limits.and_then(limit);
    let hca_handles = count("hca_handle", lower.hca_handles, of(|limits| limits.hca_handles))?;
    let hca_objects = count("hca_object", lower.hca_objects, of(|limits| limits.hca_objects))?;
    let memlock = fit("memlock", lower.memlock, limits.and_then(|limits| limits.memlock))?;
    Ok(limits.map(|limits| Limits { hca_handles, hca_objects, memlock, ..limits }))
}

/// The limits of each HCA; `None` if RDMA objects are not limited.
pub fn max(limits: &Limits) -> Option<Max> {
    let max = Max { handles: limits.hca_handles, objects: limits.hca_objects };
    (max != Max::default()).then_some(max)
}

/// The hook's argument for an HCA; `None` if RDMA objects are not limited.
pub fn line(hca: &str, limits: &Limits) -> Option<Line> {
    max(limits).map(|max| Line { device: hca.to_owned(), max })
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: Limits =
        Limits { hca_handles: Some(2), hca_objects: Some(2000), memlock: Some(1 << 30), required: true };

    fn lowered(limits: Option<Limits>, annotation: &str) -> Result<Option<Limits>, String> {
        let resource = ResourceName::new("larder.dev/rail").unwrap();
        effective(&resource, limits, &annotation.parse().unwrap()).map_err(|error| error.to_string())
    }

    // SEMANTICS: D21
    #[test]
    fn a_pod_lowers_the_limits_of_its_resource() {
        assert_eq!(lowered(Some(LIMITS), ""), Ok(Some(LIMITS)));
        let low = Limits { hca_objects: Some(500), memlock: Some(1 << 29), ..LIMITS };
        assert_eq!(lowered(Some(LIMITS), "hca_object=500 memlock=512Mi"), Ok(Some(low)));
        assert_eq!(lowered(Some(LIMITS), "hca_handle=2 hca_object=2000 memlock=1Gi"), Ok(Some(LIMITS)));
        assert_eq!(lowered(None, ""), Ok(None));
    }

    // SEMANTICS: D21
    #[test]
    fn a_pod_cannot_raise_a_limit_or_request_one_that_nothing_enforces() {
        let begin = "the pod's annotation rdma.larder.dev/limits requests ";
        let above = lowered(Some(LIMITS), "hca_object=2001").unwrap_err();
        assert_eq!(above, format!("{begin}hca_object=2001, but larder.dev/rail allows 2000: request less, or omit it"));
        assert!(lowered(Some(LIMITS), "memlock=2Gi").is_err());
        assert!(lowered(Some(LIMITS), "hca_handle=3 hca_object=1").is_err());
        let none = lowered(Some(Limits { hca_handles: None, ..LIMITS }), "hca_handle=1").unwrap_err();
        assert!(none.ends_with("larder.dev/rail has no such limit to lower: omit it"), "{none}");
        assert!(lowered(None, "memlock=1").is_err());
    }

    #[test]
    fn the_argument_for_an_hca_has_the_limits_of_its_resource() {
        let text = |limits| line("mlx5_2", &limits).map(|line| line.to_string());
        assert_eq!(text(LIMITS).as_deref(), Some("mlx5_2 hca_handle=2 hca_object=2000"));
        assert_eq!(text(Limits { hca_handles: None, ..LIMITS }).as_deref(), Some("mlx5_2 hca_object=2000"));
        assert_eq!(text(Limits { hca_handles: None, hca_objects: None, ..LIMITS }), None);
    }
}
