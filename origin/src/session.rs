//! Keys that expire, and their renewal.
//!
//! A [`Session`] holds the newest keys that an [`Exchange`] obtained. They are renewed in the background once three
//! quarters of their life are over, so that no request waits for that. If a renewal fails, the keys are used until they
//! expire; the attempts go on with pauses that grow. [`Sessions`] gives the origins of one identity one session, so
//! that a new token does not throw away keys that are still valid.
//!
//! Invariant: no error and no `Debug` shows a key or a token.

use std::any::Any;
use std::collections::HashMap;
use std::fmt;
use std::panic::AssertUnwindSafe;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use async_trait::async_trait;
use futures::FutureExt;
use larder_dataset::Chain;
use object_store::CredentialProvider;
use object_store::aws::AwsCredential;
use tokio::sync::watch;
use tokio::time::Instant;

use crate::keys::{Exchange, Fresh, SessionError};

/// Keys are not used for this long before they expire: a request may be on its way for a while.
const MARGIN: Duration = Duration::from_secs(10);

/// The pause after a failed attempt. It doubles up to [`PAUSE_MAX`].
const PAUSE: Duration = Duration::from_secs(1);
const PAUSE_MAX: Duration = Duration::from_secs(60);

/// The keys of one identity: AWS's, unless others are named. Clones of the `Arc` share them.
pub(crate) struct Session<C: 'static = AwsCredential> {
    state: Mutex<State<C>>,
}

struct State<C: 'static> {
    /// The way to new keys.
    exchange: Arc<dyn Exchange<C>>,
    /// The way by which the last keys came.
    worked: Option<Arc<dyn Exchange<C>>>,
    keys: Option<Keys<C>>,
    failure: Option<Failure>,
    /// Its sender is dropped at the end of the attempt that is under way.
    attempt: Option<watch::Receiver<()>>,
}

struct Keys<C> {
    credential: Arc<C>,
    renew: Instant,
    expire: Instant,
    /// The origin has answered a request that was signed with them.
    work: bool,
}

struct Failure {
    error: SessionError,
    count: u32,
    /// When the next attempt is made.
    again: Instant,
}

impl<C: Send + Sync + 'static> fmt::Debug for Session<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Session").field("exchange", &self.lock().exchange).finish_non_exhaustive()
    }
}

impl<C: Send + Sync + 'static> Session<C> {
    pub(crate) fn new(exchange: Arc<dyn Exchange<C>>) -> Arc<Self> {
        let state = State { exchange, worked: None, keys: None, failure: None, attempt: None };
        Arc::new(Self { state: Mutex::new(state) })
    }

    fn lock(&self) -> MutexGuard<'_, State<C>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Obtains the next keys in another way. Those that are there stay in use until then.
    fn exchange_by(&self, exchange: Arc<dyn Exchange<C>>) {
        let mut state = self.lock();
        state.exchange = exchange;
        state.failure = None;
    }

    /// The attempt that is under way, or a new one.
    fn attempt(self: &Arc<Self>, state: &mut State<C>) -> watch::Receiver<()> {
        if let Some(attempt) = state.attempt.as_ref().filter(|attempt| attempt.has_changed().is_ok()) {
            return attempt.clone();
        }
        let (done, attempt) = watch::channel(());
        state.attempt = Some(attempt.clone());
        let (session, exchange) = (Arc::clone(self), Arc::clone(&state.exchange));
        let worked = state.worked.clone().filter(|worked| !Arc::ptr_eq(worked, &exchange));
        // A task of its own: a caller that stops waiting must not stop it.
        tokio::spawn(async move {
            let _done = done;
            // A panic is a failure: without its pause, the callers would begin the next attempt at once, without end.
            let outcome = AssertUnwindSafe(exchange.obtain()).catch_unwind().await;
            let outcome = outcome.unwrap_or_else(|_| Err(SessionError::failed("the attempt to obtain keys panicked")));
            session.ended(exchange, outcome);
            // Another pod's token may still be accepted though this one's is not any more.
            if let Some(worked) = worked.filter(|_| session.is_refused())
                && let Ok(fresh) = worked.obtain().await
            {
                session.ended(worked, Ok(fresh));
            }
        });
        attempt
    }

    fn is_refused(&self) -> bool {
        matches!(&self.lock().failure, Some(Failure { error: SessionError::Refused(_), .. }))
    }

    fn ended(&self, exchange: Arc<dyn Exchange<C>>, outcome: Result<Fresh<C>, SessionError>) {
        let mut state = self.lock();
        match outcome {
            Ok(fresh) => {
                let (now, (credential, lifetime)) = (Instant::now(), fresh.into_parts());
                state.keys = Some(Keys {
                    credential: Arc::new(credential),
                    renew: now + lifetime * 3 / 4,
                    expire: now + lifetime.saturating_sub(MARGIN.min(lifetime / 10)),
                    work: false,
                });
                state.worked = Some(exchange);
                if state.failure.take().is_some() {
                    tracing::info!("keys of an origin are renewed again");
                }
            }
            // It was replaced meanwhile, so its failure says nothing about the next attempt.
            Err(_) if !Arc::ptr_eq(&exchange, &state.exchange) => {}
            Err(error) => {
                let count = state.failure.as_ref().map_or(0, |failure| failure.count);
                if count == 0 {
                    tracing::warn!(error = %Chain(&error), "keys of an origin cannot be obtained; trying again");
                }
                let pause = PAUSE.saturating_mul(1 << count.min(10)).min(PAUSE_MAX);
                state.failure = Some(Failure { error, count: count + 1, again: Instant::now() + pause });
            }
        }
    }

    /// Notes that the origin has answered a request with these keys.
    pub(crate) fn trust(&self, used: &Arc<C>) {
        let mut state = self.lock();
        if let Some(keys) = state.keys.as_mut().filter(|keys| Arc::ptr_eq(&keys.credential, used)) {
            keys.work = true;
        }
    }

    /// Gives up keys that the origin has refused before they expired, such as those of a revoked session. True if
    /// another attempt would be made with others. Keys that never worked are kept: the next would be refused, too.
    pub(crate) fn distrust(&self, used: &Arc<C>) -> bool {
        let mut state = self.lock();
        let is_kept = state.keys.as_ref().is_some_and(|keys| Arc::ptr_eq(&keys.credential, used) && !keys.work);
        state.keys.take_if(|keys| Arc::ptr_eq(&keys.credential, used) && keys.work);
        !is_kept
    }

    /// Why there are no valid keys, if the last attempt failed. Makes another one in the background if it is time, so
    /// that this changes though nobody reads.
    fn trouble(self: &Arc<Self>) -> Option<String> {
        let mut state = self.lock();
        let now = Instant::now();
        let failure = state.failure.as_ref().filter(|_| state.keys.as_ref().is_none_or(|keys| now >= keys.expire))?;
        let (trouble, is_time) = (Chain(&failure.error).to_string(), now >= failure.again);
        if is_time {
            self.attempt(&mut state);
        }
        Some(trouble)
    }

    /// Keys that are valid. Waits for them only if there are none.
    pub(crate) async fn credential(self: &Arc<Self>) -> Result<Arc<C>, SessionError> {
        loop {
            let mut attempt = {
                let mut state = self.lock();
                let now = Instant::now();
                let pausing = state.failure.as_ref().filter(|failure| now < failure.again);
                let pausing = pausing.map(|failure| failure.error.clone());
                let valid = state.keys.as_ref().filter(|keys| now < keys.expire);
                if let Some((credential, renew)) = valid.map(|keys| (Arc::clone(&keys.credential), keys.renew)) {
                    if now >= renew && pausing.is_none() {
                        self.attempt(&mut state);
                    }
                    return Ok(credential);
                }
                match pausing {
                    Some(error) => return Err(error),
                    None => self.attempt(&mut state),
                }
            };
            // Fails at the end of the attempt, since nothing is ever sent.
            let _ = attempt.changed().await;
        }
    }
}

