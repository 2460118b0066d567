use serde_json::{Value, json};

use super::*;

/// A Dataset with these conditions: kind, status, reason, message.
fn with(conditions: &[(&str, &str, &str, &str)]) -> Value {
    let conditions: Vec<Value> = conditions
        .iter()
        .map(|(kind, status, reason, message)| {
            json!({
                "type": kind,
                "status": status,
                "reason": reason,
                "message": message,
                "lastTransitionTime": "2026-01-31T09:00:00Z",
            })
        })
        .collect();
    json!({
        "apiVersion": "larder.dev/v1alpha1",
        "kind": "Dataset",
        "metadata": {"namespace": "team-a", "name": "pets", "uid": "u1", "generation": 2},
        "spec": {"origin": {"source": "s3://bucket/pets", "endpoint": "http://s3:9000", "secretRef": {"name": "keys"}}},
        "status": {"observedGeneration": 2, "conditions": conditions},
    })
}

fn sentence(dataset: &Value) -> String {
    let dataset: Dataset = serde_json::from_value(dataset.clone()).unwrap();
    explain(&dataset).sentence("team-a/pets")
}

/// The sentence for `Ready=False` with this reason.
fn not_ready(reason: Reason, message: &str) -> String {
    sentence(&with(&[("Ready", "False", reason.as_str(), message)]))
}

#[test]
fn every_reason_makes_one_sentence_that_says_why_and_what_to_do() {
    for reason in Reason::ALL {
        // `rest` is the remedy or the automatic next step. A step that is done has neither.
        let (why, rest) = match reason {
            Reason::Listed | Reason::Found | Reason::ListedByNodes | Reason::Promised | Reason::Cached => ("done", ""),
            Reason::NotWanted => ("no node caches it", ""),
            Reason::AsWanted => ("as requested", ""),
            Reason::Available => ("may mount the claim pets", ""),
            Reason::Importing => ("is being listed", "kubectl describe pods -n team-a -l larder.dev/dataset-uid=u1"),
            Reason::SecretMissing => ("the Secret keys of", "kubectl create secret generic keys -n team-a"),
            Reason::BucketMissing => ("s3://bucket/pets does not exist", "create a new one"),
            Reason::AccessDenied => {
                ("rejects the keys of the Secret keys", "permit them to list and read s3://bucket/pets")
            }
            Reason::OriginUnreachable => ("http://s3:9000 does not answer", "check spec.origin.endpoint"),
            Reason::SnapshotUnknown => ("spec.snapshot", "set spec.snapshot to latest"),
            Reason::ImportFailed => ("import failed", "kubectl logs -n team-a"),
            Reason::NotAllowed => ("reserved for the administrator's", "larder-system"),
            Reason::InvalidSpec => ("invalid value", "kubectl edit dset pets -n team-a"),
            Reason::QuotaExceeded => ("CacheQuota of its namespace", "ask the administrator for a larger CacheQuota"),
            Reason::Waiting => ("not done yet", "kubectl get nodecaches"),
            Reason::NoNodeMatches => ("too few nodes", "kubectl get nodes,nodecaches"),
            Reason::LargerThanAnyCache => ("larger than the cache", "spec.cache.size"),
            Reason::CachesLackRoom => ("no room on their disks", "kubectl get nodecaches"),
            Reason::NotEnoughRoom => ("use the space", "spec.nodes.count"),
            Reason::Warming => ("being fetched", "claim is created"),
            Reason::WarmingFailed => ("failed", "larder.dev/role=warm"),
            Reason::NodeLost => ("lost", "kubectl delete node"),
            Reason::RefreshFailed => ("refresh failed", "larder.dev/role=import"),
            Reason::MirrorBehind => ("to a mirror failed", "larder.dev/role=sync"),
            Reason::PromiseUnkept => ("has shrunk", "more cache space"),
            Reason::InvalidClean => ("larder.dev/clean", "kubectl annotate --overwrite dset pets -n team-a"),
            Reason::InlineLimit => ("cannot be used in inline volumes", "mount a claim instead"),
            Reason::WriteRefused => ("rejects one of its objects", "remove the obstacle"),
            Reason::InUse => ("was deleted", "delete these pods"),
        };
        let said = not_ready(*reason, "");
        assert!(said.starts_with("team-a/pets is not ready: ") && said.contains(why) && said.contains(rest), "{said}");
        let is_one = said.ends_with('.') && !said.contains(". ") && !said.contains('\n') && !said.contains(": ;");
        assert!(is_one, "{reason}: {said}");
        // The controller's message is passed on, unless the explanation expresses all of it in its own words.
        let with_message = not_ready(*reason, "n3: the controller's words; it is tried again");
        let other_words = matches!(reason, Reason::SecretMissing | Reason::Available);
        assert_eq!(with_message.contains("n3: the controller's words"), !other_words, "{with_message}");
        assert!(!with_message.contains("it is tried again"), "{with_message}");
    }
}

