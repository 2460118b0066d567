//! The limits that everything in a process shares.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use crate::limit::{LimitUsage, OriginLimit};
use crate::rate::Rate;
use crate::url::Scheme;

/// The most requests in flight to an origin, unless configured otherwise. They fill 2.8 GB/s with files of 111 KB at
/// 40 ms.
pub const CONCURRENCY: usize = 1024;

/// The most reads in flight from folders. Each takes a thread, and a disk queues its requests itself.
const FOLDER_CONCURRENCY: usize = 64;

/// Caps on bytes per second; `None`: none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RateCaps {
    /// Of everything that is read from one origin.
    pub origin: Option<u64>,
    /// Of everything that warm-ups fetch, from all origins together.
    pub warming: Option<u64>,
}

/// The limits of a process: of the requests to each origin, which all of its datasets, tenants and renewed credentials
/// share, and of the bytes per second. Clones share the limits.
#[derive(Clone)]
pub struct SharedLimits(Arc<Inner>);

struct Inner {
    most: usize,
    caps: RateCaps,
    warming: Option<Arc<Rate>>,
    /// By scheme, and server with bucket or account. The last open origin that uses an entry drops its limit.
    origins: Mutex<HashMap<(Scheme, String), Weak<OriginLimit>>>,
}

impl SharedLimits {
    /// At most `most` requests in flight to an origin, and these caps.
    pub fn new(most: usize, caps: RateCaps) -> Self {
        let warming = caps.warming.map(|bytes_per_second| Arc::new(Rate::new(bytes_per_second)));
        Self(Arc::new(Inner { most, caps, warming, origins: Mutex::default() }))
    }

    /// The cap on the bytes of warm-ups.
    pub fn warming(&self) -> Option<Arc<Rate>> {
        self.0.warming.clone()
    }

    /// How the origins in use are used now, summed for each scheme.
    pub fn usage(&self) -> Vec<(Scheme, LimitUsage)> {
        let origins = self.0.origins.lock().unwrap_or_else(PoisonError::into_inner);
        let limits: Vec<_> =
            origins.iter().filter_map(|((scheme, _), limit)| Some((*scheme, limit.upgrade()?))).collect();
        drop(origins);
        let mut usage: Vec<(Scheme, LimitUsage)> = Vec::new();
        for (scheme, limit) in limits {
            let LimitUsage { places, in_flight, waiting } = limit.usage();
            let at = usage.iter().position(|(other, _)| *other == scheme).unwrap_or_else(|| {
                usage.push((scheme, LimitUsage::default()));
                usage.len() - 1
            });
            let sum = &mut usage[at].1;
            sum.places += places;
            sum.in_flight += in_flight;
            sum.waiting += waiting;
        }
        usage
    }

    /// The most requests in flight to an origin.
    pub(crate) fn most(&self) -> usize {
        self.0.most
    }

    /// The limit of the origin at `place`.
    pub(crate) fn of(&self, scheme: Scheme, place: String) -> Arc<OriginLimit> {
        let Inner { most, caps, origins, .. } = &*self.0;
        let key = (scheme, place);
        let mut origins = origins.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(limit) = origins.get(&key).and_then(Weak::upgrade) {
            return limit;
        }
        origins.retain(|_, limit| limit.strong_count() > 0);
        let rate = caps.origin.map(Rate::new);
        let limit = match scheme {
            Scheme::S3 | Scheme::Gcs | Scheme::Azure => OriginLimit::adaptive(*most, rate),
            Scheme::Folder => OriginLimit::fixed(FOLDER_CONCURRENCY.min(*most), rate),
        };
        origins.insert(key, Arc::downgrade(&limit));
        limit
    }
}

impl Default for SharedLimits {
    fn default() -> Self {
        Self::new(CONCURRENCY, RateCaps::default())
    }
}

impl fmt::Debug for SharedLimits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SharedLimits").field("most", &self.0.most).field("caps", &self.0.caps).finish_non_exhaustive()
    }
}
