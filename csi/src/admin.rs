//! The driver's metrics and readiness for the admin server.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use larder_telemetry::Sample;
use larder_telemetry::admin::Admin;

use crate::calls::Calls;
use crate::fdkeeper::KeeperCounters;
use crate::node::{Mounts, Node};
use crate::startup_taint::StartupTaint;

/// The parts of the driver that the admin server reads.
#[derive(Debug)]
pub(crate) struct DriverAdmin {
    pub(crate) node: Arc<Node>,
    pub(crate) counters: Arc<KeeperCounters>,
    pub(crate) calls: Calls,
    /// The startup taint, if this process removes it.
    pub(crate) startup: Option<Arc<StartupTaint>>,
}

impl Admin for DriverAdmin {
    fn healthy(&self) -> Result<(), String> {
        self.node.mounts.keeper.heartbeat().check("the keeper of connections")
    }

    fn ready(&self) -> Result<(), String> {
        // At the installation larderd waits for the folders that this process has created. Tools that install one after
        // the other wait for this process before they install larderd.
        let Mounts { keeper, records, .. } = &*self.node.mounts;
        let is_new = keeper.session().borrow().count == 0 && records.is_empty();
        if !is_new && !self.node.is_ready() {
            return Err("larderd is not connected".to_owned());
        }
        self.startup.as_ref().map_or(Ok(()), |startup| startup.check_listed())
    }

    fn samples(&self) -> Vec<Sample> {
        let count = |value: usize| u64::try_from(value).unwrap_or(u64::MAX);
        let KeeperCounters { sessions, takeovers, offers, refusals } = &*self.counters;
        let samples = [
            ("csi_sessions_total", sessions.load(Ordering::Relaxed)),
            ("csi_takeovers_total", takeovers.load(Ordering::Relaxed)),
            ("csi_offers_total", offers.load(Ordering::Relaxed)),
            ("csi_offer_refusals_total", refusals.load(Ordering::Relaxed)),
            ("csi_panics_total", self.calls.panics()),
            ("csi_connections", count(self.node.mounts.keeper.mounts().len())),
            ("csi_targets", count(self.node.mounts.records.all().len())),
        ];
        let [ok, error] = &**self.calls.published();
        let publishes = [("ok", ok), ("error", error)];
        let publishes = publishes.map(|(result, times)| times.sample("csi_publish_seconds", [("result", result)]));
        samples.map(|(name, value)| Sample::new(name, value)).into_iter().chain(publishes).collect()
    }
}
