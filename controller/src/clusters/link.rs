//! The link to one cluster: brings it to its desired state, and reports what is there.
//!
//! A link that fails in any way is made again from the start: the Secret is read, the copies are listed, and only then
//! does the cluster get a lease again. So no lease is renewed for a copy that this home does not know. Requests are
//! bounded in time, and what the cluster answers is bounded in size and cut to the schema.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures::future::BoxFuture;
use futures::{FutureExt, StreamExt, TryFutureExt};
use k8s_openapi::api::authentication::v1::SelfSubjectReview;
use k8s_openapi::api::core::v1::Secret;
use larder_api::names::{
    FENCE_ANNOTATION, HERE, HOME_ACCOUNT_PREFIX, HOME_GENERATION_ANNOTATION, HOME_JOB_LABEL, HOME_LABEL, HOME_MANAGER,
    HOME_NAME_MAX, HOME_READ_ANNOTATION, KUBECONFIG_KEY, LEASE_ANNOTATION_PREFIX, SYSTEM_NAMESPACE,
};
use larder_api::{Cluster, ClusterReason, TrainingJob, TrainingJobSpec, TrainingJobStatus};
use larder_kube::api::{
    Api, DeleteParams, DynamicObject, Patch, PatchParams, PostParams, Preconditions, PropagationPolicy,
};
use larder_kube::fields::label;
use larder_kube::key::Key;
use larder_kube::kinds::Kind;
use larder_kube::lease::Election;
use larder_kube::unparsed::Unparsed;
use larder_kube::watch::{Turns, Update, Watched, listen, refusal};
use larder_kube::{Client, Error, with_kubeconfig};
use serde_json::json;
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, MissedTickBehavior};
use tracing::warn;

use super::desired::{Desired, Leases, Step, Wanted};
use super::known::Report;
use super::objects::{self, RemoteJob};
use crate::time::Seconds;
use crate::watch::News;

/// The interval between two beats: a beat reads the description of the cluster and renews the lease.
const BEAT: Duration = Duration::from_secs(10);
/// The time limit of a request.
const REQUEST: Duration = Duration::from_secs(10);
/// The pause before a lost link is made again.
const AGAIN: Duration = Duration::from_secs(5);
/// A step is not repeated within this time: the watch has not reported its effect yet, or the cluster refuses it.
const STEP_AGAIN: Duration = Duration::from_secs(20);
/// The number of steps at the same time, and of those between two beats.
const STEPS: usize = 16;
const STEPS_AT_ONCE: usize = 64;
/// The most jobs of homes in a cluster of which this home has placed none there. They are to be deleted, or are of other
/// homes, whose jobs this one may take over. A cluster with more of them is not followed: a copy that is not known might
/// be started again elsewhere.
const STRAYS_MAX: usize = 10_000;

/// Why there is no link.
pub type Lost = (ClusterReason, String);

/// How clients of other clusters are made.
pub trait Connect: Send + Sync + 'static {
    /// A client with the kubeconfig in this Secret, and the name of the account that it has there.
    fn connect<'a>(&'a self, secret: &'a str) -> BoxFuture<'a, Result<(Client, String), Lost>>;
}

/// Reads kubeconfigs from Secrets of this cluster.
pub struct Kubeconfigs(pub Client);

