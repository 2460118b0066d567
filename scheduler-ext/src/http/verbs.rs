//! The scheduler's verbs: turns a request body into an answer, from one snapshot.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use arc_swap::ArcSwap;
use bytes::Bytes;
use tokio::sync::{mpsc, oneshot};
use tracing::warn;

use crate::admin::Counters;
use crate::config::Settings;
use crate::index::state::Snapshot;
use crate::notice::Notice;
use crate::preempt::{case, decide, ledger::Ledger};
use crate::question::ask;
use crate::ring::{Allowance, AskedFor, Note, Ring, Verb, decision};
use crate::wire::{Refused, args, preempt_args};
use crate::{answer, wire};

/// The limit of queued decisions; more are dropped and counted.
const WAITING: usize = 64;

/// How long an answer to preempt that leaves no node waits until it is known how the scheduler has used earlier
/// answers. The scheduler's own timeout is longer (`httpTimeout`).
const SETTLES: Duration = Duration::from_millis(250);
/// The interval at which such an answer is decided again.
const SETTLES_EACH: Duration = Duration::from_millis(10);

/// Why a request cannot be answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Failure {
    /// The objects of the cluster are still being listed.
    NotReady,
    /// The request is not one of the scheduler's.
    Refused(String),
}

impl From<Refused> for Failure {
    fn from(Refused(why): Refused) -> Self {
        Self::Refused(why)
    }
}

/// A message to the task that keeps the decisions.
#[derive(Debug)]
enum Letter {
    Keep(Box<Note>),
    Show(Option<String>, oneshot::Sender<String>),
}

/// Answers the scheduler. Clones share everything.
#[derive(Clone, Debug)]
pub struct Verbs {
    settings: Arc<Settings>,
    shown: Arc<ArcSwap<Snapshot>>,
    counters: Arc<Counters>,
    ledger: Arc<Ledger>,
    letters: mpsc::Sender<Letter>,
}

/// The task that keeps the last decisions.
#[derive(Debug)]
pub struct Keeper {
    letters: mpsc::Receiver<Letter>,
    settings: Arc<Settings>,
    counters: Arc<Counters>,
}

impl Keeper {
    /// Keeps decisions until all senders are dropped. Forwards notices for the users of pods; if too many are queued,
    /// they are dropped.
    pub async fn run(mut self, notices: mpsc::Sender<Notice>) {
        let (mut ring, mut allowance) = (Ring::default(), Allowance::new(Instant::now()));
        let mut warned: Option<Instant> = None;
        while let Some(letter) = self.letters.recv().await {
            match letter {
                Letter::Keep(note) if !note.is_troubled && !allowance.takes(note.nodes, Instant::now()) => {
                    self.counters.decisions_dropped.fetch_add(1, Ordering::Relaxed);
                }
                Letter::Keep(note) => {
                    let Some(decision) = decision(*note, &self.settings) else { continue };
                    if let crate::ring::About::Nodes { question, .. } = &decision.about
                        && let Some(trouble) = &question.trouble
                    {
                        self.counters.troubled.fetch_add(1, Ordering::Relaxed);
                        if let Some(notice) = Notice::about(question) {
                            let _ = notices.try_send(notice);
                        }
                        // The scheduler repeats its requests about a pending pod, so the log line is rate-limited.
                        if warned.is_none_or(|warned| warned.elapsed() > Duration::from_secs(10)) {
                            warn!(pod = question.pod, trouble, "a pod names unknown datasets");
                            warned = Some(Instant::now());
                        }
                    }
                    ring.push(decision);
                }
                Letter::Show(pod, answer) => {
                    let _ = answer.send(ring.show(pod.as_deref()));
                }
            }
        }
    }
}

impl Verbs {
    /// Answers from the published snapshot. The returned keeper must be run.
    pub fn new(settings: Arc<Settings>, shown: Arc<ArcSwap<Snapshot>>, counters: Arc<Counters>) -> (Self, Keeper) {
        let (letters, received) = mpsc::channel(WAITING);
        let keeper = Keeper { letters: received, settings: Arc::clone(&settings), counters: Arc::clone(&counters) };
        (Self { settings, shown, counters, ledger: Arc::default(), letters }, keeper)
    }

