use serde_json::{Value, json};

use super::*;
use crate::names::KUEUE_QUEUE_LABEL;

fn condition(kind: JobConditionKind, status: bool, reason: &str, message: &str) -> Value {
    json!({
        "type": kind.as_str(),
        "status": if status { "True" } else { "False" },
        "reason": reason,
        "message": message,
        "lastTransitionTime": "2026-01-31T09:00:00Z",
    })
}

/// A job in the queue vision that requests four pods with a GPU each.
fn job(name: &str, phase: &str, conditions: &[Value]) -> Value {
    json!({
        "apiVersion": "larder.dev/v1alpha1",
        "kind": "TrainingJob",
        "metadata": {
            "namespace": "team-a", "name": name, "generation": 1, "creationTimestamp": "2026-01-31T09:00:00Z",
        },
        "spec": {"type": "pytorch-elastic", "queue": "vision", "activeDeadline": "2h", "roles": [{
            "name": "worker", "replicas": 4,
            "template": {"spec": {"containers": [{"name": "a", "resources": {"limits": {"nvidia.com/gpu": 1}}}]}},
        }]},
        "status": {"observedGeneration": 1, "phase": phase, "conditions": conditions, "roles": [
            {"name": "worker", "desired": 4, "active": 4, "ready": 3, "done": 0},
        ]},
    })
}

fn set(mut job: Value, pointer: &str, value: Value) -> Value {
    let (at, field) = pointer.rsplit_once('/').unwrap();
    job.pointer_mut(at).unwrap()[field] = value;
    job
}

fn read(job: &Value) -> TrainingJob {
    serde_json::from_value(job.clone()).unwrap()
}

fn explained(job: &Value, around: &Around) -> JobExplanation {
    explain_job(&read(job), around)
}

fn sentence(job: &Value) -> String {
    explained(job, &Around::default()).sentence("team-a/resnet")
}

/// The sentence of a job that waits because of this reason.
fn kept_waiting(reason: JobReason, message: &str) -> String {
    let kind = reason.conditions()[0];
    sentence(&job("resnet", "Queued", &[condition(kind, false, reason.as_str(), message)]))
}

/// A queue with eight GPUs. Two jobs use six of them: two and four.
fn around() -> Around {
    let queue = json!({
        "apiVersion": "larder.dev/v1alpha1", "kind": "Queue", "metadata": {"name": "vision"},
        "spec": {"namespaces": ["*"], "quota": {"nvidia.com/gpu": {"nominal": 8}}},
        "status": {"usage": {"nvidia.com/gpu": {"used": "6", "borrowed": "0"}}},
    });
    let running = |name: &str, pods: u32, started: &str| {
        let job = set(job(name, "Running", &[]), "/status/roles/0/desired", pods.into());
        read(&set(job, "/status/started", started.into()))
    };
    Around {
        queues: vec![serde_json::from_value(queue).unwrap()],
        jobs: vec![running("train-b", 4, "2026-01-31T13:00:00Z"), running("train-a", 2, "2026-01-31T12:10:00Z")],
        now: "2026-01-31T13:30:00Z".parse().unwrap(),
        ..Around::default()
    }
}

#[test]
fn a_waiting_job_says_what_the_queue_lacks_which_job_ends_next_and_where_its_data_is() {
    use JobConditionKind::{DataWarm, QuotaReserved};
    let conditions =
        [condition(QuotaReserved, false, "QuotaUsed", ""), condition(DataWarm, false, "Warming", "62 % on n3")];
    let own = job("resnet", "Queued", &conditions);
    let expected = "team-a/resnet waits: queue vision uses 6 of 8 GPUs, needs 4; next to end: team-a/train-a (2), by \
                    14:10 UTC at its deadline; data: 62 % on n3.";
    assert_eq!(explained(&own, &around()).sentence("team-a/resnet"), expected);
    // The controller's own sentence comes first, and no fact is repeated.
    let said = "queue vision uses 5 of 8 GPUs, needs 4; next to end: team-a/x (1), by 15:00 UTC at its deadline";
    let own = set(own, "/status/waitingFor", said.into());
    let expected = format!("team-a/resnet waits: {said}; data: 62 % on n3.");
    assert_eq!(explained(&own, &around()).sentence("team-a/resnet"), expected);
    // A reader who may see only the job gets no further facts.
    let bare = job("resnet", "Queued", &conditions[..1]);
    assert_eq!(sentence(&bare), "team-a/resnet waits: queue vision has no quota left.");
}