/// A session as object_store's client of S3 uses it.
#[derive(Clone, Debug)]
pub(crate) struct SessionProvider(pub(crate) Arc<Session>);

#[async_trait]
impl CredentialProvider for SessionProvider {
    type Credential = AwsCredential;

    async fn get_credential(&self) -> object_store::Result<Arc<AwsCredential>> {
        let credential = self.0.credential().await;
        credential.map_err(|error| object_store::Error::Generic { store: "S3", source: Box::new(error) })
    }
}

/// The sessions of a process, by identity. A session lives as long as an origin uses it. Clones share them.
#[derive(Clone, Default)]
pub struct Sessions(Arc<Mutex<HashMap<Identity, Weak<dyn AnySession>>>>);

/// A session with keys of any kind.
trait AnySession: Send + Sync {
    fn into_any(self: Arc<Self>) -> Arc<dyn Any + Send + Sync>;

    /// See [`Session::trouble`].
    fn why_no_keys(self: Arc<Self>) -> Option<String>;
}

impl<C: Send + Sync + 'static> AnySession for Session<C> {
    fn into_any(self: Arc<Self>) -> Arc<dyn Any + Send + Sync> {
        self
    }

    fn why_no_keys(self: Arc<Self>) -> Option<String> {
        self.trouble()
    }
}

/// The identity that a session belongs to.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Identity {
    /// The URL of the server that gives the keys.
    pub(crate) sts: String,
    /// The name of whose keys they are.
    pub(crate) role: String,
    /// The owner of what is read with the keys.
    pub(crate) owner: String,
}

impl Sessions {
    /// The session of an identity, which obtains its next keys by `exchange`.
    pub(crate) fn of<C: Send + Sync + 'static>(
        &self,
        identity: Identity,
        exchange: Arc<dyn Exchange<C>>,
    ) -> Arc<Session<C>> {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let found = all.get(&identity).and_then(Weak::upgrade).map(AnySession::into_any);
        if let Some(Ok(session)) = found.map(|found| found.downcast::<Session<C>>()) {
            session.exchange_by(exchange);
            return session;
        }
        all.retain(|_, session| session.strong_count() > 0);
        let session = Session::new(exchange);
        let any: Arc<dyn AnySession> = Arc::<Session<C>>::clone(&session);
        all.insert(identity, Arc::downgrade(&any));
        session
    }

    /// Why an owner has no valid keys, if its STS does not give any: what is not cached is denied to its readers. Must
    /// be called within a runtime.
    pub fn trouble(&self, owner: &str) -> Option<String> {
        let all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let of_owner = all.iter().filter(|(identity, _)| identity.owner == owner);
        let sessions: Vec<_> = of_owner.filter_map(|(_, session)| session.upgrade()).collect();
        drop(all);
        sessions.into_iter().find_map(AnySession::why_no_keys)
    }
}

impl fmt::Debug for Sessions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        f.debug_tuple("Sessions").field(&all.len()).finish()
    }
}

#[cfg(test)]
mod tests;
