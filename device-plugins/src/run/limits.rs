//! Follows which limits can be enforced on the node.

use std::path::PathBuf;
use std::time::Duration;

use tokio::sync::{mpsc, watch};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tracing::warn;

use crate::health::capabilities::Capabilities;
use crate::instance::Begun;
use crate::limits::host;
use crate::nri::Status;
use crate::state::Event;

/// How often the host is probed.
const LOOK: Duration = Duration::from_secs(10);

/// How long NRI may be absent before that counts: while the runtime restarts, no container starts.
const NRI_AWAY: Duration = Duration::from_secs(10);

pub(super) struct Limits {
    /// The hook, in the image.
    pub(super) hook: PathBuf,
    pub(super) host: host::Settings,
    pub(super) nri: watch::Receiver<Status>,
    /// Only the newest process installs the hook: two would replace each other's repeatedly.
    pub(super) instance: Begun,
    /// Whether and when NRI was lost.
    pub(super) lost: Lost,
    /// Whether the runtime has CDI, which adds the hook to containers.
    pub(super) cdi: bool,
}

/// Whether NRI was lost.
#[derive(Clone, Copy, Debug, Default)]
pub(super) enum Lost {
    /// It was never connected.
    #[default]
    Never,
    /// It is connected.
    Not,
    /// Since then.
    Since(Instant),
}

impl Limits {
    /// Installs the hook, and reports capabilities until `stop`.
    pub(super) async fn follow(mut self, events: mpsc::Sender<Event>, stop: CancellationToken) {
        let mut sent = None;
        loop {
            let capabilities = self.look().await;
            if sent.as_ref() != Some(&capabilities) {
                if events.send(Event::Capabilities(capabilities.clone())).await.is_err() {
                    return;
                }
                sent = Some(capabilities);
            }
            let wait = match self.lost {
                Lost::Since(lost) => Some(NRI_AWAY.saturating_sub(lost.elapsed())).filter(|left| !left.is_zero()),
                Lost::Never | Lost::Not => None,
            };
            tokio::select! {
                () = stop.cancelled() => return,
                changed = self.nri.changed() => if changed.is_err() { return },
                () = tokio::time::sleep(wait.unwrap_or(LOOK)) => {}
            }
        }
    }

    async fn look(&mut self) -> Capabilities {
        let nri = match (&*self.nri.borrow_and_update(), self.lost) {
            (Status::Connected, _) => {
                self.lost = Lost::Not;
                None
            }
            (Status::Away(_), Lost::Not) => {
                self.lost = Lost::Since(Instant::now());
                None
            }
            (Status::Away(_), Lost::Since(lost)) if lost.elapsed() < NRI_AWAY => None,
            (Status::Away(why), _) => Some(format!("the container runtime does not call the NRI plugin: {why}")),
        };
        let (program, host, instance) = (self.hook.clone(), self.host.clone(), self.instance.clone());
        let looked = tokio::task::spawn_blocking(move || {
            let installed = match instance.is_newest() {
                Some(false) => Ok(()),
                _ => host::install(&program, &host.hook_folder).map_err(|error| error.to_string()),
            };
            (host::probe(&host, nri), installed)
        });
        let (mut found, installed) = match looked.await {
            Ok(found) => found,
            Err(error) => return Capabilities { nri: Some(error.to_string()), ..without_hook(&error.to_string()) },
        };
        if let Err(why) = installed {
            warn!(why, "cannot install the hook that limits RDMA objects");
            // An earlier version of the hook still works.
            found.hook = found.hook.map(|_| why);
        }
        if self.cdi {
            return found;
        }
        Capabilities { nri: found.nri, ..without_hook("CDI adds the hook to containers, and --no-cdi turns it off") }
    }
}

