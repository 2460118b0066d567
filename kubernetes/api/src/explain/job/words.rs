//! The meaning of each reason of a job's conditions.

use crate::names::{JOB_LABEL, KUEUE_QUEUE_LABEL, SWEEP_LABEL};
use crate::training_job::TrainingJob;
use crate::training_job::conditions::JobReason;

/// Why, what happens next automatically, and what to do.
#[derive(Debug, Default)]
pub(super) struct Words {
    pub(super) why: String,
    pub(super) next: &'static str,
    pub(super) todo: String,
}

/// A message without its final period, as a part of a sentence.
pub(super) fn part(text: &str) -> &str {
    text.trim().trim_end_matches('.')
}

fn namespace(job: &TrainingJob) -> &str {
    job.metadata.namespace.as_deref().unwrap_or("default")
}

fn name(job: &TrainingJob) -> &str {
    job.metadata.name.as_deref().unwrap_or_default()
}

/// The command that shows the logs of the job's pods.
pub(super) fn logs(job: &TrainingJob) -> String {
    format!("larder job logs {}/{} --all", namespace(job), name(job))
}

/// The command that shows the trials of a sweep.
pub(super) fn trials(job: &TrainingJob) -> String {
    format!("see them: kubectl get tj -n {} -l {SWEEP_LABEL}={}", namespace(job), name(job))
}

/// The command that resumes the job.
pub(super) fn resume(job: &TrainingJob) -> String {
    format!("larder job resume {}/{}", namespace(job), name(job))
}

