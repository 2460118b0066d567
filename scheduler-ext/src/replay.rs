//! Replays recorded decisions: those that `/decisions` served, or `larder explain pod --json` printed.

use anyhow::{Context, bail};
use serde::Deserialize;

use crate::ring::{About, Decision, Verb};
use crate::{answer, preempt, wire};

/// How many decisions were replayed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Replayed(pub usize);

/// The answer to a decision, made once more.
pub fn answer(decision: &Decision) -> anyhow::Result<Vec<u8>> {
    Ok(match (&decision.about, decision.verb) {
        (About::Nodes { question, candidates }, Verb::Filter) => {
            answer::filter(Some((question, |at: usize| candidates[at].look.clone())), candidates)
        }
        (About::Nodes { question, candidates }, Verb::Prioritize) => {
            answer::prioritize(Some((question, |at: usize| candidates[at].look.clone())), candidates)
        }
        (About::Victims(case), Verb::Preempt) => {
            let chosen = preempt::decide(case);
            wire::preempt_answer(chosen.into_iter().map(|chosen| (chosen.node, chosen.uids, chosen.budget_violations)))
        }
        (_, verb) => bail!("a decision of {} is about something else", verb.name()),
    })
}

/// Replays all decisions of a text. Errors: it is not one of them, or an answer differs now.
pub fn replay(text: &str) -> anyhow::Result<Replayed> {
    #[derive(Deserialize)]
    struct File {
        decisions: Vec<Decision>,
    }
    let File { decisions } = serde_json::from_str(text).context("this is not what /decisions serves")?;
    if decisions.is_empty() {
        bail!("there is no decision in it: of several replicas, the one that the scheduler asks has them");
    }
    for (at, decision) in decisions.iter().enumerate() {
        let now = answer(decision).with_context(|| format!("decision {at}, about {}", decision.pod()))?;
        if now != decision.answer.as_bytes() {
            bail!(
                "decision {at}, {} for {}, now has a different answer\nthen: {}\nnow:  {}",
                decision.verb.name(),
                decision.pod(),
                decision.answer,
                String::from_utf8_lossy(&now)
            );
        }
    }
    Ok(Replayed(decisions.len()))
}