impl Connect for Kubeconfigs {
    fn connect<'a>(&'a self, secret: &'a str) -> BoxFuture<'a, Result<(Client, String), Lost>> {
        async move {
            let secrets: Api<Secret> = Api::namespaced(self.0.clone(), SYSTEM_NAMESPACE);
            let missing = |what: &str| (ClusterReason::SecretMissing, what.to_owned());
            let found = match secrets.get(secret).await {
                Ok(found) => found,
                Err(Error::Api(status)) if status.code == 404 => {
                    return Err(missing(&format!("there is no Secret {SYSTEM_NAMESPACE}/{secret}")));
                }
                Err(error) => {
                    return Err(missing(&format!(
                        "cannot read the Secret {SYSTEM_NAMESPACE}/{secret}: {}",
                        said(error)
                    )));
                }
            };
            let data = found.data.unwrap_or_default();
            let text = data.get(KUBECONFIG_KEY).and_then(|bytes| std::str::from_utf8(&bytes.0).ok());
            let Some(text) = text else {
                return Err(missing(&format!(
                    "the Secret {SYSTEM_NAMESPACE}/{secret} has no key {KUBECONFIG_KEY} with a text"
                )));
            };
            let client = with_kubeconfig(text).await;
            let client = client.map_err(|error| (ClusterReason::KubeconfigRefused, error.to_string()))?;
            let reviews: Api<SelfSubjectReview> = Api::all(client.clone());
            let review = reviews.create(&PostParams::default(), &SelfSubjectReview::default()).await;
            let review = review.map_err(|error| no_answer(&said(error)))?;
            let account = review.status.and_then(|status| status.user_info).and_then(|user| user.username);
            Ok((client, account.unwrap_or_default()))
        }
        .boxed()
    }
}

/// Makes clients that only read while this process does not lead. One that was paused, and has a successor by now,
/// would otherwise set the lease of this home in another cluster back, and that cluster would end the home's jobs.
pub struct Guarded {
    pub connect: Arc<dyn Connect>,
    pub election: Election,
}

impl Connect for Guarded {
    fn connect<'a>(&'a self, secret: &'a str) -> BoxFuture<'a, Result<(Client, String), Lost>> {
        let connected = self.connect.connect(secret);
        connected.map_ok(move |(client, account)| (self.election.guard(client), account)).boxed()
    }
}

/// The id of the home with this account in a cluster: the policies there let it write jobs and a lease of ids with its
/// name alone.
fn home_id(account: &str, uid: &str) -> Result<String, Lost> {
    let name = account.strip_prefix("system:serviceaccount:").and_then(|rest| rest.strip_prefix(SYSTEM_NAMESPACE));
    let name = name.and_then(|rest| rest.strip_prefix(':')?.strip_prefix(HOME_ACCOUNT_PREFIX)).unwrap_or_default();
    if name.is_empty() || name.len() > HOME_NAME_MAX {
        let account: String = account.chars().take(100).collect();
        let why = format!(
            "the kubeconfig is of the account {account:?}, and must be of a ServiceAccount \
             {SYSTEM_NAMESPACE}/{HOME_ACCOUNT_PREFIX}NAME whose NAME has at most {HOME_NAME_MAX} characters: \
             `larder cluster join` makes one"
        );
        return Err((ClusterReason::KubeconfigRefused, why));
    }
    Ok(format!("{name}_{uid}"))
}

/// The message of an error: that of its first cause, such as "connection refused".
fn said(error: Error) -> String {
    match error {
        Error::Api(status) => status.message,
        error => {
            let causes = std::iter::successors(Some(&error as &dyn std::error::Error), |error| error.source());
            causes.last().map(ToString::to_string).unwrap_or_default()
        }
    }
}

/// The link to a cluster.
pub struct Link {
    /// The name of the Cluster.
    pub name: String,
    /// The number of this link, by which reports of an earlier one are told apart.
    pub number: u64,
    /// The uid of the Cluster.
    pub uid: String,
    pub secret: String,
    /// A client of this cluster, where the specs of jobs are read.
    pub home: Client,
    pub connect: Arc<dyn Connect>,
    pub desired: watch::Receiver<Desired>,
    pub news: mpsc::Sender<News>,
}

/// The jobs of homes in a cluster of which this home has placed none there, as far as the link has seen them.
#[derive(Default)]
struct Strays(Mutex<BTreeSet<Key>>);

impl Strays {
    /// Counts a job. Returns false if there are too many.
    fn add(&self, job: &Key) -> bool {
        let mut seen = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if seen.len() <= STRAYS_MAX {
            seen.insert(job.clone());
        }
        seen.len() <= STRAYS_MAX
    }

    fn are_too_many(&self) -> bool {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).len() > STRAYS_MAX
    }
}

/// The steps that were taken, and when.
type Taken = Vec<(Step, Instant)>;

/// The answer to a step: the change of the copy that it shows, or why the cluster refuses the step.
type Done = Result<Option<Update<RemoteJob>>, String>;

