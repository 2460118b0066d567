//! The answers to filter and prioritize, from a question and a look at each node. Replayed decisions and requests use
//! the same functions.

use crate::filter::{NAMED, Sentence, reason};
use crate::question::{Look, Question};
use crate::score::score;
use crate::wire;

/// The answer to filter. `look` returns the facts that can exclude the node at a position of `names`. Without a
/// question, all nodes pass.
pub fn filter<'l>(asked: Option<(&Question, impl Fn(usize) -> Look<'l>)>, names: &[impl AsRef<str>]) -> Vec<u8> {
    let all = names.iter().map(AsRef::as_ref);
    let Some((question, look)) = asked else {
        return wire::filter_answer(all, std::iter::empty::<(_, Sentence<'_>)>());
    };
    let mut failing: Vec<(&str, Look<'_>)> = Vec::new();
    let passes = |(at, name)| {
        let look = look(at);
        if reason(question, &look).is_none() {
            return Some(name);
        }
        failing.push((name, look));
        None
    };
    let passing: Vec<&str> = all.enumerate().filter_map(passes).collect();
    let few = failing.len() <= NAMED;
    let sentences = failing.iter().filter_map(|(name, look)| {
        let reason = reason(question, look)?;
        Some((*name, Sentence { reason, node: few.then_some(*name) }))
    });
    wire::filter_answer(passing.into_iter(), sentences)
}

/// The answer to prioritize: the nodes with a score above 0. For kube-scheduler, the others have the score 0, and it
/// would spend more time on decoding them than on anything else in a request. Without a question, all nodes have the
/// same score.
pub fn prioritize<'l>(asked: Option<(&Question, impl Fn(usize) -> Look<'l>)>, names: &[impl AsRef<str>]) -> Vec<u8> {
    let Some((question, look)) = asked else { return wire::prioritize_answer(std::iter::empty()) };
    let scores = names.iter().enumerate().map(|(at, name)| (name.as_ref(), score(question, &look(at))));
    wire::prioritize_answer(scores.filter(|(_, score)| *score > 0))
}
