use std::sync::atomic::{AtomicUsize, Ordering};

use chrono::TimeDelta;

use super::*;

/// Gives keys of one name, or fails.
struct Script {
    outcome: Mutex<Result<(&'static str, u64), SessionError>>,
    /// How long an attempt takes.
    takes: Duration,
    attempts: AtomicUsize,
}

impl fmt::Debug for Script {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Script")
    }
}

impl Script {
    /// Keys that live for this many seconds.
    fn keys(name: &'static str, seconds: u64) -> Arc<Self> {
        Self::with(Ok((name, seconds)))
    }

    fn with(outcome: Result<(&'static str, u64), SessionError>) -> Arc<Self> {
        Arc::new(Self { outcome: Mutex::new(outcome), takes: Duration::ZERO, attempts: AtomicUsize::new(0) })
    }

    fn set(&self, outcome: Result<(&'static str, u64), SessionError>) {
        *self.outcome.lock().expect("the lock") = outcome;
    }

    fn attempts(&self) -> usize {
        self.attempts.load(Ordering::Relaxed)
    }
}

#[async_trait]
impl Exchange for Script {
    async fn obtain(&self) -> Result<Fresh, SessionError> {
        self.attempts.fetch_add(1, Ordering::Relaxed);
        if !self.takes.is_zero() {
            tokio::time::sleep(self.takes).await;
        }
        let (name, seconds) = self.outcome.lock().expect("the lock").clone()?;
        let credential = AwsCredential { key_id: name.to_owned(), secret_key: "hunter2".to_owned(), token: None };
        let left = TimeDelta::from_std(Duration::from_secs(seconds)).expect("a short time");
        Fresh::new(credential, Some(left)).map_err(SessionError::failed)
    }
}

fn failed() -> Result<(&'static str, u64), SessionError> {
    Err(SessionError::failed("no answer"))
}

fn refused() -> Result<(&'static str, u64), SessionError> {
    Err(SessionError::Refused("not you".to_owned()))
}

fn identity(role: &str) -> Identity {
    Identity { sts: "https://sts".to_owned(), role: role.to_owned(), owner: format!("owner of {role}") }
}

/// The name of the keys, or the error's text. Background work that began meanwhile has ended when this returns.
async fn used(session: &Arc<Session>) -> String {
    let used = session.credential().await.map_or_else(|error| error.to_string(), |keys| keys.key_id.clone());
    seconds(0.001).await;
    used
}

async fn seconds(seconds: f64) {
    tokio::time::sleep(Duration::from_secs_f64(seconds)).await;
}

// SEMANTICS: K24
#[tokio::test(start_paused = true)]
async fn keys_are_renewed_in_the_background_and_used_until_they_expire() {
    let script = Script::keys("first", 3600);
    let session = Session::new(Arc::clone(&script) as Arc<dyn Exchange>);
    assert_eq!(used(&session).await, "first");
    seconds(2699.0).await;
    assert_eq!((used(&session).await, script.attempts()), ("first".to_owned(), 1));
    script.set(failed());
    seconds(1.0).await;
    assert_eq!((used(&session).await, script.attempts()), ("first".to_owned(), 2), "three quarters are over");
    assert_eq!((used(&session).await, script.attempts()), ("first".to_owned(), 2), "it pauses");
    seconds(889.0).await;
    assert_eq!(used(&session).await, "first", "valid for 10 s more");
    seconds(2.0).await;
    assert_eq!(used(&session).await, "no answer");
    script.set(Ok(("second", 3600)));
    seconds(60.0).await;
    assert_eq!(used(&session).await, "second");
}

#[tokio::test(start_paused = true)]
async fn a_renewal_in_time_is_never_waited_for() {
    let script = Script { takes: Duration::from_secs(5), ..Arc::into_inner(Script::keys("first", 100)).expect("one") };
    let script = Arc::new(script);
    let session = Session::new(Arc::clone(&script) as Arc<dyn Exchange>);
    assert_eq!(used(&session).await, "first");
    script.set(Ok(("second", 100)));
    seconds(76.0).await;
    let asked = Instant::now();
    assert_eq!(session.credential().await.expect("keys").key_id, "first");
    assert_eq!(asked.elapsed(), Duration::ZERO);
    seconds(6.0).await;
    assert_eq!((used(&session).await, script.attempts()), ("second".to_owned(), 2));
}

#[tokio::test(start_paused = true)]
async fn many_callers_make_one_attempt_and_one_that_leaves_does_not_stop_it() {
    let script = Script { takes: Duration::from_secs(5), ..Arc::into_inner(Script::keys("first", 100)).expect("one") };
    let script = Arc::new(script);
    let session = Session::new(Arc::clone(&script) as Arc<dyn Exchange>);
    let leaves = tokio::time::timeout(Duration::from_secs(1), session.credential());
    let callers = futures::future::join_all((0..10).map(|_| session.credential()));
    let (left, stayed) = tokio::join!(leaves, callers);
    assert!(left.is_err() && stayed.iter().all(Result::is_ok));
    assert_eq!(script.attempts(), 1);
}

#[tokio::test(start_paused = true)]
async fn failed_attempts_are_made_with_pauses_that_grow() {
    for outcome in [failed(), refused()] {
        let script = Script::with(outcome);
        let session = Session::new(Arc::clone(&script) as Arc<dyn Exchange>);
        for _ in 0..3600 {
            assert!(session.credential().await.is_err());
            seconds(1.0).await;
        }
        let attempts = script.attempts();
        assert!((50..=75).contains(&attempts), "{attempts} in an hour: after 1, 2, 4 … 60 s");
    }
}

#[derive(Debug)]
struct Panics;

#[async_trait]
impl Exchange for Panics {
    async fn obtain(&self) -> Result<Fresh, SessionError> {
        panic!("an attempt panics")
    }
}

#[tokio::test(start_paused = true)]
async fn an_attempt_that_gives_keys_for_no_time_or_panics_has_failed_and_pauses() {
    let expired = Script::keys("expired", 0);
    let ways = [(Arc::clone(&expired) as Arc<dyn Exchange>, "expire within 1s"), (Arc::new(Panics), "panicked")];
    for (exchange, words) in ways {
        let sessions = Sessions::default();
        let session = sessions.of(identity("role"), exchange);
        for _ in 0..2 {
            let others = async {
                for _ in 0..1000 {
                    tokio::task::yield_now().await;
                }
            };
            tokio::select! {
                keys = session.credential() => assert!(keys.unwrap_err().to_string().contains(words)),
                () = others => panic!("{words}: attempts without a pause"),
            }
        }
        assert!(sessions.trouble("owner of role").is_some_and(|trouble| trouble.contains(words)));
    }
    assert_eq!(expired.attempts(), 1);
}

#[tokio::test(start_paused = true)]
async fn an_owner_hears_of_the_cause_of_a_failure() {
    let cause = std::io::Error::other("no route to host");
    let (sessions, script) =
        (Sessions::default(), Script::with(Err(SessionError::failed_by("cannot be reached", cause))));
    let session = sessions.of(identity("role"), script);
    assert_eq!(used(&session).await, "cannot be reached");
    assert_eq!(sessions.trouble("owner of role").as_deref(), Some("cannot be reached: no route to host"));
}

// SEMANTICS: K24
#[tokio::test(start_paused = true)]
async fn a_new_token_keeps_the_keys_and_is_used_for_the_next() {
    let (sessions, old, new) = (Sessions::default(), Script::keys("old", 100), Script::keys("new", 100));
    let session = sessions.of(identity("role"), Arc::clone(&old) as Arc<dyn Exchange>);
    assert_eq!(used(&session).await, "old");
    let same = sessions.of(identity("role"), Arc::clone(&new) as Arc<dyn Exchange>);
    assert!(Arc::ptr_eq(&session, &same));
    assert_eq!((used(&session).await, new.attempts()), ("old".to_owned(), 0));
    seconds(76.0).await;
    assert_eq!(used(&session).await, "old");
    assert_eq!((used(&session).await, old.attempts(), new.attempts()), ("new".to_owned(), 1, 1));
    let other = sessions.of(identity("another"), Script::keys("other", 100));
    assert_eq!((used(&other).await, used(&session).await), ("other".to_owned(), "new".to_owned()));
}

// SEMANTICS: K24
#[tokio::test(start_paused = true)]
async fn a_token_that_is_refused_leaves_the_session_with_the_one_that_worked() {
    let (sessions, good, bad) = (Sessions::default(), Script::keys("good", 100), Script::with(refused()));
    let session = sessions.of(identity("role"), Arc::clone(&good) as Arc<dyn Exchange>);
    assert_eq!(used(&session).await, "good");
    sessions.of(identity("role"), Arc::clone(&bad) as Arc<dyn Exchange>);
    good.set(Ok(("good again", 100)));
    seconds(80.0).await;
    assert_eq!(used(&session).await, "good");
    assert_eq!((used(&session).await, bad.attempts()), ("good again".to_owned(), 1));
    // Neither works any more.
    good.set(refused());
    seconds(100.0).await;
    assert_eq!(used(&session).await, "not you");
}

#[tokio::test(start_paused = true)]
async fn a_new_token_is_tried_at_once_after_a_failure() {
    let sessions = Sessions::default();
    let session = sessions.of(identity("role"), Script::with(refused()));
    assert_eq!(used(&session).await, "not you");
    let good = Script::keys("good", 100);
    sessions.of(identity("role"), Arc::clone(&good) as Arc<dyn Exchange>);
    assert_eq!(used(&session).await, "good");
}

#[tokio::test(start_paused = true)]
async fn a_session_ends_with_its_last_origin_and_shows_no_key() {
    let sessions = Sessions::default();
    let session = sessions.of(identity("role"), Script::keys("first", 100));
    assert_eq!(used(&session).await, "first");
    assert!(!format!("{session:?} {sessions:?}").contains("hunter2"));
    drop(session);
    let next = sessions.of(identity("role"), Script::keys("second", 100));
    assert_eq!(used(&next).await, "second");
}

// SEMANTICS: K24
#[tokio::test(start_paused = true)]
async fn an_owner_hears_of_trouble_while_it_has_no_keys_though_nobody_reads() {
    let (sessions, script) = (Sessions::default(), Script::keys("first", 100));
    let trouble = async || {
        let trouble = sessions.trouble("owner of role");
        seconds(0.001).await;
        trouble
    };
    assert_eq!(trouble().await, None, "there is no session");
    let session = sessions.of(identity("role"), Arc::clone(&script) as Arc<dyn Exchange>);
    assert_eq!(used(&session).await, "first");
    script.set(failed());
    seconds(80.0).await;
    assert_eq!(used(&session).await, "first");
    assert_eq!((trouble().await, script.attempts()), (None, 2), "the keys are valid");
    seconds(15.0).await;
    assert_eq!(trouble().await.as_deref(), Some("no answer"));
    assert_eq!(sessions.trouble("owner of another"), None);
    script.set(Ok(("second", 100)));
    seconds(60.0).await;
    assert_eq!(trouble().await.as_deref(), Some("no answer"), "an attempt begins");
    assert_eq!((trouble().await, used(&session).await), (None, "second".to_owned()));
}
