//! A system's turn: it creates queues, submits jobs, and waits until their pods are bound.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::Pod;
use larder_api::TrainingJob;
use larder_fake_platform::program::Figures;
use larder_kube::api::DynamicObject;
use larder_kube::{Api, Client};
use serde::Serialize;
use serde_json::json;
use tempfile::TempDir;

use super::cluster::{apply, clear, create, kind, kueue, pod_groups, types_are_valid};
use super::pods::Observer;
use super::work::Work;
use crate::kubernetes::objects::NAMESPACE;
use crate::kubernetes::running::{Places, Running};
use crate::kubernetes::wait;
use crate::systems::Stop;

/// The timeout until a system is ready for jobs.
const READY: Duration = Duration::from_secs(300);
/// The interval at which its state is checked.
const LOOK: Duration = Duration::from_millis(100);

/// A controller counts as idle after `QUIET` without a write. The wait for that ends after `REST` at the latest.
const QUIET: Duration = Duration::from_secs(5);
const REST: Duration = Duration::from_secs(300);

/// The `schedulerName` of coscheduling (tests/cluster/peers.sh).
const COSCHEDULING: &str = "coscheduling";

/// A memory quota that never limits a job.
const MUCH_MEMORY: &str = "1000Ti";

/// A system that runs jobs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum System {
    /// Pods that are created directly and bound by kube-scheduler: the upper bound that the API server sets.
    Direct,
    /// TrainingJobs in Queues.
    Larder,
    /// Jobs of Kubernetes in the queues of Kueue.
    Kueue,
    /// Pods in PodGroups, bound by a second scheduler.
    Coscheduling,
}

impl System {
    /// The name in tables.
    pub fn name(self) -> &'static str {
        match self {
            Self::Direct => "pods created directly",
            Self::Larder => "larder",
            Self::Kueue => "kueue, batch/v1",
            Self::Coscheduling => "coscheduling",
        }
    }
}

/// A queue to create, with its quota.
#[derive(Clone, Debug)]
pub(crate) struct Wish {
    pub(crate) name: String,
    pub(crate) cohort: Option<String>,
    /// By resource: the nominal quota and the borrowing limit.
    pub(crate) quota: BTreeMap<&'static str, (u32, u32)>,
}

impl Wish {
    /// A queue without a cohort that has more quota than its jobs need.
    pub(crate) fn ample(quota: BTreeMap<&'static str, (u32, u32)>) -> Self {
        Self { name: NAMESPACE.to_owned(), cohort: None, quota }
    }
}

/// The environment of the benchmark: cluster, programs and progress.
#[derive(Clone, Copy)]
pub(crate) struct Ground<'a> {
    pub(crate) client: &'a Client,
    pub(crate) places: &'a Places,
    pub(crate) stop: &'a Stop,
}

/// A system with its queues, ready for jobs.
pub(crate) struct Turn<'a> {
    ground: Ground<'a>,
    system: System,
    pub(crate) observer: Observer,
    /// larder-controller; `None` in another system's turn.
    pub(crate) controller: Option<Running>,
    _logs: TempDir,
}

impl<'a> Turn<'a> {
    /// Creates the queues and waits until the system is ready for jobs. Must be called on the main thread.
    pub(crate) async fn begin(ground: Ground<'a>, system: System, queues: &[Wish]) -> anyhow::Result<Self> {
        let logs = tempfile::tempdir().context("create a directory for logs")?;
        let observer = Observer::start(ground.client);
        let controller = match system {
            System::Larder => Some(Running::start(ground.places, logs.path())?),
            System::Direct | System::Kueue | System::Coscheduling => None,
        };
        let mut turn = Self { ground, system, observer, controller, _logs: logs };
        turn.make_queues(queues).await?;
        let started = Instant::now();
        while !turn.is_ready(queues).await? {
            turn.check()?;
            if started.elapsed() > READY {
                bail!("{} did not become ready for jobs within {} s", system.name(), READY.as_secs());
            }
            tokio::time::sleep(LOOK).await;
        }
        // The controller's first writes about the cluster belong to no job, so they must not be counted.
        turn.rest().await?;
        Ok(turn)
    }

