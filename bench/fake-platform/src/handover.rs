//! Takes jobs away from Kubernetes' Job controller: a mutating admission policy sets `spec.managedBy` on each job of a
//! namespace.

use std::time::Duration;

use anyhow::{Context, bail};
use k8s_openapi::api::admissionregistration::v1::{MutatingAdmissionPolicy, MutatingAdmissionPolicyBinding};
use k8s_openapi::api::batch::v1::Job;
use larder_kube::api::{DeleteParams, PostParams};
use larder_kube::{Api, Client, Error};
use serde_json::json;

/// The value of `spec.managedBy`.
const MANAGER: &str = "larder.dev/fake-platform";

/// The pause between two checks whether the policy is in effect, and the number of checks.
const PAUSE: Duration = Duration::from_millis(200);
const LOOKS: u32 = 300;

/// Takes over the jobs of `namespace` and waits until the policy is in effect. The namespace must not contain jobs yet.
/// Needs Kubernetes 1.36.
pub async fn hand_over(client: &Client, namespace: &str) -> anyhow::Result<()> {
    let name = policy_of(namespace);
    let policy = json!({
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "MutatingAdmissionPolicy",
        "metadata": {"name": name},
        "spec": {
            "failurePolicy": "Fail",
            "reinvocationPolicy": "Never",
            "matchConstraints": {
                "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": namespace}},
                "resourceRules": [{
                    "apiGroups": ["batch"], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["jobs"],
                }],
            },
            "mutations": [{
                "patchType": "ApplyConfiguration",
                "applyConfiguration": {
                    "expression": format!("Object{{spec: Object.spec{{managedBy: \"{MANAGER}\"}}}}"),
                },
            }],
        },
    });
    let binding = json!({
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "MutatingAdmissionPolicyBinding",
        "metadata": {"name": name},
        "spec": {"policyName": name},
    });
    let policies: Api<MutatingAdmissionPolicy> = Api::all(client.clone());
    let bindings: Api<MutatingAdmissionPolicyBinding> = Api::all(client.clone());
    let create = PostParams::default();
    there(policies.create(&create, &serde_json::from_value(policy)?).await)
        .context("create a MutatingAdmissionPolicy (Kubernetes 1.36 has them)")?;
    there(bindings.create(&create, &serde_json::from_value(binding)?).await)
        .context("bind the MutatingAdmissionPolicy")?;
    let probe: Job = serde_json::from_value(json!({
        "metadata": {"name": "probe"},
        "spec": {"template": {"spec": {"restartPolicy": "Never", "containers": [{"name": "probe", "image": "none"}]}}},
    }))?;
    let jobs: Api<Job> = Api::namespaced(client.clone(), namespace);
    let try_it = PostParams { dry_run: true, ..PostParams::default() };
    for _ in 0..LOOKS {
        let made = jobs.create(&try_it, &probe).await.context("create a Job (dry run)")?;
        if made.spec.and_then(|spec| spec.managed_by).as_deref() == Some(MANAGER) {
            return Ok(());
        }
        tokio::time::sleep(PAUSE).await;
    }
    bail!(
        "the MutatingAdmissionPolicy {name} has no effect: check that the admission plugin MutatingAdmissionPolicy is enabled"
    )
}

/// Leaves new jobs to Kubernetes' Job controller. Jobs that were taken over before keep their `managedBy`.
pub async fn give_back(client: &Client, namespace: &str) -> anyhow::Result<()> {
    let (name, delete) = (policy_of(namespace), DeleteParams::default());
    let bindings: Api<MutatingAdmissionPolicyBinding> = Api::all(client.clone());
    let policies: Api<MutatingAdmissionPolicy> = Api::all(client.clone());
    gone(bindings.delete(&name, &delete).await.map(drop)).context("delete the binding of the policy")?;
    gone(policies.delete(&name, &delete).await.map(drop)).context("delete the policy")
}

fn policy_of(namespace: &str) -> String {
    format!("larder-fake-platform-{namespace}")
}

fn there<T>(created: Result<T, Error>) -> Result<(), Error> {
    match created {
        Err(Error::Api(status)) if status.code == 409 => Ok(()),
        other => other.map(drop),
    }
}

fn gone(deleted: Result<(), Error>) -> Result<(), Error> {
    match deleted {
        Err(Error::Api(status)) if status.code == 404 => Ok(()),
        other => other,
    }
}
