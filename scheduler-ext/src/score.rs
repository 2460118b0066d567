//! How good a node is for a pod, from 0 to 10. The reasons and their order are those of [`larder_dataset::score`], which the plan
//! of training jobs uses too.

use larder_dataset::score::{Terms, terms};

use crate::question::{Look, Question};

/// The score of a node: a function of the question and of what the node has, and of nothing else.
pub fn score(question: &Question, look: &Look<'_>) -> u8 {
    question.weights.total(&terms_of(question, look))
}

/// The reasons behind it. A pod of which nobody knows what it reads has none.
pub fn terms_of(question: &Question, look: &Look<'_>) -> Terms {
    if question.trouble.is_some() { Terms::default() } else { terms(&look.standing) }
}
