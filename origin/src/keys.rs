//! Ways to keys that expire.

use std::error::Error;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use chrono::TimeDelta;
use object_store::aws::AwsCredential;

/// Keys that live shorter than this are a failure. If they were taken, the next would be requested at once, endlessly.
const LIFETIME_LEAST: Duration = Duration::from_secs(1);

/// Keys without a known expiry, and keys that live longer, are renewed after this time: the longest lifetime that STS
/// gives.
const LIFETIME_MOST: Duration = Duration::from_secs(36 * 3600);

/// Why keys were not obtained. Never contains a key or a token.
#[derive(Clone, Debug, thiserror::Error)]
pub(crate) enum SessionError {
    /// The identity is refused. A person must change something, or a new token must come.
    #[error("{0}")]
    Refused(String),
    /// No answer, or one that means nothing. Another attempt may succeed.
    #[error("{0}")]
    Failed(String, #[source] Option<Arc<dyn Error + Send + Sync>>),
}

impl SessionError {
    pub(crate) fn failed(said: impl Into<String>) -> Self {
        Self::Failed(said.into(), None)
    }

    pub(crate) fn failed_by(said: impl Into<String>, source: impl Error + Send + Sync + 'static) -> Self {
        Self::Failed(said.into(), Some(Arc::new(source)))
    }
}

/// Keys that were obtained just now.
pub(crate) struct Fresh<C = AwsCredential> {
    credential: C,
    lifetime: Duration,
}

impl<C> Fresh<C> {
    /// Keys with the time that is left until they expire; `None` if that is unknown. The error continues a sentence
    /// that begins with the name of their giver.
    pub(crate) fn new(credential: C, left: Option<TimeDelta>) -> Result<Self, String> {
        let lifetime = left.map_or(LIFETIME_MOST, |left| left.to_std().unwrap_or_default()).min(LIFETIME_MOST);
        if lifetime < LIFETIME_LEAST {
            return Err(format!("gave keys that expire within {LIFETIME_LEAST:?}: is a clock wrong (NTP)?"));
        }
        Ok(Self { credential, lifetime })
    }

    /// The keys, and how long they are valid.
    pub(crate) fn into_parts(self) -> (C, Duration) {
        (self.credential, self.lifetime)
    }
}

/// A way to keys that expire: AWS's, unless others are named. `Debug` shows no secret.
#[async_trait]
pub(crate) trait Exchange<C: 'static = AwsCredential>: fmt::Debug + Send + Sync + 'static {
    /// Obtains new keys. Ends within a bounded time.
    async fn obtain(&self) -> Result<Fresh<C>, SessionError>;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_that_expire_at_once_are_a_failure_and_others_are_renewed_in_time() {
        let lifetime = |left| {
            let credential = AwsCredential { key_id: "A".into(), secret_key: "hunter2".into(), token: None };
            Fresh::new(credential, left).map(|fresh| fresh.into_parts().1)
        };
        for left in [TimeDelta::MIN, TimeDelta::seconds(-60), TimeDelta::zero(), TimeDelta::milliseconds(999)] {
            let error = lifetime(Some(left)).unwrap_err();
            assert!(error.contains("expire within 1s") && error.contains("clock"), "{left}: {error}");
        }
        assert_eq!(lifetime(Some(TimeDelta::seconds(3))), Ok(Duration::from_secs(3)));
        assert_eq!((lifetime(None), lifetime(Some(TimeDelta::MAX))), (Ok(LIFETIME_MOST), Ok(LIFETIME_MOST)));
    }
}
