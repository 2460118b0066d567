//! `larder explain dataset`

use crate::server::{NOBODY, Server, kubeconfig, run, said, status};

const GET: &str = "GET /apis/larder.dev/v1alpha1/namespaces/team-a/datasets/pets";

fn larder(arguments: &[&str]) -> std::process::Output {
    run(&[&["explain", "dataset"], arguments].concat(), "")
}

const DATASET: &str = r#"{"apiVersion": "larder.dev/v1alpha1", "kind": "Dataset",
    "metadata": {"namespace": "team-a", "name": "pets", "generation": 1},
    "spec": {"origin": {"source": "s3://b", "secretRef": {"name": "keys"}}},
    "status": {"observedGeneration": 1, "conditions": [{"type": "Ready", "status": "False", "reason": "SecretMissing",
        "message": "", "lastTransitionTime": "2026-01-31T09:00:00Z"}]}}"#;

#[test]
fn only_the_dataset_is_read_to_explain_why_it_is_not_ready() {
    let server = Server::start().answers(GET, 200, DATASET);
    let output = server.larder(&["explain", "dataset", "team-a/pets"]);
    assert!(output.status.success(), "{}", said(&output));
    let first = said(&output).lines().next().unwrap().to_owned();
    assert!(
        first.starts_with("team-a/pets is not ready: the Secret keys of spec.origin.secretRef does not exist"),
        "{first}"
    );
    let output = server.larder(&["explain", "dataset", "team-a/pets", "--json"]);
    let json: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((&json["sentence"], &json["explanation"]["reason"]), (&first.into(), &"SecretMissing".into()));
    assert_eq!(json["status"]["conditions"][0]["type"], "Ready");
    assert_eq!(server.lines(), [GET, GET]);
}

#[test]
fn each_failure_has_an_error_with_advice() {
    let status = |code: u16, reason: &str| status(code, reason, "its words");
    for (code, body, words) in [
        (404, status(404, "NotFound"), "there is no Dataset team-a/pets: `kubectl get dset -n team-a --kubeconfig "),
        (404, "404 page not found\n".to_owned(), "does not serve Datasets"),
        (401, status(401, "Unauthorized"), "log in again"),
        (403, status(403, "Forbidden"), "you may not read Datasets in team-a"),
        (400, status(400, "BadRequest"), "returned an error: its words (400)"),
        (200, r#"{"kind": "Dataset", "spec": 1}"#.to_owned(), "cannot be decoded"),
    ] {
        let output = Server::start().answers(GET, code, &body).larder(&["explain", "dataset", "team-a/pets"]);
        let said = said(&output);
        assert_eq!(output.status.code(), Some(1), "{said}");
        assert!(said.starts_with("error: ") && said.contains(words) && !said.contains("hunter2"), "{code}: {said}");
    }
    let file = kubeconfig(NOBODY);
    let path = file.path().to_str().unwrap();
    let nobody = larder(&["team-a/pets", "--kubeconfig", path]);
    assert!(said(&nobody).contains("the cluster at http://127.0.0.1:1 cannot be reached"), "{}", said(&nobody));
    let unknown = larder(&["team-a/pets", "--kubeconfig", path, "--context", "nowhere"]);
    assert!(said(&unknown).contains("--context nowhere"), "{}", said(&unknown));
    let missing = larder(&["team-a/pets", "--kubeconfig", "/nonexistent/config"]);
    assert!(said(&missing).contains("--kubeconfig /nonexistent/config"), "{}", said(&missing));
    let none = larder(&["team-a/pets"]);
    assert!(said(&none).contains("no cluster is configured: set KUBECONFIG"), "{}", said(&none));
    for bad in ["pets", "a/b/c", "../pets", "A/b", ""] {
        let output = larder(&[bad]);
        assert_eq!(output.status.code(), Some(2), "{bad}: {}", said(&output));
        assert!(said(&output).contains("NAMESPACE/NAME"), "{bad}: {}", said(&output));
    }
}
