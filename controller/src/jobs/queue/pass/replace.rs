//! New nodes for pods of running jobs.

use super::super::order::order_of_all;
use super::super::verdict::Verdict;
use super::Pass;
use crate::jobs::planned::{Plan, PlannedPod};

impl Pass<'_> {
    /// Finds nodes in the room that is not reserved for other jobs. If a queue would exceed its quota while both a pod
    /// and its replacement run, the replacement waits.
    pub(in super::super) fn replace(&mut self) {
        let mut losers: Vec<usize> =
            self.running().filter(|job| self.jobs[*job].unplaced.iter().any(|pods| !pods.is_empty())).collect();
        losers.sort_by_key(|job| order_of_all(self.jobs[*job]));
        for at in losers {
            let job = self.jobs[at];
            if job.replaces_live && self.now.ledger.is_beyond(&job.queue) {
                continue;
            }
            let asked: Vec<Vec<u32>> = job
                .unplaced
                .iter()
                .zip(self.granted(at))
                .map(|(pods, kept)| pods.iter().copied().filter(|index| *index < kept).collect())
                .collect();
            let plan = match self.now.find_again(job, &asked) {
                Ok(placement) => {
                    self.now.take_nodes(job, &placement);
                    self.soon.take_nodes(job, &placement);
                    let pods = asked.iter().zip(&placement.roles).enumerate().flat_map(|(role, (pods, nodes))| {
                        pods.iter().zip(nodes).map(move |(index, node)| (role, *index, *node))
                    });
                    let planned = |(role, index, node)| {
                        let node = Some(self.now.cluster.name(node).to_owned());
                        PlannedPod { role, index, node }
                    };
                    Plan::Nodes(pods.map(planned).collect())
                }
                Err(shortage) => Plan::None(shortage.to_string()),
            };
            if let Some(Verdict::Run(running)) = &mut self.verdicts[at] {
                running.plan = Some(plan);
            }
        }
    }
}