impl Link {
    /// Keeps the link until nobody wants it any more.
    pub async fn run(mut self) {
        let mut said = String::new();
        while let Err((reason, why)) = self.serve().await {
            // The same error comes again every few seconds.
            if said != why {
                warn!(cluster = self.name, reason = reason.as_str(), why, "the link to a cluster is lost");
                said.clone_from(&why);
            }
            if !self.report(Report::Lost(reason, why)).await {
                return;
            }
            tokio::time::sleep(AGAIN).await;
        }
    }

    /// Sends a report. Returns false if nobody wants it any more.
    async fn report(&self, report: Report) -> bool {
        self.news.send(News::Link(self.name.clone(), self.number, report)).await.is_ok()
    }

    /// Serves until the link is lost, or nobody wants it any more.
    async fn serve(&mut self) -> Result<(), Lost> {
        let connecting = tokio::time::timeout(REQUEST, self.connect.connect(&self.secret));
        let (client, account) = connecting.await.map_err(|_| no_answer("it did not answer within 10 s"))??;
        let home = home_id(&account, &self.uid)?;
        if !self.report(Report::Home(home.clone())).await {
            return Ok(());
        }
        // Until all jobs of this cluster are known, and those of this id.
        if self.desired.wait_for(|desired| desired.home == home).await.is_err() {
            return Ok(());
        }
        let (sender, mut updates) = mpsc::channel(64);
        let mut watched = Watched::all(Kind::TrainingJob, &Turns::default());
        // Copies of other homes matter, too: this home takes over those of one that is gone.
        watched.config.label_selector = Some(HOME_LABEL.to_owned());
        let jobs: Api<Unparsed> = Api::all_with(client.clone(), &Kind::TrainingJob.resource());
        let (known, strays) = (self.desired.clone(), Arc::new(Strays::default()));
        let seen = Arc::clone(&strays);
        let read = move |object: DynamicObject| {
            let copy = objects::remote_job(object)?;
            if known.borrow().jobs.contains_key(&copy.meta.key) {
                return Some(copy);
            }
            // Nothing but its home and its age matters.
            seen.add(&copy.meta.key).then(|| RemoteJob { status: TrainingJobStatus::default(), ..copy })
        };
        let listening = listen(jobs, watched, read, refusal, |update| update, sender);
        let mut listening = std::pin::pin!(listening);
        let mut there: Option<BTreeMap<Key, RemoteJob>> = None;
        let (mut taken, mut has_more, mut leases) = (Taken::new(), false, Leases::default());
        let mut beats = tokio::time::interval(BEAT);
        beats.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                _ = &mut listening => return Err(no_answer("this home may not list its TrainingJobs")),
                Some(update) = updates.recv() => {
                    if !self.take(update, &mut there).await {
                        return Ok(());
                    }
                }
                changed = self.desired.changed() => {
                    if changed.is_err() {
                        return Ok(());
                    }
                }
                _ = beats.tick() => {
                    let (here, millis) = self.beat(&client, there.as_ref()).await?;
                    let (of, status) = (objects::leases(&here), here.status.unwrap_or_default().bounded());
                    leases = Leases { read: status.heartbeat.as_ref().map(Seconds::of), of: of.clone() };
                    if !self.report(Report::Beat(Box::new(status), of, millis)).await {
                        return Ok(());
                    }
                }
                () = tokio::task::yield_now(), if has_more => {}
            }
            if strays.are_too_many() {
                return Err(no_answer(&format!("it has more than {STRAYS_MAX} TrainingJobs of other homes")));
            }
            has_more = self.step(&client, &mut there, &leases, &mut taken).await;
        }
    }

    /// Applies what the watch reports, or an answer, and passes it on.
    async fn take(&self, update: Update<RemoteJob>, there: &mut Option<BTreeMap<Key, RemoteJob>>) -> bool {
        let report = match update {
            Update::All(all) => {
                *there = Some(all.iter().map(|copy| (copy.meta.key.clone(), copy.clone())).collect());
                Report::All(all)
            }
            Update::Changed(copy) => {
                if let Some(there) = there {
                    there.insert(copy.meta.key.clone(), copy.clone());
                }
                Report::Changed(Box::new(copy))
            }
            Update::Gone(key, _) => {
                if let Some(there) = there {
                    there.remove(&key);
                }
                Report::Gone(key)
            }
        };
        self.report(report).await
    }

    /// Reads the description of the cluster, and renews the lease if all copies there may run.
    async fn beat(&self, client: &Client, there: Option<&BTreeMap<Key, RemoteJob>>) -> Result<(Cluster, u32), Lost> {
        let begun = Instant::now();
        // The lease is of the same moment as the jobs that it is for.
        let lease = {
            let desired = self.desired.borrow();
            let may_renew = there.is_some_and(|there| desired.may_renew(there));
            desired.read.filter(|_| may_renew).map(|read| (desired.home.clone(), read))
        };
        let clusters: Api<Cluster> = Api::all(client.clone());
        let asked = async {
            match lease {
                Some((home, read)) => {
                    let key = format!("{LEASE_ANNOTATION_PREFIX}{home}");
                    let annotations = json!({ key: read.0.to_string() });
                    let fields = json!({"metadata": {"annotations": annotations}});
                    clusters.patch(HERE, &by_home(), &Patch::Merge(&fields)).await
                }
                None => clusters.get(HERE).await,
            }
        };
        let here = match tokio::time::timeout(REQUEST, asked).await {
            Ok(Ok(here)) => here,
            Ok(Err(Error::Api(status))) if status.code == 404 => {
                let why = "it has no Cluster `here`: run `larder cluster join` there";
                return Err((ClusterReason::NotJoined, why.to_owned()));
            }
            Ok(Err(error)) => return Err(no_answer(&said(error))),
            Err(_) => return Err(no_answer("it did not answer within 10 s")),
        };
        let millis = u32::try_from(begun.elapsed().as_millis()).unwrap_or(u32::MAX);
        Ok((here, millis))
    }

    /// Takes the next steps to the desired state. Returns whether there are more.
    async fn step(
        &self,
        client: &Client,
        there: &mut Option<BTreeMap<Key, RemoteJob>>,
        leases: &Leases,
        taken: &mut Taken,
    ) -> bool {
        let Some(known) = &*there else { return false };
        let now = Instant::now();
        taken.retain(|(_, at)| now - *at < STEP_AGAIN);
        let desired = self.desired.borrow().clone();
        let mut due: Vec<Step> = desired.steps(known, leases);
        due.retain(|step| !taken.iter().any(|(before, _)| before == step));
        let has_more = due.len() > STEPS_AT_ONCE;
        due.truncate(STEPS_AT_ONCE);
        let of = &desired;
        let each = due.clone().into_iter().map(|step| async move {
            let done = tokio::time::timeout(REQUEST, self.take_step(client, of, &step)).await;
            (step, done.unwrap_or_else(|_| Err("it did not answer within 10 s".to_owned())))
        });
        let all: Vec<(Step, Done)> = futures::stream::iter(each).buffer_unordered(STEPS).collect().await;
        for (step, done) in all {
            let is_wanted = match done {
                Ok(None) => true,
                // A watch that hangs does not report it, and no lease may be renewed for a copy that is not known.
                Ok(Some(update)) => self.take(update, there).await,
                Err(why) => {
                    let key = step.key();
                    warn!(cluster = self.name, job = %key, why, "a cluster refuses a job");
                    let uid = desired.jobs.get(key).map(|wanted| wanted.uid.clone()).unwrap_or_default();
                    self.report(Report::Refused(key.clone(), uid, why)).await
                }
            };
            if !is_wanted {
                return false;
            }
        }
        taken.extend(due.into_iter().map(|step| (step, now)));
        has_more
    }

    async fn take_step(&self, client: &Client, desired: &Desired, step: &Step) -> Done {
        let key = step.key();
        let jobs: Api<TrainingJob> = Api::namespaced(client.clone(), &key.namespace);
        if let Step::Delete(key, uid) = step {
            let params = DeleteParams {
                propagation_policy: Some(PropagationPolicy::Background),
                preconditions: Some(Preconditions { uid: Some(uid.clone()), ..Preconditions::default() }),
                ..DeleteParams::default()
            };
            return match jobs.delete(&key.name, &params).await {
                Ok(_) => Ok(None),
                Err(Error::Api(status)) if status.code == 404 => Ok(Some(Update::Gone(key.clone(), 0))),
                Err(Error::Api(status)) if status.code == 409 => Ok(None),
                Err(error) => Err(said(error)),
            };
        }
        let own: Api<TrainingJob> = Api::namespaced(self.home.clone(), &key.namespace);
        let Some(wanted) = desired.jobs.get(key) else { return Ok(None) };
        let own = match own.get(&key.name).await {
            Ok(own) if own.metadata.uid.as_deref() == Some(wanted.uid.as_str()) => own,
            Ok(_) => return Ok(None),
            Err(error) => return Err(format!("the job cannot be read here: {}", said(error))),
        };
        let copy = copy_of(own, desired, wanted);
        let by_home = PostParams { field_manager: Some(HOME_MANAGER.to_owned()), ..PostParams::default() };
        if let Step::Create(_) = step {
            let there = match jobs.create(&by_home, &copy).await {
                Ok(created) => created,
                Err(Error::Api(status)) if status.reason == "AlreadyExists" => {
                    jobs.get(&key.name).await.map_err(said)?
                }
                Err(error) => return Err(said(error)),
            };
            let copy = objects::created(&there).filter(|copy| copy.home.id == desired.home);
            let copy = copy.ok_or("it has another TrainingJob of that name")?;
            return Ok(Some(Update::Changed(copy)));
        }
        let mut there = jobs.get(&key.name).await.map_err(said)?;
        if let Step::Adopt(_, version) = step {
            // Another home may have taken it over meanwhile.
            there.metadata.resource_version = Some(version.to_string());
            // Its spec follows in the next step: the cluster may refuse that, and the copy is this home's all the same.
            let labels = there.metadata.labels.get_or_insert_default();
            labels.extend(copy.metadata.labels.unwrap_or_default());
            let annotations = there.metadata.annotations.get_or_insert_default();
            annotations.insert(HOME_GENERATION_ANNOTATION.to_owned(), "0".to_owned());
            // This home may give the copy up after another time than the last one.
            annotations.remove(FENCE_ANNOTATION);
            let fence = copy.metadata.annotations.and_then(|mut all| all.remove_entry(FENCE_ANNOTATION));
            annotations.extend(fence);
        } else if label(&there, HOME_JOB_LABEL) == Some(wanted.uid.as_str()) {
            follow(&mut there.spec, copy.spec);
            let generation = copy.metadata.annotations.and_then(|mut all| all.remove(HOME_GENERATION_ANNOTATION));
            let annotations = there.metadata.annotations.get_or_insert_default();
            annotations.insert(HOME_GENERATION_ANNOTATION.to_owned(), generation.unwrap_or_default());
        } else {
            return Ok(None);
        }
        match jobs.replace(&key.name, &by_home, &there).await {
            Ok(_) => Ok(None),
            // It has changed meanwhile, and the next step sees that.
            Err(Error::Api(status)) if [404, 409].contains(&status.code) => Ok(None),
            Err(error) => Err(said(error)),
        }
    }
}

