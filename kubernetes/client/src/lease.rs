//! Leader election: the process that holds a Lease is the leader and acts. A leader that cannot renew the lease must
//! end its process, so that it does not act beside its successor.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use anyhow::bail;
use http::{Method, Request};
use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use k8s_openapi::jiff::Timestamp;
use kube::api::{ObjectMeta, PostParams};
use kube::client::Body;
use kube::{Api, Client, Error};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tower::BoxError;
use tracing::{info, warn};

/// How long a lease is valid after its last renewal.
const LASTS: Duration = Duration::from_secs(15);

/// A leader that could not renew the lease for this long gives up. It is shorter than [`LASTS`], so no other process
/// has taken over by then. The others also start counting later than the leader: the leader counts from when it sent
/// its last renewal, and the others from when they saw it.
const GIVES_UP: Duration = Duration::from_secs(10);

/// How often the leader renews, and how often the others check.
const EVERY: Duration = Duration::from_secs(2);

/// How soon a failed renewal is retried.
const AGAIN: Duration = Duration::from_secs(1);

/// The timeout of one request.
const REQUEST: Duration = Duration::from_secs(3);

/// An election by a Lease.
#[derive(Clone)]
pub struct Election {
    api: Api<Lease>,
    name: String,
    identity: String,
    /// When this process stops acting, unless it renews the lease.
    ends: Arc<Mutex<Instant>>,
}

impl Election {
    /// The election by the lease `name` in `namespace`. `identity` is the name of this process.
    pub fn new(client: Client, namespace: &str, name: &str, identity: &str) -> Self {
        let (api, ends) = (Api::namespaced(client, namespace), Arc::new(Mutex::new(Instant::now())));
        Self { api, name: name.to_owned(), identity: identity.to_owned(), ends }
    }

    /// A client that only reads while this process does not hold the lease. A process that was paused, and goes on
    /// after another one has taken the lease, would otherwise send what it had decided before [`Self::hold`] ends it.
    pub fn guard(&self, client: Client) -> Client {
        let (ends, namespace) = (Arc::clone(&self.ends), client.default_namespace().to_owned());
        let guarded = tower::service_fn(move |request: Request<Body>| {
            let client = client.clone();
            let has_ended = Instant::now() >= *ends.lock().unwrap_or_else(PoisonError::into_inner);
            async move {
                if has_ended && request.method() != Method::GET {
                    return Err(BoxError::from("this process does not hold the lease any more"));
                }
                client.send(request).await.map_err(BoxError::from)
            }
        });
        Client::new(guarded, namespace)
    }

    /// Sets when this process stops acting.
    fn end_at(&self, ends: Instant) {
        *self.ends.lock().unwrap_or_else(PoisonError::into_inner) = ends;
    }

    /// Waits until this process holds the lease. Returns the time at which it sent the request that acquired it. Errors
    /// of the API are retried. Calls `beat` before each attempt, which is every few seconds.
    pub async fn win(&self, beat: impl Fn()) -> Instant {
        // Clocks of machines differ, so the times in the lease are not used. Another process's lease has expired if it
        // has not changed for its duration, measured with this machine's clock.
        let mut seen: Option<(LeaseSpec, Instant)> = None;
        loop {
            beat();
            let sent = Instant::now();
            match tokio::time::timeout(REQUEST, self.try_to_acquire(&mut seen)).await {
                Ok(Ok(true)) => {
                    info!(lease = self.name, identity = self.identity, "acquired the lease");
                    self.end_at(sent + GIVES_UP);
                    return sent;
                }
                Ok(Ok(false)) | Err(_) => {}
                Ok(Err(error)) => warn!(lease = self.name, %error, "cannot acquire the lease; retrying"),
            }
            tokio::time::sleep(EVERY).await;
        }
    }

    async fn try_to_acquire(&self, seen: &mut Option<(LeaseSpec, Instant)>) -> Result<bool, Error> {
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
        // The write carries the resource version that was read, so of two concurrent attempts only one succeeds.
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

    /// Renews the lease, which was acquired at `since`, until `stop`. Then releases it. The clients of [`Self::guard`]
    /// only read from then on.
    ///
    /// # Errors
    /// The lease was lost: another process has it, or it could not be renewed in time.
    pub async fn hold(&self, since: Instant, stop: CancellationToken) -> anyhow::Result<()> {
        // When the last renewal that succeeded was sent.
        let mut renewed = since;
        let mut pause = EVERY;
        loop {
            let ends = renewed + GIVES_UP;
            tokio::select! {
                () = tokio::time::sleep_until(ends.min(Instant::now() + pause)) => {}
                () = stop.cancelled() => {
                    // Another process takes a released lease at once, and this one may still begin writes.
                    self.end_at(Instant::now());
                    let _ = tokio::time::timeout(REQUEST, self.renew(true)).await;
                    return Ok(());
                }
            }
            let sent = Instant::now();
            pause = AGAIN;
            match tokio::time::timeout_at(ends.min(sent + REQUEST), self.renew(false)).await {
                Ok(Ok(true)) => {
                    (renewed, pause) = (sent, EVERY);
                    self.end_at(sent + GIVES_UP);
                }
                Ok(Ok(false)) => {
                    self.end_at(Instant::now());
                    bail!("the lease {} was taken by another process", self.name);
                }
                Ok(Err(error)) => warn!(lease = self.name, %error, "cannot renew the lease; retrying"),
                Err(_) => warn!(lease = self.name, "the API server did not answer in time"),
            }
            if renewed.elapsed() >= GIVES_UP {
                bail!("the lease {} could not be renewed for {} s", self.name, GIVES_UP.as_secs());
            }
        }
    }

    /// Renews the lease, or releases it. Returns false if another process holds it.
    async fn renew(&self, release: bool) -> Result<bool, Error> {
        let mut lease = self.api.get(&self.name).await?;
        let spec = lease.spec.get_or_insert_default();
        if spec.holder_identity.as_ref() != Some(&self.identity) {
            return Ok(false);
        }
        spec.renew_time = Some(now());
        if release {
            spec.holder_identity = Some(String::new());
        }
        self.api.replace(&self.name, &PostParams::default(), &lease).await.map(|_| true)
    }
}

/// True if a write took the lease. A conflict means that another process was faster.
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