    /// Waits until larder-controller is idle and returns its metrics; `None` in another system's turn.
    pub(crate) async fn rest(&mut self) -> anyhow::Result<Option<Figures>> {
        let Some(controller) = &mut self.controller else { return Ok(None) };
        let started = Instant::now();
        let (mut figures, mut since) = (controller.figures().await?, Instant::now());
        while since.elapsed() < QUIET && started.elapsed() < REST {
            tokio::time::sleep(LOOK).await;
            let now = controller.figures().await?;
            if now.all_writes() != figures.all_writes() {
                since = Instant::now();
            }
            figures = now;
        }
        Ok(Some(figures))
    }

    /// Removes the jobs, queues and pods of the turn, after larder-controller has ended.
    pub(crate) async fn end(self) -> anyhow::Result<()> {
        if let Some(controller) = self.controller {
            controller.stop();
        }
        clear(self.ground.client).await
    }

    fn check(&mut self) -> anyhow::Result<()> {
        self.ground.stop.check()?;
        self.controller.as_mut().map_or(Ok(()), Running::check)
    }

    async fn is_ready(&self, queues: &[Wish]) -> anyhow::Result<bool> {
        match self.system {
            System::Direct | System::Coscheduling => Ok(true),
            System::Larder => types_are_valid(self.ground.client).await,
            System::Kueue => self.kueue_is_active(queues).await,
        }
    }

    async fn kueue_is_active(&self, queues: &[Wish]) -> anyhow::Result<bool> {
        let api: Api<DynamicObject> =
            Api::all_with(self.ground.client.clone(), &kueue("ClusterQueue", "clusterqueues"));
        for queue in queues {
            let queue = api.get(&queue.name).await.context("get the ClusterQueue")?;
            let conditions = queue.data["status"]["conditions"].as_array().cloned().unwrap_or_default();
            if !conditions.iter().any(|one| one["type"] == "Active" && one["status"] == "True") {
                return Ok(false);
            }
        }
        Ok(true)
    }

    async fn make_queues(&self, queues: &[Wish]) -> anyhow::Result<()> {
        let client = || self.ground.client.clone();
        match self.system {
            System::Direct | System::Coscheduling => {}
            System::Larder => {
                let kind = kind("larder.dev", "v1alpha1", "Queue", "queues");
                for queue in queues {
                    apply(Api::all_with(client(), &kind), &for_larder(queue)).await?;
                }
            }
            System::Kueue => {
                let flavor = json!({
                    "apiVersion": "kueue.x-k8s.io/v1beta2", "kind": "ResourceFlavor", "metadata": {"name": NAMESPACE},
                });
                apply(Api::all_with(client(), &kueue("ResourceFlavor", "resourceflavors")), &flavor).await?;
                for queue in queues {
                    apply(Api::all_with(client(), &kueue("ClusterQueue", "clusterqueues")), &for_kueue(queue)).await?;
                    let local = json!({
                        "apiVersion": "kueue.x-k8s.io/v1beta2", "kind": "LocalQueue",
                        "metadata": {"name": queue.name}, "spec": {"clusterQueue": queue.name},
                    });
                    let kind = kueue("LocalQueue", "localqueues");
                    apply(Api::namespaced_with(client(), NAMESPACE, &kind), &local).await?;
                }
            }
        }
        Ok(())
    }

    /// Creates each job when it is due, several at a time. Returns when each request was sent.
    pub(crate) async fn submit(&self, works: &[Work]) -> anyhow::Result<BTreeMap<String, Instant>> {
        let client = self.ground.client.clone();
        let all = |manifest: fn(&Work) -> serde_json::Value| {
            works.iter().map(|work| (work.due, manifest(work))).collect::<Vec<_>>()
        };
        let sent = match self.system {
            System::Larder => {
                create(&Api::<TrainingJob>::namespaced(client, NAMESPACE), all(Work::training_job)).await?
            }
            System::Kueue => create(&Api::<Job>::namespaced(client, NAMESPACE), all(Work::batch_job)).await?,
            System::Direct | System::Coscheduling => {
                let scheduler = (self.system == System::Coscheduling).then_some(COSCHEDULING);
                if scheduler.is_some() {
                    let groups = Api::<DynamicObject>::namespaced_with(client.clone(), NAMESPACE, &pod_groups());
                    for work in works {
                        apply(groups.clone(), &work.pod_group()).await?;
                    }
                }
                let of =
                    |work: &Work| work.bare_pods(scheduler).into_iter().map(|pod| (work.due, pod)).collect::<Vec<_>>();
                let pods: Vec<_> = works.iter().flat_map(of).collect();
                let sent = create(&Api::<Pod>::namespaced(client, NAMESPACE), pods).await?;
                // In the order of the jobs; a job is sent with its first pod.
                let first: Vec<usize> = works
                    .iter()
                    .scan(0, |at, work| {
                        let first = *at;
                        *at += work.pods as usize;
                        Some(first)
                    })
                    .collect();
                works.iter().zip(first).map(|(work, at)| (work.name.clone(), sent[at].1)).collect()
            }
        };
        Ok(sent.into_iter().collect())
    }