    /// Answers a request. An answer to preempt that leaves no node because of earlier answers waits for a moment until
    /// the cluster shows what became of those. Without a node the scheduler would not try the pod again before another
    /// pod ends, or for five minutes, and the pods that earlier answers preempted may have ended already.
    pub async fn settled(&self, verb: Verb, body: Bytes) -> Result<Bytes, Failure> {
        let begun = tokio::time::Instant::now();
        loop {
            if let Some(answer) = self.decide(verb, body.clone(), begun.elapsed() >= SETTLES)? {
                self.counters.durations[verb as usize].count(begun.elapsed());
                return Ok(answer);
            }
            tokio::time::sleep(SETTLES_EACH).await;
        }
    }

    /// Answers a request from what is known now. Only preempt may block, until earlier preempt requests are answered.
    pub fn answer(&self, verb: Verb, body: Bytes) -> Result<Bytes, Failure> {
        self.decide(verb, body, true).map(Option::unwrap_or_default)
    }

    /// Decides a request. `None` unless `at_once`: the answer depends on how the scheduler has used earlier answers.
    fn decide(&self, verb: Verb, body: Bytes, at_once: bool) -> Result<Option<Bytes>, Failure> {
        let snapshot = self.shown.load_full();
        if !snapshot.is_complete {
            return Err(Failure::NotReady);
        }
        let (answer, asked, nodes, is_troubled) = match verb {
            Verb::Filter | Verb::Prioritize => {
                let args = args(&body)?;
                let asked = ask(&args.pod, &self.settings, &snapshot)?;
                let is_asked = asked.is_some();
                let is_troubled = asked.as_ref().is_some_and(|(question, _)| question.trouble.is_some());
                let (asked, name) = (asked.as_ref(), |at: usize| args.names[at].as_str());
                let answer = match verb {
                    Verb::Filter => {
                        let asked = asked.map(|(question, sight)| (question, |at| sight.glance(name(at))));
                        answer::filter(asked, &args.names)
                    }
                    _ => {
                        let asked = asked.map(|(question, sight)| (question, |at| sight.look(name(at))));
                        answer::prioritize(asked, &args.names)
                    }
                };
                let asked = is_asked.then(|| AskedFor::Nodes(body.clone()));
                (Bytes::from(answer), asked, args.names.len(), is_troubled)
            }
            Verb::Preempt => {
                let args = preempt_args(&body)?;
                let now = Instant::now();
                let mut turn = self.ledger.turn();
                let case = case::gather(&args, &snapshot, &mut turn, now)?;
                let chosen = decide(&case);
                if chosen.is_empty() && !at_once && case.roles.iter().any(|room| room.spoken_for > 0) {
                    return Ok(None);
                }
                turn.note(&case, &chosen, &snapshot, now);
                let nodes = chosen.into_iter().map(|chosen| (chosen.node, chosen.uids, chosen.budget_violations));
                let answer = Bytes::from(wire::preempt_answer(nodes));
                let nodes = case.nodes.len();
                (answer, Some(AskedFor::Victims(Box::new(case))), nodes, false)
            }
            Verb::Other => return Err(Failure::Refused("no such verb".to_owned())),
        };
        if let Some(asked) = asked {
            let age = self.counters.watch_age.age();
            let note = Note { verb, asked, nodes, is_troubled, snapshot, age, answer: answer.clone() };
            if self.letters.try_send(Letter::Keep(Box::new(note))).is_err() {
                self.counters.decisions_dropped.fetch_add(1, Ordering::Relaxed);
            }
        }
        Ok(Some(answer))
    }

    /// The last decisions as JSON: all of them, or those about a pod.
    pub async fn decisions(&self, pod: Option<String>) -> String {
        let (answer, shown) = oneshot::channel();
        let _ = self.letters.send(Letter::Show(pod, answer)).await;
        shown.await.unwrap_or_else(|_| r#"{"decisions":[]}"#.to_owned())
    }
}
