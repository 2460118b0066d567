//! Replays recorded decisions, from `/decisions` or from `larder explain pod --json`.

use anyhow::{Context, bail};
use serde::Deserialize;

use crate::ring::{About, Decision, Verb};
use crate::{answer, preempt, wire};

/// The number of replayed decisions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Replayed(pub usize);

/// Recomputes the answer to a decision.
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
        (_, verb) => bail!("the input of a decision of {} belongs to another verb", verb.name()),
    })
}

/// Replays all decisions of a text in the format of `/decisions`.
///
/// # Errors
/// The text contains no decisions, or an answer differs now.
pub fn replay(text: &str) -> anyhow::Result<Replayed> {
    #[derive(Deserialize)]
    struct File {
        decisions: Vec<Decision>,
    }
    let File { decisions } = serde_json::from_str(text).context("this is not what /decisions serves")?;
    if decisions.is_empty() {
        bail!("the file has no decisions: of several replicas, only the one that the scheduler calls keeps them");
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
