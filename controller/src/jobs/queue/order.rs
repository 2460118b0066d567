//! The waiting jobs of each queue, and which queue is next.

use crate::time::Seconds;
use std::cmp::Reverse;
use std::collections::BTreeMap;

use super::facts::Job;
use super::quota::Ledger;
use larder_kube::key::Key;
use larder_kube::pod::amounts::Amounts;

/// How long later jobs may overtake the head of a queue.
pub(super) const PASSING_SECONDS: i64 = 30 * 60;

/// The waiting jobs of one queue in order, or those of a namespace that have no queue.
#[derive(Debug)]
pub(super) struct WaitingLine<'a> {
    queue: &'a str,
    /// Positions in the list of jobs.
    waiting: Vec<usize>,
    next: usize,
    /// The first job that found no room. If it needs nodes of one flavor, also the first that needs others, and so on.
    pub(super) heads: Vec<usize>,
    turn: Option<Turn<'a>>,
}

/// The sort key of a queue's next job; lower comes first: it is overdue, it does not borrow, its queue has a smaller
/// share, it has a higher priority, it is older.
type Turn<'a> = (bool, bool, Vec<u128>, Reverse<i32>, Seconds, &'a Key);

/// The lines of all queues.
pub(super) struct WaitingLines<'a> {
    jobs: &'a [&'a Job],
    lines: Vec<WaitingLine<'a>>,
    now: Seconds,
}

impl<'a> WaitingLines<'a> {
    pub(super) fn new(jobs: &'a [&'a Job], waiting: impl Iterator<Item = usize>, now: Seconds) -> Self {
        let mut by_line: BTreeMap<(&str, &str), Vec<usize>> = BTreeMap::new();
        for job in waiting {
            by_line.entry(jobs[job].line()).or_default().push(job);
        }
        let line = |((queue, _), mut waiting): ((&'a str, &'a str), Vec<usize>)| {
            waiting.sort_by_key(|job| order(jobs[*job]));
            WaitingLine { queue, waiting, next: 0, heads: Vec::new(), turn: None }
        };
        Self { jobs, lines: by_line.into_iter().map(line).collect(), now }
    }

    /// Computes the sort key of a queue's next job.
    pub(super) fn rank(&mut self, line: usize, ledger: &Ledger<'a>) {
        let line = &mut self.lines[line];
        line.turn = line.waiting.get(line.next).map(|job| {
            let job = self.jobs[*job];
            let borrows = !ledger.is_nominal(line.queue, &job.floor());
            (
                !is_overdue(job, self.now),
                borrows,
                ledger.share(line.queue),
                Reverse(job.priority),
                job.created,
                &job.key,
            )
        });
    }

    pub(super) fn rank_all(&mut self, ledger: &Ledger<'a>) {
        for line in 0..self.lines.len() {
            self.rank(line, ledger);
        }
    }

    /// Takes the next job of the queue with the lowest sort key. Returns the line and the job.
    pub(super) fn next(&mut self) -> Option<(usize, usize)> {
        let turns = self.lines.iter().enumerate().filter_map(|(at, line)| Some((line.turn.as_ref()?, at)));
        let (_, at) = turns.min()?;
        let line = &mut self.lines[at];
        let job = line.waiting[line.next];
        line.next += 1;
        Some((at, job))
    }

    pub(super) fn line(&mut self, at: usize) -> &mut WaitingLine<'a> {
        &mut self.lines[at]
    }

    /// The lines that have a head.
    pub(super) fn with_head(&self) -> Vec<(&'a str, &'a str)> {
        self.lines.iter().filter_map(|line| Some(self.jobs[*line.heads.first()?].line())).collect()
    }
}

/// Higher priority first, then older jobs first.
pub(super) fn order(job: &Job) -> (Reverse<i32>, Seconds, &Key) {
    (Reverse(job.priority), job.created, &job.key)
}

/// The order among jobs of several queues: jobs without a queue come last.
pub(super) fn order_of_all(job: &Job) -> (bool, Reverse<i32>, Seconds, &Key) {
    let (priority, created, key) = order(job);
    (job.queue.is_empty(), priority, created, key)
}

/// True if a job requests less than the head of every resource that the head requests.
pub(super) fn is_small(asks: &Amounts, head: &Amounts) -> bool {
    head.iter().all(|(resource, amount)| asks.get(resource) < amount)
}

/// True if a job requests nothing of what the head requests, as on nodes of another flavor.
pub(super) fn is_apart(asks: &Amounts, head: &Amounts) -> bool {
    head.iter().all(|(resource, _)| asks.get(resource) == 0)
}

/// True if a head has waited too long for any job to overtake it.
pub(super) fn is_overdue(head: &Job, now: Seconds) -> bool {
    head.head_since.is_some_and(|since| now - since >= PASSING_SECONDS)
}
