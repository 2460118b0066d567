//! `larder explain` against an API server that says one thing: what the user reads then.
#![expect(clippy::unwrap_used, reason = "a panic is how a test fails")]

use std::io::{BufRead, BufReader, Write};
use std::net::TcpListener;
use std::process::{Command, Output};

/// Where no server is.
const NOBODY: &str = "http://127.0.0.1:1";

/// Serves one answer on a free port, to all requests. Returns its URL; what was asked for is told to `asked`.
fn server(code: u16, body: &str, asked: std::sync::mpsc::Sender<String>) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let answer = format!(
        "HTTP/1.1 {code} X\r\ncontent-type: application/json\r\ncontent-length: {}\r\nconnection: close\r\n\r\n{body}",
        body.len()
    );
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let mut lines = BufReader::new(stream.try_clone().unwrap()).lines().map_while(Result::ok);
            let _ = asked.send(lines.next().unwrap_or_default());
            for line in lines {
                if line.is_empty() {
                    break;
                }
            }
            let _ = stream.write_all(answer.as_bytes());
        }
    });
    url
}

/// A kubeconfig with the context `here` for a server. The current one is another.
fn kubeconfig(url: &str) -> tempfile::NamedTempFile {
    let mut file = tempfile::NamedTempFile::new().unwrap();
    let text = format!(
        "apiVersion: v1\nkind: Config\ncurrent-context: elsewhere\n\
         clusters: [{{name: c, cluster: {{server: '{url}'}}}}, {{name: no, cluster: {{server: '{NOBODY}'}}}}]\n\
         users: [{{name: u, user: {{token: hunter2}}}}]\n\
         contexts:\n\
         - {{name: here, context: {{cluster: c, user: u}}}}\n\
         - {{name: elsewhere, context: {{cluster: no, user: u}}}}\n"
    );
    file.write_all(text.as_bytes()).unwrap();
    file
}

fn larder(arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_larder"));
    // Nothing of this machine's own clusters.
    command.env_remove("KUBECONFIG").env_remove("KUBERNETES_SERVICE_HOST").env("HOME", "/nonexistent");
    command.args(["explain", "dataset"]).args(arguments).output().unwrap()
}

fn explain(url: &str, more: &[&str]) -> Output {
    let file = kubeconfig(url);
    let path = file.path().to_str().unwrap();
    larder(&[&["team-a/pets", "--kubeconfig", path], more].concat())
}

fn said(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

const DATASET: &str = r#"{"apiVersion": "larder.dev/v1alpha1", "kind": "Dataset",
    "metadata": {"namespace": "team-a", "name": "pets", "generation": 1},
    "spec": {"origin": {"source": "s3://b", "secretRef": {"name": "keys"}}},
    "status": {"observedGeneration": 1, "conditions": [{"type": "Ready", "status": "False", "reason": "SecretMissing",
        "message": "", "lastTransitionTime": "2026-01-31T09:00:00Z"}]}}"#;

#[test]
fn it_reads_the_dataset_alone_and_says_why_it_is_not_ready() {
    let (asked, requests) = std::sync::mpsc::channel();
    let url = server(200, DATASET, asked);
    let output = explain(&url, &["--context", "here"]);
    assert!(output.status.success(), "{}", said(&output));
    let first = said(&output).lines().next().unwrap().to_owned();
    assert!(
        first.starts_with("team-a/pets is not ready: the Secret keys, which spec.origin.secretRef names"),
        "{first}"
    );
    let output = explain(&url, &["--context", "here", "--json"]);
    let json: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((&json["sentence"], &json["explanation"]["reason"]), (&first.into(), &"SecretMissing".into()));
    assert_eq!(json["status"]["conditions"][0]["type"], "Ready");
    let requests: Vec<String> = requests.try_iter().collect();
    let get = "GET /apis/larder.dev/v1alpha1/namespaces/team-a/datasets/pets HTTP/1.1";
    assert_eq!(requests, [get, get]);
}

#[test]
fn each_failure_is_told_in_the_users_words() {
    let status = |code: u16, reason: &str| {
        format!(
            r#"{{"kind": "Status", "apiVersion": "v1", "status": "Failure",
                "message": "its words", "reason": "{reason}", "code": {code}}}"#
        )
    };
    for (code, body, words) in [
        (404, status(404, "NotFound"), "there is no Dataset team-a/pets: `kubectl get dset -n team-a`"),
        (404, "404 page not found\n".to_owned(), "knows no Datasets"),
        (401, status(401, "Unauthorized"), "log in again"),
        (403, status(403, "Forbidden"), "you may not read Datasets of team-a"),
        (400, status(400, "BadRequest"), "answers with an error: its words (400)"),
        (200, r#"{"kind": "Dataset", "spec": 1}"#.to_owned(), "cannot be read"),
    ] {
        let url = server(code, &body, std::sync::mpsc::channel().0);
        let output = explain(&url, &["--context", "here"]);
        let said = said(&output);
        assert_eq!(output.status.code(), Some(1), "{said}");
        assert!(said.starts_with("error: ") && said.contains(words) && !said.contains("hunter2"), "{code}: {said}");
    }
    let nobody = explain(NOBODY, &[]);
    assert!(said(&nobody).contains("the cluster at http://127.0.0.1:1 cannot be reached"), "{}", said(&nobody));
    let unknown = explain(NOBODY, &["--context", "nowhere"]);
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