#[test]
fn a_job_lacks_quota_of_flavors_only_if_it_has_enough_of_none() {
    let own = job("resnet", "Queued", &[condition(JobConditionKind::QuotaReserved, false, "QuotaUsed", "")]);
    let mut around = around();
    around.jobs.clear();
    around.queues[0].spec.quota.clear();
    let of = |name: &str, nominal: u32| json!({"name": name, "quota": {"nvidia.com/gpu": {"nominal": nominal}}});
    for (nominal, expected) in [
        (3, "team-a/resnet waits: queue vision uses 0 of 3 GPUs on a100, needs 4."),
        (4, "team-a/resnet waits: queue vision has quota for it, and larder-controller has not decided yet."),
    ] {
        around.queues[0].spec.flavors = serde_json::from_value(json!([of("h100", 2), of("a100", nominal)])).unwrap();
        assert_eq!(explained(&own, &around).sentence("team-a/resnet"), expected);
    }
}

#[test]
fn a_waiting_job_says_how_many_jobs_are_before_it() {
    let not_its_turn = condition(JobConditionKind::QuotaReserved, false, "NotItsTurn", "");
    let own = job("resnet", "Queued", &[not_its_turn]);
    let mut around = around();
    let older =
        |name: &str| read(&set(job(name, "Queued", &[]), "/metadata/creationTimestamp", "2026-01-31T08:00:00Z".into()));
    around.jobs = vec![read(&own), older("first")];
    let said = explained(&own, &around).sentence("team-a/resnet");
    assert!(said.ends_with("before it in the queue: team-a/first."), "{said}");
    around.jobs.push(older("another"));
    let said = explained(&own, &around).sentence("team-a/resnet");
    assert!(said.ends_with("before it in the queue: 2 jobs, the first is team-a/another."), "{said}");
    let own = set(own, "/status/waitingFor", "waits behind team-a/x, which came first".into());
    let said = explained(&own, &around).sentence("team-a/resnet");
    assert_eq!(said, "team-a/resnet waits: waits behind team-a/x, which came first.");
}

#[test]
fn a_sweep_is_explained_by_its_trials() {
    let sweep = json!({"trials": 200, "active": 20, "succeeded": 30, "failed": 2,
        "best": {"name": "resnet-17", "result": "0.2", "parameters": {"LR": "0.1"}}});
    let own = set(job("resnet", "Running", &[]), "/status/sweep", sweep);
    let said = "team-a/resnet runs: 32 of 200 trials have ended, 2 of them failed, and 20 exist; the best is resnet-17 \
                with 0.2; see them: kubectl get tj -n team-a -l larder.dev/sweep=resnet.";
    assert_eq!(sentence(&own), said);
    let waits = set(own, "/status/waitingFor", "resnet-32: queue vision uses 8 of 8 GPUs.".into());
    assert!(sentence(&waits).contains("0.2; resnet-32: queue vision uses 8 of 8 GPUs; see"), "{}", sentence(&waits));
    let why = "resnet-17 has reached the target with 0.2";
    let done = job("resnet", "Succeeded", &[condition(JobConditionKind::Complete, true, "Succeeded", why)]);
    assert_eq!(sentence(&done), "team-a/resnet succeeded: it has finished.");
    let done = set(done, "/status/sweep", json!({"trials": 200, "active": 0, "succeeded": 30, "failed": 2}));
    assert_eq!(sentence(&done), format!("team-a/resnet succeeded: it has finished; {why}."));
}

