//! Gets a Dataset from the cluster of the kubeconfig. Each failure says in the user's words what is missing.

use std::time::Duration;

use anyhow::{Context, anyhow};
use kube::api::DynamicObject;
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::core::ApiResource;
use kube::{Api, Client, Config, Error};
use larder_controller_api::Dataset;
use larder_controller_api::names::DatasetKey;

use crate::args::ExplainDatasetArgs;

/// A person waits.
const CONNECT: Duration = Duration::from_secs(5);
const ANSWER: Duration = Duration::from_secs(20);

/// Gets the Dataset.
pub(super) async fn dataset(args: &ExplainDatasetArgs) -> anyhow::Result<Dataset> {
    let mut config = config(args).await?;
    config.connect_timeout = Some(CONNECT);
    config.read_timeout = Some(ANSWER);
    config.default_retry = false;
    let server = config.cluster_url.to_string();
    let server = server.trim_end_matches('/');
    let key = &args.dataset;
    let client = Client::try_from(config).with_context(|| format!("connect to the cluster at {server}"))?;
    // Untyped: of what it cannot read as a type the client writes a log of its own.
    let resource = ApiResource::erase::<Dataset>(&());
    let datasets: Api<DynamicObject> = Api::namespaced_with(client, &key.namespace, &resource);
    let found = datasets.get(&key.name).await;
    let typed = found
        .and_then(|object| serde_json::to_value(object).and_then(serde_json::from_value).map_err(Error::SerdeError));
    typed.map_err(|error| in_words(error, key, server))
}

async fn config(args: &ExplainDatasetArgs) -> anyhow::Result<Config> {
    let options = KubeConfigOptions { context: args.context.clone(), ..KubeConfigOptions::default() };
    let context = || match &args.context {
        Some(name) => format!("--context {name}"),
        None => "the kubeconfig".to_owned(),
    };
    if let Some(path) = &args.kubeconfig {
        let read = Kubeconfig::read_from(path).with_context(|| format!("--kubeconfig {}", path.display()))?;
        return Config::from_custom_kubeconfig(read, &options).await.with_context(context);
    }
    if args.context.is_some() {
        return Config::from_kubeconfig(&options).await.with_context(context);
    }
    Config::infer().await.context("no cluster is configured: set KUBECONFIG, or give --kubeconfig")
}

fn in_words(error: Error, key: &DatasetKey, server: &str) -> anyhow::Error {
    let namespace = &key.namespace;
    match error {
        Error::Api(status) => match (status.code, status.reason.as_str()) {
            (404, "NotFound") => {
                anyhow!("there is no Dataset {key}: `kubectl get dset -n {namespace}` lists those of its namespace")
            }
            // The path is unknown, and not the object.
            (404, _) => anyhow!(
                "the cluster at {server} knows no Datasets: an administrator turns them on with the component \
                 `datasets` (docs/KUBERNETES.md)"
            ),
            (401, _) => anyhow!("the cluster at {server} does not accept the kubeconfig's credentials: log in again"),
            (403, _) => anyhow!(
                "you may not read Datasets of {namespace}: ask its administrator for the right `get` on \
                 datasets.larder.dev ({})",
                status.message
            ),
            _ => anyhow!("the cluster at {server} answers with an error: {} ({})", status.message, status.code),
        },
        Error::SerdeError(error) => anyhow!(error).context(format!(
            "{key} cannot be read; if the cluster's Larder is newer than this program, update this one"
        )),
        Error::Auth(error) => anyhow!(error).context("the kubeconfig's credentials cannot be used; log in again"),
        error => anyhow!(error).context(format!(
            "the cluster at {server} cannot be reached; check the network, --context and --kubeconfig"
        )),
    }
}
