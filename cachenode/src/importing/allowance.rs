//! The imports that the quotas of namespaces allow.
//!
//! - [`Allowances`] are those of a node: which imports have one, and which wait.
//! - [`Allowance`] is a place among those that wait, and then the right to import.
//!
//! Invariants: the namespaces of a quota have no more allowances than it allows, but those that they had before it was
//! lowered. Within a quota they are given in the order in which they were asked for, and no other namespace waits for
//! them. An allowance comes before all that others may wait for: the lock of a listing, and a slot.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use larder_store::Quota;
use tokio::sync::watch;

/// The allowances of a node.
#[derive(Debug)]
pub(super) struct Allowances {
    state: Mutex<State>,
    /// Shows each change that may let another import begin.
    changed: watch::Sender<()>,
}

#[derive(Debug, Default)]
struct State {
    /// Those that limit imports.
    quotas: Vec<Quota>,
    /// The imports that have an allowance or wait for one, in the order in which they came.
    imports: Vec<Entry>,
    next: u64,
}

#[derive(Debug)]
struct Entry {
    id: u64,
    payer: String,
    waits: bool,
}

/// A place among those that wait, then the right to import. Given back when it is dropped.
#[derive(Debug)]
pub(crate) struct Allowance {
    all: Arc<Allowances>,
    id: u64,
}

impl State {
    /// The quota that leaves least to a namespace, and how many imports have an allowance of it.
    fn limit_of(&self, payer: &str) -> Option<(&Quota, usize)> {
        let running = |quota: &Quota| self.imports.iter().filter(|it| !it.waits && quota.is_for(&it.payer)).count();
        let quotas = self.quotas.iter().filter(|quota| quota.is_for(payer)).map(|quota| (quota, running(quota)));
        quotas.min_by_key(|(quota, running)| most(quota).saturating_sub(*running))
    }

    /// Gives the import its allowance if it may have one: no earlier one waits for the same quota.
    fn admit(&mut self, id: u64) -> bool {
        let Some(at) = self.imports.iter().position(|import| import.id == id) else { return false };
        let payer = &self.imports[at].payer;
        let has_room = self.limit_of(payer).is_none_or(|(quota, running)| running < most(quota));
        let shares = |other: &Entry| self.quotas.iter().any(|it| it.is_for(payer) && it.is_for(&other.payer));
        let is_first = !self.imports[..at].iter().any(|other| other.waits && shares(other));
        self.imports[at].waits = !(has_room && is_first);
        has_room && is_first
    }
}

/// The imports that a quota allows at once.
fn most(quota: &Quota) -> usize {
    quota.imports.map_or(usize::MAX, |imports| imports as usize)
}

impl Allowances {
    pub(super) fn new() -> Arc<Self> {
        Arc::new(Self { state: Mutex::default(), changed: watch::Sender::new(()) })
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Replaces the quotas. Imports that have an allowance keep it.
    pub(super) fn limit(&self, quotas: &[Quota]) {
        self.lock().quotas = quotas.iter().filter(|quota| quota.imports.is_some()).cloned().collect();
        self.changed.send_replace(());
    }

    /// The quota that limits the imports of a namespace, and how many have an allowance of it.
    pub(super) fn limit_of(&self, payer: &str) -> Option<(Quota, usize)> {
        self.lock().limit_of(payer).map(|(quota, running)| (quota.clone(), running))
    }

    /// Waits until the quota of a namespace allows an import. Cancel-safe: the place is then given up.
    pub(super) async fn take(self: &Arc<Self>, payer: &str) -> Allowance {
        let allowance = {
            let mut state = self.lock();
            let id = state.next;
            state.next += 1;
            state.imports.push(Entry { id, payer: payer.to_owned(), waits: true });
            Allowance { all: Arc::clone(self), id }
        };
        let mut changed = self.changed.subscribe();
        while !self.admit(allowance.id) {
            // The sender lives as long as the allowances.
            let _ = changed.changed().await;
        }
        allowance
    }

    fn admit(&self, id: u64) -> bool {
        let admitted = self.lock().admit(id);
        if admitted {
            // The next may be allowed too.
            self.changed.send_replace(());
        }
        admitted
    }
}

impl Drop for Allowance {
    fn drop(&mut self) {
        self.all.lock().imports.retain(|import| import.id != self.id);
        self.all.changed.send_replace(());
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use futures::poll;
    use tokio::time::timeout;

    use super::*;

    fn quota(name: &str, namespaces: &[&str], imports: Option<u32>) -> Quota {
        let namespaces = namespaces.iter().map(|&it| it.into()).collect();
        Quota { name: name.into(), namespaces, imports, ..Quota::default() }
    }

    async fn soon(waiting: impl Future<Output = Allowance>) -> Allowance {
        timeout(Duration::from_secs(1), waiting).await.unwrap()
    }

    // SEMANTICS: K22
    #[tokio::test(start_paused = true)]
    async fn namespaces_of_a_quota_share_its_imports_in_order_and_delay_no_other() {
        let all = Allowances::new();
        all.limit(&[quota("one", &["a", "b"], Some(1)), quota("none", &["c"], Some(0)), quota("any", &["d"], None)]);
        let first = soon(all.take("a")).await;
        let (mut second, mut third) = (Box::pin(all.take("b")), Box::pin(all.take("a")));
        assert!(poll!(&mut second).is_pending() && poll!(&mut third).is_pending());
        let mut never = Box::pin(all.take("c"));
        assert!(poll!(&mut never).is_pending());
        for other in ["d", "e", "", "e"] {
            soon(all.take(other)).await;
        }
        assert_eq!(all.limit_of("b").map(|(quota, running)| (quota.name, running)), Some(("one".to_owned(), 1)));
        assert_eq!((all.limit_of("d"), all.limit_of("e")), (None, None));
        drop(first);
        assert!(poll!(&mut third).is_pending(), "the second came before it");
        let second = soon(second).await;
        assert!(poll!(&mut third).is_pending());
        drop(second);
        let third = soon(third).await;
        // One that stops waiting keeps nobody waiting.
        let (mut gone, mut last) = (Box::pin(all.take("a")), Box::pin(all.take("b")));
        assert!(poll!(&mut gone).is_pending() && poll!(&mut last).is_pending());
        drop(gone);
        drop(third);
        drop(soon(last).await);
        assert!(poll!(&mut never).is_pending());
        drop(never);
        assert!(all.lock().imports.is_empty());
    }

    // SEMANTICS: K22
    #[tokio::test(start_paused = true)]
    async fn a_raised_quota_lets_imports_begin_and_a_lowered_one_ends_none() {
        let all = Allowances::new();
        let limit = |imports| all.limit(&[quota("one", &["a"], Some(imports))]);
        limit(1);
        let first = soon(all.take("a")).await;
        let (mut second, mut third) = (Box::pin(all.take("a")), Box::pin(all.take("a")));
        assert!(poll!(&mut second).is_pending() && poll!(&mut third).is_pending());
        limit(3);
        let (second, third) = (soon(second).await, soon(third).await);
        limit(1);
        let mut last = Box::pin(all.take("a"));
        drop(first);
        drop(second);
        assert!(poll!(&mut last).is_pending(), "the third runs");
        drop(third);
        drop(soon(last).await);
        limit(0);
        let mut held_back = Box::pin(all.take("a"));
        assert!(poll!(&mut held_back).is_pending());
        all.limit(&[]);
        soon(held_back).await;
    }
}