#[test]
fn every_reason_makes_one_sentence_that_says_why_and_what_to_do() {
    for reason in JobReason::ALL {
        let (why, rest) = match reason {
            JobReason::Accepted => ("the job is valid", ""),
            JobReason::InvalidSpec => ("its spec has an invalid value", "kubectl edit tj resnet -n team-a"),
            JobReason::TypeMissing => ("no JobType pytorch-elastic", "kubectl get jobtypes"),
            JobReason::TypeInvalid => {
                ("JobType pytorch-elastic is itself invalid", "kubectl get jobtype pytorch-elastic")
            }
            JobReason::RolesUnfit => ("do not match the JobType", "kubectl get jobtype pytorch-elastic"),
            JobReason::DatasetNotGranted => ("Dataset", "kubectl get dset -n team-a"),
            JobReason::QueueNotGranted => ("no Queue vision", "ask its administrator to list team-a"),
            JobReason::ClusterMissing => ("a Cluster that does not exist", "larder cluster list"),
            JobReason::PodRefused => ("rejects its pods", "PodSecurity"),
            JobReason::GangRefused => ("as one gang", "set spec.gang.backend to auto"),
            JobReason::Waiting => ("not done yet", ""),
            JobReason::NoQueue => ("in no queue", ""),
            JobReason::Reserved => ("reserved quota", ""),
            JobReason::QuotaUsed => ("queue vision has no quota left", ""),
            JobReason::ResourceQuotaUsed => {
                ("ResourceQuota of its namespace", "kubectl describe resourcequota -n team-a")
            }
            JobReason::NotItsTurn => ("before it in the queue", ""),
            JobReason::QueueStopped => ("queue vision is stopped", "kubectl get tq vision"),
            JobReason::KueueDecides => {
                ("Kueue has not admitted it", "kubectl describe workloads.kueue.x-k8s.io -n team-a")
            }
            JobReason::Preempted => ("another job took its quota", "starts again automatically"),
            JobReason::Suspended => ("spec.suspend is true", "larder job resume team-a/resnet"),
            JobReason::NoData => ("reads no dataset", ""),
            JobReason::Cached => ("is cached", ""),
            JobReason::Warming => ("data is being fetched", ""),
            JobReason::WarmTimeout => ("starts cold", ""),
            JobReason::Bound => ("have nodes", ""),
            JobReason::Binding => ("being bound", "kubectl describe pods -n team-a -l larder.dev/job=resnet"),
            JobReason::NoRoom => ("no nodes have room", "starts when there is room"),
            JobReason::LargerThanTheCluster => ("too small for it", "request less"),
            JobReason::NoCluster => ("none of its clusters", "starts in the first that has room"),
            JobReason::NotBoundInTime => ("not bound in time", "planned again automatically"),
            JobReason::Succeeded => ("success rule is met", ""),
            JobReason::CrashedTooOften => ("pods crashed", "larder job logs team-a/resnet --all"),
            JobReason::FailedByRule => ("a rule of its spec.restart", "change spec.restart.rules"),
            JobReason::TrialsFailed => ("its trials failed", "kubectl get tj"),
            JobReason::DeadlineExceeded => ("it ran for 2h", "raise spec.activeDeadline"),
        };
        // Reasons of Complete and Failed do not make a job wait.
        let ends = [JobConditionKind::Complete, JobConditionKind::Failed].contains(&reason.conditions()[0]);
        let of = |message: &str| {
            if ends {
                words::words(&read(&job("resnet", "Failed", &[])), *reason, message).why
            } else {
                kept_waiting(*reason, message)
            }
        };
        let said = of("");
        assert!(said.contains(why), "{reason}: {said}");
        if !ends {
            assert!(said.starts_with("team-a/resnet waits: ") && said.contains(rest), "{reason}: {said}");
            assert!(said.ends_with('.') && !said.contains(". ") && !said.contains(": ;"), "{reason}: {said}");
        }
        // The controller's words are passed on.
        let with_message = of("n3: its words");
        assert!(with_message.contains("n3: its words"), "{reason}: {with_message}");
    }
}