fn by_home() -> PatchParams {
    PatchParams { field_manager: Some(HOME_MANAGER.to_owned()), ..PatchParams::default() }
}

fn no_answer(why: &str) -> Lost {
    (ClusterReason::NoAnswer, why.to_owned())
}

/// Brings the fields of a copy up to date that can change. The others stay as the cluster has them: it may have set
/// defaults.
fn follow(there: &mut TrainingJobSpec, own: TrainingJobSpec) {
    for role in &mut there.roles {
        if let Some(own) = own.roles.iter().find(|own| own.name == role.name) {
            (role.replicas, role.min, role.max) = (own.replicas, own.min, own.max);
            role.starts_after.clone_from(&own.starts_after);
        }
    }
    (there.suspend, there.restart, there.priority) = (own.suspend, own.restart, own.priority);
    (there.active_deadline, there.keep_pods) = (own.active_deadline, own.keep_pods);
}

/// The copy of a job for another cluster: a job of that cluster, which stays until its home deletes it.
fn copy_of(own: TrainingJob, desired: &Desired, wanted: &Wanted) -> TrainingJob {
    let spec = TrainingJobSpec {
        clusters: Vec::new(),
        failover: None,
        managed_by: None,
        ttl_after_finished: None,
        ..own.spec
    };
    let mut copy = TrainingJob::new(own.metadata.name.as_deref().unwrap_or_default(), spec);
    copy.metadata.namespace = own.metadata.namespace;
    let labels = [(HOME_LABEL, desired.home.clone()), (HOME_JOB_LABEL, wanted.uid.clone())];
    copy.metadata.labels = Some(labels.map(|(key, value)| (key.to_owned(), value)).into());
    let generation = own.metadata.generation.unwrap_or_default();
    let numbers = [
        (HOME_GENERATION_ANNOTATION, Some(generation)),
        (HOME_READ_ANNOTATION, desired.read.map(|read| read.0)),
        (FENCE_ANNOTATION, wanted.fence_after),
    ];
    let numbers = numbers.into_iter().filter_map(|(key, number)| Some((key.to_owned(), number?.to_string())));
    copy.metadata.annotations = Some(numbers.collect());
    copy
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_field_of_a_job_that_can_change_is_followed() {
        let spec = |fields: serde_json::Value| {
            let mut spec = json!({"type": "single", "roles": [{"name": "worker", "replicas": 1, "template": {}}]});
            spec.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
            serde_json::from_value::<TrainingJobSpec>(spec).unwrap()
        };
        let role = json!({"name": "worker", "replicas": 3, "min": 2, "max": 4, "startsAfter": [{"role": "master"}],
            "template": {}});
        let own = spec(json!({"priority": "high", "suspend": true, "restart": {"maxCrashes": 3},
            "activeDeadline": "1h", "keepPods": "all", "roles": [role]}));
        let mut there = spec(json!({}));
        follow(&mut there, own.clone());
        assert_eq!(there, own);
    }

    #[test]
    fn the_id_of_a_home_is_a_label_with_the_name_of_its_account_and_no_account_has_the_name_of_another() {
        let account = |name: &str| format!("system:serviceaccount:larder-system:home-{name}");
        let uid = "6f1c9a3e-8a3c-4f0e-9d52-0b6c8f0f7a11";
        assert_eq!(home_id(&account("hq"), uid).unwrap(), format!("hq_{uid}"));
        let longest = home_id(&account(&"a".repeat(HOME_NAME_MAX)), uid).unwrap();
        assert_eq!(longest.len(), 63, "the most characters of a label");
        // A name has dots, and never the character that ends it.
        assert!(!home_id(&account("hq.east"), uid).unwrap().starts_with("hq_"));
        let long = account(&"a".repeat(HOME_NAME_MAX + 1));
        for other in ["", "admin", "system:serviceaccount:team-a:home-hq", &account(""), &long] {
            let (reason, why) = home_id(other, uid).unwrap_err();
            assert!(reason == ClusterReason::KubeconfigRefused && why.contains("larder cluster join"), "{why}");
        }
    }

    #[test]
    fn the_message_of_an_error_is_that_of_its_first_cause() {
        assert_eq!(said(Error::Service(std::io::Error::other("connection refused").into())), "connection refused");
    }

    // SEMANTICS: J21
    #[test]
    fn jobs_of_other_homes_count_once_each_however_often_they_change() {
        let (strays, job) = (Strays::default(), |at: usize| Key::new("team-a", &format!("job-{at}")));
        for _ in 0..3 {
            assert!((0..STRAYS_MAX).all(|at| strays.add(&job(at))), "they may have to be taken over");
        }
        assert!(!strays.are_too_many());
        assert!(!strays.add(&job(STRAYS_MAX)) && strays.are_too_many());
        assert!(!strays.add(&job(STRAYS_MAX + 1)));
        assert_eq!(strays.0.lock().unwrap().len(), STRAYS_MAX + 1, "no memory for more");
    }
}