    /// Waits until `done` returns true for the observed pods.
    pub(crate) async fn until(
        &mut self,
        what: &str,
        limit: Duration,
        done: impl Fn(&super::pods::Pods) -> bool,
    ) -> anyhow::Result<()> {
        let observer = &self.observer;
        wait::until(self.ground.stop, what, limit, self.controller.as_mut(), || done(&observer.pods())).await
    }
}

fn for_larder(queue: &Wish) -> serde_json::Value {
    let quota: BTreeMap<&str, serde_json::Value> = queue
        .quota
        .iter()
        .map(|(resource, (nominal, borrow))| {
            let mut quota = json!({"nominal": nominal.to_string()});
            if queue.cohort.is_some() {
                quota["borrow"] = borrow.to_string().into();
            }
            (*resource, quota)
        })
        .collect();
    let mut spec = json!({"namespaces": [NAMESPACE], "quota": quota});
    if let Some(cohort) = &queue.cohort {
        spec["cohort"] = cohort.clone().into();
    }
    json!({"apiVersion": "larder.dev/v1alpha1", "kind": "Queue", "metadata": {"name": queue.name}, "spec": spec})
}

/// The ClusterQueue. Kueue needs a quota for every resource that pods request, so it also gets memory.
fn for_kueue(queue: &Wish) -> serde_json::Value {
    let mut resources: Vec<serde_json::Value> = queue
        .quota
        .iter()
        .map(|(resource, (nominal, borrow))| {
            let mut quota = json!({"name": resource, "nominalQuota": nominal.to_string()});
            if queue.cohort.is_some() {
                quota["borrowingLimit"] = borrow.to_string().into();
            }
            quota
        })
        .collect();
    resources.push(json!({"name": "memory", "nominalQuota": MUCH_MEMORY}));
    let covered: Vec<_> = resources.iter().map(|resource| resource["name"].clone()).collect();
    let mut spec = json!({
        "namespaceSelector": {},
        "resourceGroups": [{"coveredResources": covered, "flavors": [{"name": NAMESPACE, "resources": resources}]}],
        "preemption": {"reclaimWithinCohort": "Any", "withinClusterQueue": "LowerPriority"},
    });
    if let Some(cohort) = &queue.cohort {
        spec["cohortName"] = cohort.clone().into();
    }
    json!({
        "apiVersion": "kueue.x-k8s.io/v1beta2", "kind": "ClusterQueue", "metadata": {"name": queue.name}, "spec": spec,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_queues_have_the_same_quota() {
        let mut queue = Wish::ample([("cpu", (20, 100))].into());
        assert_eq!(for_larder(&queue)["spec"]["quota"], json!({"cpu": {"nominal": "20"}}));
        queue.cohort = Some("c".to_owned());
        let (ours, kueue) = (for_larder(&queue), for_kueue(&queue));
        assert_eq!(ours["spec"]["quota"], json!({"cpu": {"nominal": "20", "borrow": "100"}}));
        let group = &kueue["spec"]["resourceGroups"][0];
        assert_eq!(group["coveredResources"], json!(["cpu", "memory"]));
        let cpu = json!({"name": "cpu", "nominalQuota": "20", "borrowingLimit": "100"});
        assert_eq!(group["flavors"][0]["resources"][0], cpu);
        assert_eq!([&ours["spec"]["cohort"], &kueue["spec"]["cohortName"]], ["c", "c"]);
    }
}