#[test]
fn the_first_condition_with_a_reason_of_its_own_counts() {
    use JobConditionKind::{DataWarm, Placed, QuotaReserved, Valid};
    let accepted = condition(Valid, true, "Accepted", "");
    let reserved = condition(QuotaReserved, true, "Reserved", "");
    let conditions = [
        accepted.clone(),
        reserved,
        condition(DataWarm, false, "Waiting", ""),
        condition(Placed, false, "NoRoom", "12 pods of role worker need room: 8 fit now"),
    ];
    let own = explained(&job("resnet", "Queued", &conditions), &Around::default());
    assert_eq!(own.reason.as_deref(), Some("NoRoom"));
    assert!(own.why.starts_with("12 pods of role worker need room"), "{}", own.why);
    // An invalid job waits for nothing else.
    let invalid = condition(Valid, false, "TypeMissing", "there is no JobType x");
    let own = set(
        job("resnet", "Queued", &[invalid, condition(QuotaReserved, false, "QuotaUsed", "")]),
        "/status/waitingFor",
        "stale".into(),
    );
    let own = explained(&own, &around());
    assert_eq!((own.reason.as_deref(), own.why.as_str()), (Some("TypeMissing"), "there is no JobType x"));
}

#[test]
fn every_phase_has_a_sentence() {
    for phase in Phase::ALL {
        let name = serde_json::to_value(phase).unwrap();
        let (standing, words) = match phase {
            Phase::Queued => (JobSituation::Waits, "about to process it"),
            Phase::DataWarming => (JobSituation::Waits, "about to process it"),
            Phase::Starting => (JobSituation::Starts, "3 of 4 pods are ready"),
            Phase::Running => (JobSituation::Runs, "3 of 4 pods are ready"),
            Phase::Shrinking => (JobSituation::Runs, "some of its pods end to make room for other jobs"),
            Phase::Growing => (JobSituation::Runs, "more pods join it"),
            Phase::Recovering => (JobSituation::Recovers, "3 of 4 pods are ready"),
            Phase::Suspended => (JobSituation::Suspended, "larder job resume team-a/resnet"),
            Phase::Succeeded => (JobSituation::Succeeded, "it has finished"),
            Phase::Failed => (JobSituation::Failed, "does not say why"),
        };
        let own = job("resnet", name.as_str().unwrap(), &[]);
        let explanation = explained(&own, &Around::default());
        let said = explanation.sentence("team-a/resnet");
        assert_eq!(explanation.standing, standing, "{said}");
        assert!(said.contains(words), "{phase:?}: {said}");
        // The sentence has the controller's text, unless the job has succeeded.
        let said = sentence(&set(own, "/status/waitingFor", "1 of 4 pods are ready".into()));
        let is_silent = matches!(phase, Phase::Succeeded);
        assert_eq!(said.contains("1 of 4 pods are ready"), !is_silent, "{phase:?}: {said}");
    }
}

#[test]
fn the_end_of_a_job_says_how_it_ended_and_what_it_lost() {
    use JobConditionKind::Failed;
    let failed = condition(Failed, true, "CrashedTooOften", "4 pods crashed, and spec.restart.maxCrashes is 3");
    let own = set(job("resnet", "Failed", &[failed]), "/status/restarts", json!({"crashed": 4, "nodeLost": 1}));
    let said = sentence(&own);
    let begin = "team-a/resnet failed: too many of its pods crashed: 4 pods crashed, and spec.restart.maxCrashes is 3; lost \
                 so far: 5 pods (4 crashed, 1 with a lost node); see why: larder job logs team-a/resnet --all";
    assert!(said.starts_with(begin), "{said}");
    let times = [("/status/started", "2026-01-31T09:00:00Z"), ("/status/finished", "2026-01-31T11:05:09Z")];
    let done = times.iter().fold(job("resnet", "Succeeded", &[]), |job, (at, time)| set(job, at, (*time).into()));
    assert_eq!(sentence(&done), "team-a/resnet succeeded: it finished after 2 h 05 min 09 s.");
}

#[test]
fn a_recovering_job_says_what_it_lost_by_cause() {
    let own = set(
        job("resnet", "Recovering", &[]),
        "/status/restarts",
        json!({"crashed": 1, "preempted": 2, "evicted": 3, "nodeLost": 4, "deviceFault": 5}),
    );
    let said = sentence(&set(own, "/status/waitingFor", "3 of 4 pods are ready; 1 not bound yet".into()));
    let expected = "team-a/resnet recovers: 3 of 4 pods are ready; 1 not bound yet; lost so far: 15 pods (1 crashed, 2 \
                    preempted, 3 evicted, 4 with a lost node, 5 with a faulty device).";
    assert_eq!(said, expected);
}

