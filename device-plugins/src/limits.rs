//! Limits of containers: what a resource allows, what a pod asks for instead, and what this host can keep.
//!
//! The cast: a [`Wish`] is a pod's annotation; [`effective`] lowers a resource's limits by it; [`line()`] is what the hook gets for
//! an HCA, and [`max()`] the part of it that is the same for all; [`host`] looks whether this host can keep limits, and puts the hook there.
//!
//! Invariant: a wish lowers limits that a resource has. It never raises one, and is never left unkept in silence.

pub mod host;
mod wish;

use larder_rdma_limit::{Line, Max};

pub use wish::{Unreadable, Wish};

use crate::config::{Limits, ResourceName};
use crate::names::LIMITS_ANNOTATION;

/// A wish that is not lower than what a resource allows.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TooHigh {
    /// The resource allows less.
    #[error(
        "the pod's annotation {LIMITS_ANNOTATION} asks for {name}={wish}, and {resource} allows {limit}: ask for less, or leave it out"
    )]
    Above {
        /// Of the annotation.
        name: &'static str,
        /// What the pod asks for.
        wish: u64,
        /// What the resource allows.
        limit: u64,
        /// The resource.
        resource: ResourceName,
    },
    /// The resource has no such limit, so nothing would keep a lower one.
    #[error(
        "the pod's annotation {LIMITS_ANNOTATION} asks for {name}={wish}, and {resource} has no such limit that it could lower: leave it out"
    )]
    NoLimit {
        /// Of the annotation.
        name: &'static str,
        /// What the pod asks for.
        wish: u64,
        /// The resource.
        resource: ResourceName,
    },
}

/// The limits of a container: those of its resource, lowered by what its pod asks for.
pub fn effective(resource: &ResourceName, limits: Option<Limits>, wish: &Wish) -> Result<Option<Limits>, TooHigh> {
    let lower = |name, wish: Option<u64>, limit: Option<u64>| match (wish, limit) {
        (None, limit) => Ok(limit),
        (Some(wish), Some(limit)) if wish <= limit => Ok(Some(wish)),
        (Some(wish), Some(limit)) => Err(TooHigh::Above { name, wish, limit, resource: resource.clone() }),
        (Some(wish), None) => Err(TooHigh::NoLimit { name, wish, resource: resource.clone() }),
    };
    let count = |name, wish: Option<u32>, limit: Option<u32>| {
        // No limit is above one that fits.
        lower(name, wish.map(u64::from), limit.map(u64::from))
            .map(|count| count.and_then(|count| count.try_into().ok()))
    };
    let of = |limit: fn(Limits) -> Option<u32>| limits.and_then(limit);
    let hca_handles = count("hca_handle", wish.hca_handles, of(|limits| limits.hca_handles))?;
    let hca_objects = count("hca_object", wish.hca_objects, of(|limits| limits.hca_objects))?;
    let memlock = lower("memlock", wish.memlock, limits.and_then(|limits| limits.memlock))?;
    Ok(limits.map(|limits| Limits { hca_handles, hca_objects, memlock, ..limits }))
}

/// What is allowed of each HCA; `None` if its RDMA objects are not limited.
pub fn max(limits: &Limits) -> Option<Max> {
    let max = Max { handles: limits.hca_handles, objects: limits.hca_objects };
    (max != Max::default()).then_some(max)
}

/// The limit of an HCA, as the hook gets it; `None` if the RDMA objects are not limited.
pub fn line(hca: &str, limits: &Limits) -> Option<Line> {
    max(limits).map(|max| Line { device: hca.to_owned(), max })
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: Limits =
        Limits { hca_handles: Some(2), hca_objects: Some(2000), memlock: Some(1 << 30), required: true };

    fn lowered(limits: Option<Limits>, wish: &str) -> Result<Option<Limits>, String> {
        let resource = ResourceName::new("larder.dev/rail").unwrap();
        effective(&resource, limits, &wish.parse().unwrap()).map_err(|error| error.to_string())
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
    fn a_pod_cannot_raise_a_limit_or_ask_for_one_that_nothing_would_keep() {
        let begin = "the pod's annotation rdma.larder.dev/limits asks for ";
        let above = lowered(Some(LIMITS), "hca_object=2001").unwrap_err();
        assert_eq!(
            above,
            format!("{begin}hca_object=2001, and larder.dev/rail allows 2000: ask for less, or leave it out")
        );
        assert!(lowered(Some(LIMITS), "memlock=2Gi").is_err());
        assert!(lowered(Some(LIMITS), "hca_handle=3 hca_object=1").is_err());
        let none = lowered(Some(Limits { hca_handles: None, ..LIMITS }), "hca_handle=1").unwrap_err();
        assert!(none.ends_with("larder.dev/rail has no such limit that it could lower: leave it out"), "{none}");
        assert!(lowered(None, "memlock=1").is_err());
    }

    #[test]
    fn the_line_of_an_hca_has_the_limits_that_there_are() {
        let text = |limits| line("mlx5_2", &limits).map(|line| line.to_string());
        assert_eq!(text(LIMITS).as_deref(), Some("mlx5_2 hca_handle=2 hca_object=2000"));
        assert_eq!(text(Limits { hca_handles: None, ..LIMITS }).as_deref(), Some("mlx5_2 hca_object=2000"));
        assert_eq!(text(Limits { hca_handles: None, hca_objects: None, ..LIMITS }), None);
    }
}
