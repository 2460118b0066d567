//! Measures the systems in turns. A system that fails is left out of the rest of the run; the others continue.

use anyhow::Context;

use super::progress::Progress;
use super::report::LeftOut;
use crate::systems::{AnySystem, Corpus, System};

/// Systems that share one corpus.
pub(crate) struct Rounds<'a> {
    /// `None` for a system that failed.
    running: Vec<Option<AnySystem>>,
    left_out: Vec<LeftOut>,
    corpus: &'a Corpus,
    progress: &'a dyn Progress,
    /// Names the part of a run in the reasons for leaving a system out; empty if there is only one part.
    part: &'a str,
}

impl<'a> Rounds<'a> {
    /// Prepares every system.
    pub(crate) fn prepare(
        systems: Vec<AnySystem>,
        corpus: &'a Corpus,
        progress: &'a dyn Progress,
        part: &'a str,
    ) -> anyhow::Result<Self> {
        let mut rounds = Self { running: Vec::new(), left_out: Vec::new(), corpus, progress, part };
        for mut system in systems {
            progress.doing(&format!("{}: prepare", system.name()));
            let prepared = system.prepare(corpus).with_context(|| format!("prepare {}", system.name()));
            corpus.stop.check()?;
            match prepared {
                Ok(()) => rounds.running.push(Some(system)),
                Err(error) => {
                    rounds.leave_out(system.name(), &error);
                    rounds.running.push(None);
                }
            }
        }
        Ok(rounds)
    }

    /// The number of systems that have not failed.
    pub(crate) fn running(&self) -> usize {
        self.running.iter().flatten().count()
    }

    /// Runs `measure` on each system and unmounts the system, which `measure` may leave mounted. Only a signal stops
    /// the run.
    pub(crate) fn round(
        &mut self,
        round: u32,
        mut measure: impl FnMut(&mut dyn System) -> anyhow::Result<()>,
    ) -> anyhow::Result<()> {
        for nth in turns(self.running.len(), round) {
            let Some(mut system) = self.running[nth].take() else { continue };
            self.progress.doing(&format!("round {}: {}", round + 1, system.name()));
            let measured = measure(&mut *system);
            let unmounted = system.unmount();
            self.corpus.stop.check()?;
            match measured.and(unmounted) {
                Ok(()) => self.running[nth] = Some(system),
                Err(error) => self.leave_out(system.name(), &error.context(format!("round {}", round + 1))),
            }
        }
        Ok(())
    }

    /// The systems that failed, in the order of their failures.
    pub(crate) fn into_left_out(self) -> Vec<LeftOut> {
        self.left_out
    }

    fn leave_out(&mut self, name: &str, error: &anyhow::Error) {
        let why = if self.part.is_empty() { format!("{error:#}") } else { format!("{}: {error:#}", self.part) };
        self.progress.measured(&format!("{name}: left out: {why}"));
        self.left_out.push(LeftOut { name: name.to_owned(), why });
    }
}

/// The order of `count` systems in a round. Each round starts with a different system, so that no system always comes
/// first.
fn turns(count: usize, round: u32) -> impl Iterator<Item = usize> {
    (0..count).map(move |nth| (nth + round as usize) % count)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_system_is_first_once() {
        let first: Vec<usize> = (0..3).filter_map(|round| turns(3, round).next()).collect();
        assert_eq!(first, [0, 1, 2]);
        assert_eq!(turns(3, 1).collect::<Vec<_>>(), [1, 2, 0]);
    }
}
