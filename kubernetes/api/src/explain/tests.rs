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
        // The remedy, or that it goes on by itself; a step that is done has neither.
        let (why, rest) = match reason {
            Reason::Listed | Reason::Found | Reason::ListedByNodes | Reason::Promised | Reason::Cached => ("done", ""),
            Reason::NotWanted => ("no node is to hold it", ""),
            Reason::AsWanted => ("as wanted", ""),
            Reason::Available => ("may mount the claim pets", ""),
            Reason::Importing => ("is being listed", "kubectl describe pods -n team-a -l larder.dev/dataset-uid=u1"),
            Reason::SecretMissing => ("the Secret keys, ", "kubectl create secret generic keys -n team-a"),
            Reason::BucketMissing => ("nothing at s3://bucket/pets", "apply another"),
            Reason::AccessDenied => ("refuses the keys of the Secret keys", "let them list and read s3://bucket/pets"),
            Reason::OriginUnreachable => ("http://s3:9000 does not answer", "check spec.origin.endpoint"),
            Reason::SnapshotUnknown => ("spec.snapshot", "set spec.snapshot to latest"),
            Reason::ImportFailed => ("import failed", "kubectl logs -n team-a"),
            Reason::NotAllowed => ("only the administrator's", "larder-system"),
            Reason::InvalidSpec => ("not accepted", "kubectl edit dset pets -n team-a"),
            Reason::Waiting => ("not done yet", "kubectl get nodecaches"),
            Reason::NoNodeMatches => ("too few nodes", "kubectl get nodes,nodecaches"),
            Reason::LargerThanAnyCache => ("larger than the cache", "spec.cache.size"),
            Reason::NotEnoughRoom => ("have the room", "spec.nodes.count"),
            Reason::Warming => ("being fetched", "claim appears"),
            Reason::WarmingFailed => ("failed", "larder.dev/role=warm"),
            Reason::NodeLost => ("lost", "kubectl delete node"),
            Reason::RefreshFailed => ("refresh failed", "larder.dev/role=import"),
            Reason::PromiseUnkept => ("has become smaller", "more room"),
            Reason::InvalidClean => ("larder.dev/clean", "kubectl annotate --overwrite dset pets -n team-a"),
            Reason::InlineLimit => ("inline volumes cannot name it", "mount a claim instead"),
            Reason::WriteRefused => ("refuses one of its objects", "remove what is in the way"),
            Reason::InUse => ("was deleted", "delete them"),
        };
        let said = not_ready(*reason, "");
        assert!(said.starts_with("team-a/pets is not ready: ") && said.contains(why) && said.contains(rest), "{said}");
        let is_one = said.ends_with('.') && !said.contains(". ") && !said.contains('\n') && !said.contains(": ;");
        assert!(is_one, "{reason}: {said}");
        // The controller's message is passed on, unless the whole of it is in other words.
        let with_message = not_ready(*reason, "n3: the controller's words; it is tried again");
        let other_words = matches!(reason, Reason::SecretMissing | Reason::Available);
        assert_eq!(with_message.contains("n3: the controller's words"), !other_words, "{with_message}");
        assert!(!with_message.contains("words; it is tried again; it is tried"), "{with_message}");
    }
}

#[test]
fn what_the_spec_says_changes_the_advice() {
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
fn a_ready_one_may_be_worse_than_asked_for() {
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
fn what_kubernetes_refuses_is_why_a_dataset_is_not_ready() {
    let refused = ("Degraded", "True", "WriteRefused", "Job team-a/larder-import: exceeded quota");
    let said = sentence(&with(&[("Ready", "False", "Importing", "the import begins"), refused]));
    let begin =
        "team-a/pets is not ready: Kubernetes refuses one of its objects: Job team-a/larder-import: exceeded quota";
    assert!(said.starts_with(begin), "{said}");
}

#[test]
fn without_a_word_of_the_controller_it_says_where_to_look() {
    let ready = ("Ready", "True", "Available", "");
    let mut new = with(&[]);
    new.as_object_mut().unwrap().remove("status");
    let mut changed = with(&[ready]);
    changed["metadata"]["generation"] = 3.into();
    let mut deleted = with(&[ready]);
    deleted["metadata"]["deletionTimestamp"] = "2026-01-31T10:00:00Z".into();
    for (dataset, why) in [
        (new, "has not looked at it yet"),
        (with(&[]), "has not looked at it yet"),
        (changed, "has not seen the last change"),
        (deleted.clone(), "was deleted"),
    ] {
        let said = sentence(&dataset);
        assert!(said.starts_with("team-a/pets is not ready: ") && said.contains(why), "{said}");
        assert!(said.contains("name=larder-controller"), "{said}");
    }
    // Its users keep a deleted one; deleting it made a new generation.
    deleted["metadata"]["generation"] = 3.into();
    deleted["status"]["conditions"][0]["reason"] = "InUse".into();
    deleted["status"]["conditions"][0]["status"] = "False".into();
    deleted["status"]["conditions"][0]["message"] = "it will be removed when these pods end: team-a/a".into();
    assert!(sentence(&deleted).contains("when these pods end: team-a/a; new pods cannot mount its own claim"));
}

#[test]
fn a_reason_of_a_newer_controller_is_passed_on() {
    let said = sentence(&with(&[("Ready", "False", "Hibernating", "it sleeps")]));
    assert_eq!(said, "team-a/pets is not ready: it sleeps.");
    assert_eq!(sentence(&with(&[("Ready", "False", "Hibernating", "")])), "team-a/pets is not ready: Hibernating.");
}