/// The meaning of a reason. `said` is the condition's message, which has the numbers; it may be empty.
pub(super) fn words(job: &TrainingJob, reason: JobReason, said: &str) -> Words {
    let (namespace, name, kind) = (namespace(job), name(job), &job.spec.type_);
    let queue = job.spec.queue.as_deref().unwrap_or("QUEUE");
    let because = |what: &str| if said.is_empty() { what.to_owned() } else { format!("{what}: {said}") };
    let or = |what: &str| if said.is_empty() { what.to_owned() } else { said.to_owned() };
    let again = format!("larder job cancel {namespace}/{name}, and submit it with the correction");
    let pods = format!("kubectl describe pods -n {namespace} -l {JOB_LABEL}={name}");
    let (why, next, todo) = match reason {
        JobReason::Accepted => (or("the job is valid"), "", String::new()),
        JobReason::InvalidSpec => (
            because("its spec has an invalid value"),
            "nothing starts until the value is corrected",
            format!("kubectl edit tj {name} -n {namespace}, or {again}"),
        ),
        JobReason::TypeMissing => (
            or(&format!("there is no JobType {kind}, which spec.type names")),
            "it resumes automatically once that JobType exists",
            format!("see which there are: kubectl get jobtypes; to name another: {again}"),
        ),
        JobReason::TypeInvalid => (
            because(&format!("the JobType {kind} is itself invalid")),
            "it resumes automatically once the JobType is corrected",
            format!("ask the administrator to correct it: kubectl get jobtype {kind} -o yaml"),
        ),
        JobReason::RolesUnfit => (
            because(&format!("its roles do not match the JobType {kind}")),
            "nothing starts until they match",
            format!("see the roles of the type: kubectl get jobtype {kind} -o yaml; then {again}"),
        ),
        JobReason::DatasetNotGranted => (
            or("a Dataset does not exist, or the job's namespace may not use it"),
            "it resumes automatically once access is granted",
            format!(
                "list the Datasets of the job's namespace: kubectl get dset -n {namespace}; the owner of any other Dataset \
                 grants access in spec.namespaces"
            ),
        ),
        JobReason::QueueNotGranted => (
            or(&format!("there is no Queue {queue}, or it accepts no jobs from {namespace}")),
            "it resumes automatically once the Queue accepts them",
            format!("ask its administrator to list {namespace} in spec.namespaces of the Queue {queue}"),
        ),
        JobReason::ClusterMissing => (
            or("spec.clusters names a Cluster that does not exist"),
            "it resumes automatically once that Cluster exists",
            format!("see which there are: larder cluster list; to name another: {again}"),
        ),
        JobReason::PodRefused => (
            because("the API server rejects its pods"),
            "it is retried automatically",
            format!("correct what the message names (PodSecurity, a LimitRange, a quota of {namespace}), or {again}"),
        ),
        JobReason::GangRefused => (
            or("the scheduler cannot take its pods as one gang (spec.gang.backend native)"),
            "it resumes automatically once the scheduler can",
            format!("to let Larder plan it, set spec.gang.backend to auto: {again}"),
        ),
        JobReason::Waiting => (or("an earlier step is not done yet"), "", String::new()),
        JobReason::NoQueue => (or("it is in no queue and starts as soon as it fits"), "", String::new()),
        JobReason::Reserved => (or("its queue has reserved quota for it"), "", String::new()),
        JobReason::QuotaUsed => (or(&format!("queue {queue} has no quota left")), "", String::new()),
        JobReason::ResourceQuotaUsed => (
            or("a ResourceQuota of its namespace is used up"),
            "it starts once that quota has room",
            format!("see what uses it: kubectl describe resourcequota -n {namespace}"),
        ),
        JobReason::NotItsTurn => (or("jobs before it in the queue come first"), "", String::new()),
        JobReason::QueueStopped => (
            or(&format!("queue {queue} is stopped (spec.stop)")),
            "it resumes automatically once the queue does",
            format!("ask its administrator: kubectl get tq {queue}"),
        ),
        JobReason::KueueDecides => {
            let local = job.metadata.labels.as_ref().and_then(|labels| labels.get(KUEUE_QUEUE_LABEL));
            let local = local.map(|local| format!(" to the LocalQueue {local}")).unwrap_or_default();
            (
                if said.contains("Kueue") {
                    said.to_owned()
                } else {
                    because(&format!("Kueue has not admitted it{local}"))
                },
                "it starts when Kueue does",
                format!("see why: kubectl describe workloads.kueue.x-k8s.io -n {namespace}"),
            )
        }
        JobReason::Preempted => {
            (because("another job took its quota"), "it starts again automatically when there is room", String::new())
        }
        JobReason::Suspended => (or("spec.suspend is true"), "", format!("to resume: {}", resume(job))),
        JobReason::NoData => (or("it reads no dataset"), "", String::new()),
        JobReason::Cached => (or("enough of its data is cached"), "", String::new()),
        JobReason::Warming => (or("its data is being fetched to its nodes"), "", String::new()),
        JobReason::WarmTimeout => {
            (because("it waited for its data until the timeout and starts cold"), "", String::new())
        }
        JobReason::Bound => (or("all pods that it needs have nodes"), "", String::new()),
        JobReason::Binding => (or("its pods are being bound to nodes"), "", format!("if this takes long: {pods}")),
        JobReason::NoRoom => {
            (or("no nodes have room for all its pods now"), "it starts when there is room", String::new())
        }
        JobReason::LargerThanTheCluster => (
            or("the whole cluster is too small for it"),
            "it starts once nodes are added",
            format!("request less (fewer pods, smaller requests, a lower spec.roles[].min): {again}"),
        ),
        JobReason::NoCluster => {
            (or("it fits in none of its clusters now"), "it starts in the first that has room", String::new())
        }
        JobReason::NotBoundInTime => (
            because("its pods were not bound in time"),
            "it is planned again automatically",
            format!("see what held them up: {pods}"),
        ),
        JobReason::Succeeded => (or("its success rule is met"), "", String::new()),
        JobReason::CrashedTooOften => (
            because("too many of its pods crashed"),
            "",
            format!("see why: {}; raise spec.restart.maxCrashes to tolerate more crashes", logs(job)),
        ),
        JobReason::FailedByRule => (
            because("a rule of its spec.restart failed it"),
            "",
            format!("see why the pod ended: {}; change spec.restart.rules to go on after this exit code", logs(job)),
        ),
        JobReason::TrialsFailed => (because("too many of its trials failed"), "", trials(job)),
        JobReason::DeadlineExceeded => (
            because(&format!("it ran for {}", job.spec.active_deadline.as_deref().unwrap_or("its whole deadline"))),
            "",
            format!("raise spec.activeDeadline to let it run longer: {again}"),
        ),
    };
    Words { why, next, todo }
}
