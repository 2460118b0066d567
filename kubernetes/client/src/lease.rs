//! One controller acts at a time: the holder of a Lease. A holder that cannot renew it ends its process, so that it
//! does not act beside its successor.

use std::time::{Duration, SystemTime};

use anyhow::bail;
use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use k8s_openapi::jiff::Timestamp;
use kube::api::{ObjectMeta, PostParams};
use kube::{Api, Client, Error};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

/// How long a lease counts after it was renewed.
const LASTS: Duration = Duration::from_secs(15);

/// A holder that could not renew for this long gives up, before others may take over: they count from when they saw the
/// last renewal, which is not before it was sent.
const GIVES_UP: Duration = Duration::from_secs(10);

/// How often a holder renews, and the others look.
const EVERY: Duration = Duration::from_secs(2);

/// How soon a renewal that failed is tried again.
const AGAIN: Duration = Duration::from_secs(1);

/// The longest that one request may take.
const REQUEST: Duration = Duration::from_secs(3);

/// A Lease.
#[derive(Clone)]
pub struct Election {
    api: Api<Lease>,
    name: String,
    identity: String,
}

impl Election {
    /// The lease `name` of a namespace, for the process called `identity`.
    pub fn new(client: Client, namespace: &str, name: &str, identity: &str) -> Self {
        Self { api: Api::namespaced(client, namespace), name: name.to_owned(), identity: identity.to_owned() }
    }

    /// Waits until this process holds the lease. Returns when that was asked for. Errors of the API are tried again.
    pub async fn win(&self) -> Instant {
        // Clocks of machines differ: another's lease has run out when it did not change for as long as it lasts here.
        let mut seen: Option<(LeaseSpec, Instant)> = None;
        loop {
            let sent = Instant::now();
            match tokio::time::timeout(REQUEST, self.try_to_take(&mut seen)).await {
                Ok(Ok(true)) => {
                    info!(lease = self.name, identity = self.identity, "this controller acts from now on");
                    return sent;
                }
                Ok(Ok(false)) | Err(_) => {}
                Ok(Err(error)) => warn!(lease = self.name, %error, "the lease cannot be taken; it is tried again"),
            }
            tokio::time::sleep(EVERY).await;
        }
    }

    async fn try_to_take(&self, seen: &mut Option<(LeaseSpec, Instant)>) -> Result<bool, Error> {
        let Some(mut lease) = self.api.get_opt(&self.name).await? else {
            let metadata = ObjectMeta { name: Some(self.name.clone()), ..ObjectMeta::default() };
            let lease = Lease { metadata, spec: Some(self.held(0)) };
            return taken(self.api.create(&PostParams::default(), &lease).await);
        };
        let spec = lease.spec.clone().unwrap_or_default();
        let holder = spec.holder_identity.clone().unwrap_or_default();
        if !holder.is_empty() && holder != self.identity {
            let since = match seen {
                Some((before, since)) if *before == spec => *since,
                _ => seen.insert((spec.clone(), Instant::now())).1,
            };
            if since.elapsed() < LASTS {
                return Ok(false);
            }
        }
        lease.spec = Some(self.held(spec.lease_transitions.unwrap_or(0).saturating_add(1)));
        // With the resource version that was read: of two that try, one succeeds.
        taken(self.api.replace(&self.name, &PostParams::default(), &lease).await)
    }

    fn held(&self, transitions: i32) -> LeaseSpec {
        LeaseSpec {
            holder_identity: Some(self.identity.clone()),
            lease_duration_seconds: Some(LASTS.as_secs() as i32),
            acquire_time: Some(now()),
            renew_time: Some(now()),
            lease_transitions: Some(transitions),
            ..LeaseSpec::default()
        }
    }

    /// Renews the lease, which was taken `since` then, until `stop`, and then gives it back. Errors: it is lost.
    pub async fn hold(&self, since: Instant, stop: CancellationToken) -> anyhow::Result<()> {
        // When the last renewal that succeeded was sent.
        let mut renewed = since;
        let mut pause = EVERY;
        loop {
            let ends = renewed + GIVES_UP;
            tokio::select! {
                () = tokio::time::sleep_until(ends.min(Instant::now() + pause)) => {}
                () = stop.cancelled() => {
                    let _ = tokio::time::timeout(REQUEST, self.renew(true)).await;
                    return Ok(());
                }
            }
            let sent = Instant::now();
            pause = AGAIN;
            match tokio::time::timeout_at(ends.min(sent + REQUEST), self.renew(false)).await {
                Ok(Ok(true)) => (renewed, pause) = (sent, EVERY),
                Ok(Ok(false)) => bail!("the lease {} is another controller's now", self.name),
                Ok(Err(error)) => warn!(lease = self.name, %error, "the lease could not be renewed"),
                Err(_) => warn!(lease = self.name, "the API server did not answer in time"),
            }
            if renewed.elapsed() >= GIVES_UP {
                bail!("the lease {} could not be renewed for {} s", self.name, GIVES_UP.as_secs());
            }
        }
    }

    /// False if it is not ours.
    async fn renew(&self, give_back: bool) -> Result<bool, Error> {
        let mut lease = self.api.get(&self.name).await?;
        let spec = lease.spec.get_or_insert_default();
        if spec.holder_identity.as_ref() != Some(&self.identity) {
            return Ok(false);
        }
        spec.renew_time = Some(now());
        if give_back {
            spec.holder_identity = Some(String::new());
        }
        self.api.replace(&self.name, &PostParams::default(), &lease).await.map(|_| true)
    }
}

/// Whether a write took the lease; a conflict means that another was faster.
fn taken(written: Result<Lease, Error>) -> Result<bool, Error> {
    match written {
        Ok(_) => Ok(true),
        Err(Error::Api(status)) if status.code == 409 => Ok(false),
        Err(error) => Err(error),
    }
}

fn now() -> MicroTime {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let micros = i64::try_from(since.as_micros()).unwrap_or(i64::MAX);
    MicroTime(Timestamp::from_microsecond(micros).unwrap_or(Timestamp::MAX))
}
