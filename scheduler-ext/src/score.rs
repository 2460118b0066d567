//! The score of a node for a pod, from 0 to 10. The terms and their order are those of [`larder_dataset::score`], which
//! the placement of TrainingJobs also uses.

use larder_dataset::score::{Terms, terms};

use crate::question::{Look, Question};

/// The score of a node. It depends only on the question and on this node.
pub fn score(question: &Question, look: &Look<'_>) -> u8 {
    question.weights.total(&terms_of(question, look))
}

/// The terms of the score. A pod whose datasets are unknown has none.
pub fn terms_of(question: &Question, look: &Look<'_>) -> Terms {
    if question.trouble.is_some() { Terms::default() } else { terms(&look.standing) }
}