/// No limit of RDMA objects can be enforced.
fn without_hook(why: &str) -> Capabilities {
    let why = Some(why.to_owned());
    Capabilities { controller: why.clone(), hook: why, nri: None, unified: false }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::config::Limits as Wanted;
    use crate::instance::Instance;

    /// Where limits can be kept, if NRI is there.
    fn host(host: &std::path::Path, nri: watch::Receiver<Status>) -> Limits {
        std::fs::create_dir_all(host.join("cgroup/rdma")).unwrap();
        std::fs::write(host.join("cgroup/rdma/cgroup.procs"), "").unwrap();
        std::fs::write(host.join("hook"), "a program").unwrap();
        let settings = host::Settings { cgroup_root: host.join("cgroup"), hook_folder: host.join("opt") };
        let hook = host.join("hook");
        Limits { hook, host: settings, nri, instance: Begun::default(), lost: Lost::Never, cdi: true }
    }

    // SEMANTICS: D19
    #[tokio::test]
    async fn limits_are_missing_where_containers_get_none() {
        let folder = tempfile::tempdir().unwrap();
        let mut limits = host(folder.path(), watch::channel(Status::Connected).1);
        let memlock = Wanted { hca_handles: None, hca_objects: None, memlock: Some(u64::MAX), required: true };
        let handles = Wanted { hca_handles: Some(1), memlock: None, required: false, ..memlock };
        let found = limits.look().await;
        assert_eq!((found.missing(&memlock), found.missing(&handles)), (None, None));
        limits.cdi = false;
        let found = limits.look().await;
        // NRI knows their containers by the device nodes.
        assert_eq!(found.missing(&memlock), None);
        assert!(found.missing(&handles).unwrap().contains("--no-cdi"), "{found:?}");
    }

    // SEMANTICS: D13
    #[tokio::test]
    async fn an_older_process_leaves_the_hook_to_the_newer_one() {
        let folder = tempfile::tempdir().unwrap();
        let mut limits = host(folder.path(), watch::channel(Status::Connected).1);
        let begin = async || Arc::new(Instance::begin(folder.path()).await.unwrap());
        limits.instance.set(&begin().await);
        limits.look().await;
        let newer = begin().await;
        let hook = folder.path().join("opt").join(crate::names::HOOK);
        std::fs::write(&hook, "a newer program").unwrap();
        assert_eq!(limits.look().await.hook, None);
        assert_eq!(std::fs::read_to_string(&hook).unwrap(), "a newer program");
        drop(newer);
        limits.look().await;
        assert_eq!(std::fs::read_to_string(&hook).unwrap(), "a program");
    }

    // SEMANTICS: D19
    #[tokio::test(start_paused = true)]
    async fn a_short_absence_of_nri_after_a_connection_is_tolerated() {
        let folder = tempfile::tempdir().unwrap();
        let away = |why: &str| Status::Away(why.into());
        let status = watch::Sender::new(away("not tried yet"));
        let (events, mut received) = mpsc::channel(8);
        let (stop, limits) = (CancellationToken::new(), host(folder.path(), status.subscribe()));
        let following = tokio::spawn(limits.follow(events, stop.clone()));
        let mut next = async || match received.recv().await.unwrap() {
            Event::Capabilities(found) => found.nri.is_none(),
            other => panic!("{other:?}"),
        };
        assert!(!next().await, "at the start it counts");
        status.send_replace(Status::Connected);
        assert!(next().await);
        // The runtime is started again, and then it is not.
        let lost = Instant::now();
        status.send_replace(away("closed"));
        tokio::time::sleep(NRI_AWAY / 2).await;
        status.send_replace(Status::Connected);
        tokio::time::sleep(NRI_AWAY).await;
        status.send_replace(away("closed"));
        tokio::time::sleep(NRI_AWAY / 2).await;
        status.send_replace(away("no such file"));
        assert!(!next().await);
        assert_eq!(lost.elapsed().as_secs(), (NRI_AWAY / 2 + NRI_AWAY + NRI_AWAY).as_secs());
        status.send_replace(Status::Connected);
        assert!(next().await);
        stop.cancel();
        following.await.unwrap();
    }
}