#[test]
fn a_running_job_says_what_is_worse_than_asked_for() {
    use JobConditionKind::{DataWarm, Valid};
    let cold = condition(DataWarm, true, "WarmTimeout", "");
    let own = set(job("resnet", "Running", &[cold]), "/status/roles/0/desired", 2.into());
    let said = sentence(&own);
    assert!(said.contains("2 of 4 worker") && said.contains("started before its data was cached"), "{said}");
    let revoked = condition(Valid, false, "DatasetNotGranted", "team-b/coco is not granted");
    let suspended = set(job("resnet", "Suspended", std::slice::from_ref(&revoked)), "/spec/suspend", true.into());
    let said = sentence(&suspended);
    assert!(
        said.contains("; it could not start again now: team-b/coco") && said.contains("larder job resume"),
        "{said}"
    );
    let said = sentence(&job("resnet", "Running", &[revoked]));
    assert!(
        said.starts_with("team-a/resnet runs: 3 of 4 pods are ready; it could not start again now: team-b/coco"),
        "{said}"
    );
}

#[test]
fn a_job_of_kueue_with_fewer_pods_grows_no_more_by_itself() {
    const GROWS: &str = "with Kueue the job grows again only after a suspension";
    let own = set(job("resnet", "Running", &[]), "/status/roles/0/desired", 2.into());
    let own = set(own, "/metadata/labels", json!({KUEUE_QUEUE_LABEL: "main"}));
    let said = sentence(&own);
    assert!(said.contains("2 of 4 worker") && said.contains(GROWS) && !said.contains("stayed free"), "{said}");
    let said = sentence(&set(own, "/status/waitingFor", format!("spec.roles[].replicas was lowered; {GROWS}").into()));
    assert_eq!((said.matches("grow").count(), said.matches("2 of 4 worker").count()), (1, 1), "{said}");
}

#[test]
fn a_suspended_job_says_whether_pods_of_it_still_end() {
    let own = set(job("resnet", "Suspended", &[]), "/spec/suspend", true.into());
    assert!(
        sentence(&own).contains("spec.suspend is true, and 4 of its pods are still terminating"),
        "{}",
        sentence(&own)
    );
    let own = set(own, "/status/roles/0/active", 0.into());
    assert!(sentence(&own).contains("spec.suspend is true, and it has no pods"), "{}", sentence(&own));
    let own = set(set(own, "/spec/suspend", false.into()), "/status/roles/0/active", 1.into());
    assert!(sentence(&own).contains("it was suspended, and 1 of its pods is still terminating"), "{}", sentence(&own));
}

/// A job that ends returns quota, so it is named only to jobs that wait for quota and not for nodes.
#[test]
fn the_job_that_ends_next_is_named_to_those_that_wait_for_quota() {
    let names_it = |reason: JobReason| {
        let own = job("resnet", "Queued", &[condition(reason.conditions()[0], false, reason.as_str(), "why")]);
        explained(&own, &around()).sentence("team-a/resnet").contains("next to end")
    };
    for reason in [JobReason::QuotaUsed, JobReason::NotItsTurn, JobReason::Preempted] {
        assert!(names_it(reason), "{reason}");
    }
    for reason in [JobReason::QueueStopped, JobReason::LargerThanTheCluster, JobReason::NotBoundInTime] {
        assert!(!names_it(reason), "{reason}");
    }
}

#[test]
fn a_job_in_another_cluster_says_why_it_is_there() {
    let term = |cluster: &str, fits: bool, missing: u64, why: &str| json!({"cluster": cluster, "fits": fits, "heldBytes": 0, "missingBytes": missing, "cost": 2, "weight": 1, "why": why});
    let gib = 1_u64 << 30;
    let terms = json!([
        term("west", true, 0, ""),
        term("here", true, 3 * gib, ""),
        term("cloud", false, 0, "its pods do not fit there now"),
    ]);
    let placement = json!({"cluster": "west", "terms": terms});
    let own = set(job("resnet", "Running", &[]), "/status/placement", placement.clone());
    let said = sentence(&own);
    let why = "it is in cluster west, where 0 B of its data must be brought at cost 2; here: 3.0 GiB at cost 2; cloud: its pods \
               do not fit there now";
    assert!(said.contains(why), "{said}");
    // A job that has no cluster yet says it in its condition.
    let own = set(job("resnet", "Queued", &[]), "/status/placement", json!({"terms": terms}));
    assert!(!sentence(&own).contains("it is in cluster"), "{}", sentence(&own));
}