#[test]
fn the_advice_depends_on_the_spec() {
    let change = |reason: Reason, pointer: &str, value: Value| {
        let mut dataset = with(&[("Ready", "False", reason.as_str(), "")]);
        *dataset.pointer_mut(pointer).unwrap() = value;
        sentence(&dataset)
    };
    let anonymous = json!({"source": "s3://b", "anonymous": true});
    assert!(change(Reason::AccessDenied, "/spec/origin", anonymous).contains("without credentials"));
    let ours = json!({"source": "s3://b"});
    assert!(change(Reason::AccessDenied, "/spec/origin", ours.clone()).contains("larderd's own credentials"));
    assert!(change(Reason::OriginUnreachable, "/spec/origin", ours).contains("s3://b does not answer"));
    let selected = json!({"origin": {"source": "s3://b"}, "nodes": {"selector": {"gpu": "a100"}}});
    assert!(change(Reason::NoNodeMatches, "/spec", selected).contains("kubectl label node NODE gpu=a100"));
    let mut known = with(&[("Ready", "False", "SnapshotUnknown", "")]);
    known["status"]["snapshots"] = json!([{"id": "ab", "files": 1, "bytes": 1}, {"id": "cd", "files": 1, "bytes": 1}]);
    assert!(sentence(&known).contains("set spec.snapshot to ab or cd or latest"));
    let mut warming = with(&[("Ready", "False", "Warming", "60 % on 4 nodes; 1 have all bytes")]);
    warming["status"]["eta"] = "2026-01-31T10:42:00Z".into();
    let said = sentence(&warming);
    assert!(said.contains("until about 2026-01-31T10:42:00Z: 60 % on 4 nodes"), "{said}");
}

#[test]
fn a_ready_dataset_may_have_fewer_nodes_than_requested() {
    let ready = ("Ready", "True", "Available", "pods may mount it");
    assert_eq!(
        sentence(&with(&[ready, ("Degraded", "False", "AsWanted", "")])),
        "team-a/pets is ready: pods of team-a may mount the claim pets."
    );
    let said = sentence(&with(&[ready, ("Degraded", "True", "RefreshFailed", "the origin does not answer")]));
    let begin = "team-a/pets is ready: pods may mount it, but the last refresh failed: the origin does not answer; ";
    assert!(said.starts_with(begin), "{said}");
}

#[test]
fn a_write_that_kubernetes_rejects_is_the_reason() {
    let refused = ("Degraded", "True", "WriteRefused", "Job team-a/larder-import: exceeded quota");
    let said = sentence(&with(&[("Ready", "False", "Importing", "the import begins"), refused]));
    let begin =
        "team-a/pets is not ready: Kubernetes rejects one of its objects: Job team-a/larder-import: exceeded quota";
    assert!(said.starts_with(begin), "{said}");
}

#[test]
fn without_a_status_the_sentence_says_where_to_look() {
    let ready = ("Ready", "True", "Available", "");
    let mut new = with(&[]);
    new.as_object_mut().unwrap().remove("status");
    let mut changed = with(&[ready]);
    changed["metadata"]["generation"] = 3.into();
    let mut deleted = with(&[ready]);
    deleted["metadata"]["deletionTimestamp"] = "2026-01-31T10:00:00Z".into();
    for (dataset, why) in [
        (new, "has not processed it yet"),
        (with(&[]), "has not processed it yet"),
        (changed, "has not processed the last change"),
        (deleted.clone(), "was deleted"),
    ] {
        let said = sentence(&dataset);
        assert!(said.starts_with("team-a/pets is not ready: ") && said.contains(why), "{said}");
        assert!(said.contains("name=larder-controller"), "{said}");
    }
    // Pods that use a deleted Dataset keep it. The deletion incremented the generation.
    deleted["metadata"]["generation"] = 3.into();
    deleted["status"]["conditions"][0]["reason"] = "InUse".into();
    deleted["status"]["conditions"][0]["status"] = "False".into();
    deleted["status"]["conditions"][0]["message"] = "it will be removed when these pods end: team-a/a".into();
    assert!(sentence(&deleted).contains("when these pods end: team-a/a; new pods cannot mount its claim"));
}

#[test]
fn a_reason_of_a_newer_controller_is_passed_on() {
    let said = sentence(&with(&[("Ready", "False", "Hibernating", "it sleeps")]));
    assert_eq!(said, "team-a/pets is not ready: it sleeps.");
    assert_eq!(sentence(&with(&[("Ready", "False", "Hibernating", "")])), "team-a/pets is not ready: Hibernating.");
}
