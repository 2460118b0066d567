//! The `runPolicy` that Kubeflow's kinds share.

use std::time::Duration;

use larder_dataset::size::exact_duration;

use super::fields::Fields;
use super::template::Replicas;
use crate::checked::InvalidField;
use crate::names::KUEUE_QUEUE_LABEL;
use crate::training_job::{KeepPods, RestartAction, RestartRule, TrainingJob};

/// The controller that would have run the job.
const OPERATORS: [&str; 2] = ["kubeflow.org/training-operator", "kubeflow.org/mpi-operator"];

/// How crashed pods are restarted.
#[derive(Clone, Copy)]
pub(super) enum Restarts {
    /// By the operator, according to the role's `restartPolicy`. The value is the default policy.
    ByRole(&'static str),
    /// By a batch Job. The value is the default `backoffLimit`.
    ByJob(u32),
}

/// Converts the policy, and adds the roles to the job.
pub(super) fn apply(
    spec: &mut Fields,
    mut roles: Vec<Replicas>,
    who: Restarts,
    job: &mut TrainingJob,
    warnings: &mut Vec<String>,
) -> Result<(), InvalidField> {
    let mut policy = spec.object("runPolicy")?;
    clean(&mut policy, job, warnings)?;
    job.spec.ttl_after_finished = policy.read("ttlSecondsAfterFinished")?.map(time);
    job.spec.active_deadline = policy.read("activeDeadlineSeconds")?.map(time);
    job.spec.suspend = policy.read("suspend")?.unwrap_or_default();
    let path = policy.path("managedBy");
    job.spec.managed_by = policy.read("managedBy")?;
    if let Some(operator) = job.spec.managed_by.take_if(|name| OPERATORS.contains(&name.as_str())) {
        warnings.push(format!("{path}: was {operator}; Larder runs the job now"));
    }
    restarts(&mut policy, &roles, who, job, warnings)?;
    scheduling(policy.object("schedulingPolicy")?, &mut roles, job, warnings)?;
    policy.rest(warnings);
    job.spec.roles = roles.into_iter().map(|replicas| replicas.role).collect();
    Ok(())
}

/// A number of seconds in the notation of Larder's kinds.
fn time(seconds: u64) -> String {
    if seconds == 0 { "0s".to_owned() } else { exact_duration(Duration::from_secs(seconds)) }
}

fn clean(policy: &mut Fields, job: &mut TrainingJob, warnings: &mut Vec<String>) -> Result<(), InvalidField> {
    let path = policy.path("cleanPodPolicy");
    let given: Option<String> = policy.read("cleanPodPolicy")?;
    job.spec.keep_pods = given.and_then(|given| keep_pods(&path, &given, warnings));
    Ok(())
}

/// The pods that stay under a `cleanPodPolicy`; `None` for an unknown policy.
pub(super) fn keep_pods(path: &str, given: &str, warnings: &mut Vec<String>) -> Option<KeepPods> {
    match given {
        "" => None,
        "All" => Some(KeepPods::None),
        "Running" => Some(KeepPods::Ended),
        "None" => Some(KeepPods::All),
        other => {
            warnings.push(format!("{path}: is {other:?}, which is not known; spec.keepPods has its default"));
            None
        }
    }
}

fn restarts(
    policy: &mut Fields,
    roles: &[Replicas],
    who: Restarts,
    job: &mut TrainingJob,
    warnings: &mut Vec<String>,
) -> Result<(), InvalidField> {
    let path = policy.path("backoffLimit");
    let limit: Option<u32> = policy.read("backoffLimit")?;
    let default = match who {
        Restarts::ByRole(default) => default,
        Restarts::ByJob(attempts) => {
            job.spec.restart.max_crashes = Some(limit.unwrap_or(attempts));
            return Ok(());
        }
    };
    let of = |replicas: &Replicas| replicas.restart_policy.clone().unwrap_or_else(|| default.to_owned());
    let never = roles.iter().filter(|replicas| of(replicas) == "Never").count();
    for replicas in roles {
        // The operator fails the job for these exit codes of the role's pods.
        let exit_codes = match of(replicas).as_str() {
            "ExitCode" => Some("1-127".to_owned()),
            "Never" if never < roles.len() => None,
            "Always" => {
                let about = "is Always; Larder leaves pods that ended well as they are";
                warnings.push(format!("{}.restartPolicy: {about}", replicas.path));
                continue;
            }
            _ => continue,
        };
        let roles = vec![replicas.role.name.clone()];
        job.spec.restart.rules.push(RestartRule { roles, exit_codes, action: RestartAction::Fail });
    }
    if never > 0 && never == roles.len() {
        job.spec.restart.max_crashes = Some(0);
        if limit.is_some_and(|limit| limit > 0) {
            warnings.push(format!("{path}: is left out, as each restartPolicy is Never; spec.restart.maxCrashes is 0"));
        }
        return Ok(());
    }
    job.spec.restart.max_crashes = limit;
    if limit.is_none() && !roles.is_empty() {
        warnings.push(format!(
            "{path}: is not given, and pods were started again without limit; spec.restart.maxCrashes is the JobType's"
        ));
    }
    Ok(())
}

fn scheduling(
    mut policy: Fields,
    roles: &mut [Replicas],
    job: &mut TrainingJob,
    warnings: &mut Vec<String>,
) -> Result<(), InvalidField> {
    let total: u32 = roles.iter().map(|replicas| replicas.role.replicas).fold(0, u32::saturating_add);
    let path = policy.path("minAvailable");
    if let Some(least) = policy.read::<u32>("minAvailable")?.filter(|least| *least != total) {
        warnings.push(format!(
            "{path}: is {least} of {total} pods; say it by spec.roles[].min, if the framework can run with fewer"
        ));
    }
    let path = policy.path("queue");
    if let Some(queue) = policy.read::<String>("queue")?.filter(|queue| !queue.is_empty()) {
        let kueue = job.metadata.labels.as_ref().is_some_and(|labels| labels.contains_key(KUEUE_QUEUE_LABEL));
        if kueue {
            warnings.push(format!("{path}: is left out, as the label {KUEUE_QUEUE_LABEL} decides"));
        } else {
            warnings.push(format!("{path}: became spec.queue; there must be a Queue named {queue}"));
            job.spec.queue = Some(queue);
        }
    }
    if let Some(class) = policy.read::<String>("priorityClass")?.filter(|class| !class.is_empty()) {
        for spec in roles.iter_mut().filter_map(|replicas| replicas.role.template.spec.as_mut()) {
            spec.priority_class_name.get_or_insert_with(|| class.clone());
        }
    }
    let timeout: Option<u64> = policy.read("scheduleTimeoutSeconds")?;
    job.spec.gang.timeout = timeout.filter(|seconds| *seconds > 0).map(time);
    policy.rest(warnings);
    Ok(())
}
