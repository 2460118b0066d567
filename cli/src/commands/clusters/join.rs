//! `larder cluster join`
//!
//! Everything is written by server-side apply, so the command may be repeated.

use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, bail};
use k8s_openapi::api::core::v1::{Secret, ServiceAccount};
use k8s_openapi::api::rbac::v1::{ClusterRoleBinding, RoleBinding};
use larder_api::Cluster as Object;
use larder_api::names::{
    CONTROLLER_ACCOUNT, HERE, HOME_ACCOUNT_PREFIX, HOME_NAME_MAX, KUBECONFIG_KEY, SYSTEM_NAMESPACE,
};
use larder_kube::api::{DynamicObject, Patch, PatchParams};
use larder_kube::core::{ApiResource, Resource};
use larder_kube::{Api, Client};
use serde_json::{Value, json};

use crate::args::JoinArgs;
use crate::cluster::{Asked, CLUSTER, Cluster, MANAGER};
use crate::output;

/// How often the token is looked for, and how many times: Kubernetes writes it within a second.
const LOOK_EVERY: Duration = Duration::from_millis(500);
const LOOKS: usize = 60;

pub(super) async fn run(args: &JoinArgs) -> anyhow::Result<ExitCode> {
    let cluster = Cluster::of(&args.cluster).await?;
    if args.name == HERE || args.name == larder_api::names::ANY_CLUSTER {
        bail!("{} cannot be the name of another cluster", args.name);
    }
    if args.home.len() > HOME_NAME_MAX {
        bail!("--home {}: has more than {HOME_NAME_MAX} characters", args.home);
    }
    let server = args.server.as_deref().unwrap_or(cluster.server());
    if !server.starts_with("https://") {
        bail!("{server} is not an https URL: name the cluster's API server, as the home reaches it, with --server");
    }
    // The cluster has the component, and describes itself.
    let here = Asked { right: "get", kind: CLUSTER, namespace: None, name: HERE };
    cluster.get::<Object>(&here).await?;
    let client = cluster.client();
    let account = format!("{HOME_ACCOUNT_PREFIX}{}", args.home);
    let subject = json!([{"kind": "ServiceAccount", "name": account, "namespace": SYSTEM_NAMESPACE}]);
    let role = |name: &str| json!({"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": name});
    apply::<ServiceAccount>(client, Some(SYSTEM_NAMESPACE), &account, json!({})).await?;
    let binding = json!({"roleRef": role("larder-home"), "subjects": subject});
    apply::<ClusterRoleBinding>(client, None, &format!("larder-{account}"), binding).await?;
    for namespace in &args.allow {
        let binding = json!({"roleRef": role("larder-home-jobs"), "subjects": subject});
        apply::<RoleBinding>(client, Some(namespace), &format!("larder-{account}"), binding).await?;
    }
    let of = json!({"kubernetes.io/service-account.name": account});
    let secret = json!({"type": "kubernetes.io/service-account-token", "metadata": {"annotations": of}});
    apply::<Secret>(client, Some(SYSTEM_NAMESPACE), &account, secret).await?;
    let kubeconfig = kubeconfig(&args.name, server, &token(client, &account).await?)?;
    output::text(&manifest(&args.name, &kubeconfig)?)?;
    output::note(format_args!(
        "{account} may run jobs in {}: apply the printed objects, which have its token, at the home",
        args.allow.join(", ")
    ));
    Ok(ExitCode::SUCCESS)
}

/// Applies an object.
async fn apply<K: Resource<DynamicType = ()>>(
    client: &Client,
    namespace: Option<&str>,
    name: &str,
    mut fields: Value,
) -> anyhow::Result<()> {
    let resource = ApiResource::erase::<K>(&());
    fields["apiVersion"] = resource.api_version.clone().into();
    fields["kind"] = resource.kind.clone().into();
    fields["metadata"]["name"] = name.into();
    let api: Api<DynamicObject> = match namespace {
        Some(namespace) => Api::namespaced_with(client.clone(), namespace, &resource),
        None => Api::all_with(client.clone(), &resource),
    };
    let params = PatchParams { force: true, ..PatchParams::apply(MANAGER) };
    let applied = api.patch(name, &params, &Patch::Apply(&fields)).await;
    let place = namespace.map(|namespace| format!(" in {namespace}")).unwrap_or_default();
    applied.with_context(|| format!("write the {} {name}{place}", resource.kind))?;
    Ok(())
}

