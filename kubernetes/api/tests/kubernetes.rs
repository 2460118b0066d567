//! A real API server with the definitions and the policies of `deploy`: the objects that it accepts and rejects.

#[path = "kubernetes/affinity.rs"]
mod affinity;
#[path = "kubernetes/bad_datasets.rs"]
mod bad_datasets;
#[path = "kubernetes/bad_jobs.rs"]
mod bad_jobs;
#[path = "kubernetes/controller.rs"]
mod controller;
#[path = "kubernetes/devices.rs"]
mod devices;
#[path = "kubernetes/examples.rs"]
mod examples;
#[path = "kubernetes/homes.rs"]
mod homes;
#[path = "kubernetes/quotas.rs"]
mod quotas;
#[path = "kubernetes/rights.rs"]
mod rights;
#[path = "kubernetes/scheduling.rs"]
mod scheduling;
#[path = "kubernetes/startup_taint.rs"]
mod startup_taint;

use std::process::Output;
use std::time::Duration;

use larder_api::names::{CONTROLLER_ACCOUNT, LARDERD_ACCOUNT, SETTINGS, SYSTEM_NAMESPACE};
use larder_testkit::{Cluster, repository};
use serde_json::{Value, json};

/// The timeout of each wait, long enough for a busy machine.
const TIMEOUT: Duration = Duration::from_secs(120);

/// An endpoint that the administrator listed.
const LISTED: &str = "http://listed.example.org:9000";

/// An API server with Larder's definitions and policies.
struct Server {
    cluster: Cluster,
}

impl Server {
    /// Waits for exclusive use of the shared cluster, and until the definitions and policies are in effect.
    fn start(namespace: &str) -> Self {
        let server = Self { cluster: Cluster::shared() };
        // Another test may have created the namespace.
        server.cluster.kubectl(&["create", "namespace", namespace]);
        server.cluster.once("definitions", || server.define());
        server.list_endpoints(&[LISTED, "https://other"]);
        // A policy takes effect some time after it was applied.
        server.cluster.wait_for("the policies count", TIMEOUT, || {
            let refused = |origin: Value| {
                !server.try_apply(&dataset(namespace, "probe", json!({"origin": origin}))).status.success()
            };
            refused(json!({"source": "s3://b"}))
                && refused(json!({"source": "s3://b", "anonymous": true, "endpoint": "http://elsewhere"}))
                && !refused(json!({"source": "s3://b", "anonymous": true, "endpoint": LISTED}))
        });
        server
    }

    /// Applies the definitions, the policies about Datasets, and what these are about.
    fn define(&self) {
        self.cluster.kubectl(&["create", "namespace", SYSTEM_NAMESPACE]);
        for account in [LARDERD_ACCOUNT, CONTROLLER_ACCOUNT] {
            self.cluster.kubectl(&["create", "serviceaccount", account, "-n", SYSTEM_NAMESPACE]);
        }
        let deploy = repository().join("deploy");
        let file = |name: &str| deploy.join(name).display().to_string();
        self.cluster.kubectl_ok(&["apply", "-k", &file("crds")]);
        self.cluster.kubectl_ok(&[
            "wait",
            "--for=condition=Established",
            "crd/cachequotas.larder.dev",
            "crd/datasets.larder.dev",
            "crd/lardersettings.larder.dev",
            "crd/nodecaches.larder.dev",
            "crd/queues.larder.dev",
            "crd/trainingjobs.larder.dev",
        ]);
        for name in ["policies.yaml", "controller-policies.yaml", "affinity.yaml", "settings.yaml"] {
            self.cluster.kubectl_ok(&["apply", "-f", &file(&format!("components/datasets/base/{name}"))]);
        }
    }

    /// Lists the endpoints that any Dataset may name.
    fn list_endpoints(&self, endpoints: &[&str]) {
        let spec = json!({"spec": {"endpoints": endpoints}}).to_string();
        self.cluster.kubectl_ok(&["patch", "lardersettings", SETTINGS, "--type=merge", "-p", &spec]);
    }

    /// Applies an object as a server-side dry run.
    fn try_apply(&self, object: &Value) -> Output {
        self.with_file(object, |file| self.cluster.kubectl(&["apply", "--dry-run=server", "-f", file]))
    }

    /// Calls `work` with a file that holds an object.
    fn with_file<T>(&self, object: &Value, work: impl FnOnce(&str) -> T) -> T {
        let mut file = tempfile::NamedTempFile::with_suffix(".json").expect("a file");
        std::io::Write::write_all(&mut file, object.to_string().as_bytes()).expect("written");
        work(file.path().to_str().expect("a path of letters"))
    }

    fn apply(&self, object: &Value) {
        self.cluster.apply(&object.to_string());
    }
}

/// A Dataset.
fn dataset(namespace: &str, name: &str, spec: Value) -> Value {
    json!({
        "apiVersion": "larder.dev/v1alpha1", "kind": "Dataset",
        "metadata": {"namespace": namespace, "name": name}, "spec": spec
    })
}

/// The output of kubectl.
fn said(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}