#[test]
fn jobs_of_others_are_told_apart() {
    let said = sentence(&set(job("resnet", "Queued", &[]), "/spec/managedBy", "example.org/other".into()));
    assert!(
        said.starts_with("team-a/resnet is run by another controller: spec.managedBy names example.org/other"),
        "{said}"
    );
    // MultiKueue copies the status of the job.
    let moved = set(job("resnet", "Running", &[]), "/spec/managedBy", "kueue.x-k8s.io/multikueue".into());
    let said = sentence(&moved);
    assert!(said.starts_with("team-a/resnet runs: "), "{said}");
    assert!(said.contains("; MultiKueue chooses its cluster"), "{said}");
    assert!(!said.contains("newer version"), "{said}");
    let kueue = condition(JobConditionKind::QuotaReserved, false, "KueueDecides", "");
    let labels = json!({"kueue.x-k8s.io/queue-name": "team"});
    let own = explained(&set(job("resnet", "Queued", &[kueue]), "/metadata/labels", labels), &around());
    // With Kueue's label, the Queue that the job also names does not count.
    assert_eq!(own.why, "Kueue has not admitted it to the LocalQueue team");
    let deleted = set(job("resnet", "Running", &[]), "/metadata/deletionTimestamp", "2026-01-31T10:00:00Z".into());
    assert!(sentence(&deleted).starts_with("team-a/resnet is being deleted: "), "{}", sentence(&deleted));
}

// SEMANTICS: J22
#[test]
fn a_moved_job_says_that_a_newer_version_runs_it() {
    let of_newer = |phase: &str| {
        let moved = set(job("resnet", phase, &[]), "/spec/managedBy", "kueue.x-k8s.io/multikueue".into());
        sentence(&set(moved, "/status/record", json!({"version": 99, "phase": "Dreaming"}).to_string().into()))
    };
    let expected = "team-a/resnet runs: 3 of 4 pods are ready; MultiKueue chooses its cluster; a newer version of \
                    Larder runs it there.";
    assert_eq!(of_newer("Running"), expected);
    assert!(!of_newer("Succeeded").contains("newer version"), "{}", of_newer("Succeeded"));
}

#[test]
fn without_a_status_the_sentence_says_where_to_look() {
    let mut new = job("resnet", "Queued", &[]);
    new.as_object_mut().unwrap().remove("status");
    let said = sentence(&new);
    assert!(said.contains("has not processed it yet") && said.contains("name=larder-controller"), "{said}");
    let changed = set(job("resnet", "Running", &[]), "/metadata/generation", 2.into());
    assert!(sentence(&changed).contains("has not processed the last change"), "{}", sentence(&changed));
    let ended = set(job("resnet", "Succeeded", &[]), "/metadata/generation", 2.into());
    assert!(!sentence(&ended).contains("last change"), "{}", sentence(&ended));
}

#[test]
fn odd_texts_stay_on_one_line_without_control_characters() {
    let own = set(job("resnet", "Queued", &[]), "/status/waitingFor", "a\u{1b}[31m\nb\u{9b}c.".into());
    assert_eq!(sentence(&own), "team-a/resnet waits: a [31m b c.");
    let unknown = condition(JobConditionKind::QuotaReserved, false, "Hibernating", "");
    assert_eq!(sentence(&job("resnet", "Queued", &[unknown])), "team-a/resnet waits: Hibernating.");
    let empty = JobExplanation {
        standing: JobSituation::Runs,
        reason: None,
        why: String::new(),
        next: String::new(),
        todo: String::new(),
    };
    assert_eq!(empty.sentence("a/b"), "a/b runs.");
}