/// The Secret of the account, once it has a token.
async fn token(client: &Client, account: &str) -> anyhow::Result<Secret> {
    let secrets: Api<Secret> = Api::namespaced(client.clone(), SYSTEM_NAMESPACE);
    for _ in 0..LOOKS {
        let secret = secrets.get(account).await.context("read the token of the account")?;
        let has = |key: &str| secret.data.as_ref().is_some_and(|data| data.contains_key(key));
        if has("token") && has("ca.crt") {
            return Ok(secret);
        }
        tokio::time::sleep(LOOK_EVERY).await;
    }
    bail!("the cluster wrote no token into the Secret {SYSTEM_NAMESPACE}/{account} within 30 s: repeat the command")
}

/// A kubeconfig that has everything in itself.
fn kubeconfig(name: &str, server: &str, secret: &Secret) -> anyhow::Result<String> {
    let data = secret.data.as_ref().context("the Secret has no data")?;
    let token = data.get("token").context("the Secret has no token")?;
    let token = std::str::from_utf8(&token.0).context("the token is no text")?;
    // The JSON of bytes is base64, as in a kubeconfig.
    let ca = serde_json::to_value(data.get("ca.crt"))?;
    let config = json!({
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": name,
        "clusters": [{"name": name, "cluster": {"server": server, "certificate-authority-data": ca}}],
        "users": [{"name": name, "user": {"token": token}}],
        "contexts": [{"name": name, "context": {"cluster": name, "user": name}}],
    });
    Ok(serde_yaml_ng::to_string(&config)?)
}

/// The objects for the home.
fn manifest(name: &str, kubeconfig: &str) -> anyhow::Result<String> {
    let secret = format!("cluster-{name}");
    let rbac = "rbac.authorization.k8s.io";
    let reader = json!({"name": format!("larder-{secret}"), "namespace": SYSTEM_NAMESPACE});
    let objects = [
        json!({
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": {"name": secret, "namespace": SYSTEM_NAMESPACE},
            "stringData": {KUBECONFIG_KEY: kubeconfig},
        }),
        // The controller of the home reads this Secret and no other.
        json!({
            "apiVersion": format!("{rbac}/v1"),
            "kind": "Role",
            "metadata": reader,
            "rules": [{"apiGroups": [""], "resources": ["secrets"], "resourceNames": [secret], "verbs": ["get"]}],
        }),
        json!({
            "apiVersion": format!("{rbac}/v1"),
            "kind": "RoleBinding",
            "metadata": reader,
            "roleRef": {"apiGroup": rbac, "kind": "Role", "name": reader["name"]},
            "subjects": [{"kind": "ServiceAccount", "name": CONTROLLER_ACCOUNT, "namespace": SYSTEM_NAMESPACE}],
        }),
        json!({
            "apiVersion": "larder.dev/v1alpha1",
            "kind": "Cluster",
            "metadata": {"name": name},
            "spec": {"kubeconfig": {"secret": secret}},
        }),
    ];
    let texts: Result<Vec<String>, _> = objects.iter().map(serde_yaml_ng::to_string).collect();
    Ok(texts?.join("---\n"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use k8s_openapi::ByteString;

    #[test]
    fn the_objects_for_the_home_have_a_kubeconfig_that_it_accepts() {
        let data =
            [("token", "secret"), ("ca.crt", "PEM")].map(|(key, text)| (key.to_owned(), ByteString(text.into())));
        let secret = Secret { data: Some(data.into()), ..Secret::default() };
        let config = kubeconfig("west", "https://west:6443", &secret).unwrap();
        let read: Value = serde_yaml_ng::from_str(&config).unwrap();
        assert_eq!(read["users"][0]["user"], json!({"token": "secret"}));
        let cluster = json!({"server": "https://west:6443", "certificate-authority-data": "UEVN"});
        assert_eq!(read["clusters"][0]["cluster"], cluster);
        let text = manifest("west", &config).unwrap();
        let objects: Vec<Value> = text.split("---\n").map(|text| serde_yaml_ng::from_str(text).unwrap()).collect();
        let [secret, role, binding, cluster] = &objects[..] else { panic!("{text}") };
        assert_eq!(secret["stringData"]["kubeconfig"], config);
        assert_eq!(role["rules"][0]["resourceNames"][0], secret["metadata"]["name"]);
        assert_eq!(binding["roleRef"]["name"], role["metadata"]["name"]);
        assert_eq!(cluster["spec"]["kubeconfig"]["secret"], secret["metadata"]["name"]);
    }
}
