//! A Kubernetes cluster as the commands use it. Each error says in the user's terms what is missing.

mod failure;

use std::time::Duration;

use anyhow::Context;
use k8s_openapi::api::core::v1::Pod;
use larder_dataset::shell_word;
use larder_kube::api::{DynamicObject, ListParams};
use larder_kube::config::{KubeConfigOptions, Kubeconfig};
use larder_kube::core::ApiResource;
use larder_kube::{Api, Client, Config, Error};
use serde::de::DeserializeOwned;

use crate::args::cluster::{ClusterArgs, NamespaceArgs};
pub(crate) use failure::{
    Asked, CLUSTER, DATASET, DEFINITION, EVENT, EXEC, JOB, Kind, LOG, NODE, NODE_CACHE, POD, POD_METRICS, PORT,
    PRIORITY_CLASS, QUEUE, WORKLOADS,
};

/// The field manager of the fields that the commands set.
pub(crate) const MANAGER: &str = "larder";

/// Timeouts of connecting and of a response. They are short because a user waits.
pub(crate) const CONNECT: Duration = Duration::from_secs(5);
pub(crate) const ANSWER: Duration = Duration::from_secs(20);
/// A stream without data for this long is reopened.
const SILENCE: Duration = Duration::from_secs(300);
/// Objects per page of a list.
const PAGE: u32 = 500;

/// A connection to a cluster.
#[derive(Clone)]
pub(crate) struct Cluster {
    client: Client,
    /// For watches, logs and ports, whose responses have no deadline.
    streams: Client,
    server: String,
    /// The flags that lead to it, as given, for printed commands.
    flags: String,
    /// The namespace for names without one.
    pub(crate) namespace: String,
}

impl Cluster {
    /// Connects to the cluster of the kubeconfig.
    pub(crate) async fn of(args: &ClusterArgs) -> anyhow::Result<Self> {
        let mut config = config(args).await?;
        config.connect_timeout = Some(CONNECT);
        config.read_timeout = Some(ANSWER);
        config.default_retry = false;
        let server = config.cluster_url.to_string().trim_end_matches('/').to_owned();
        let namespace = config.default_namespace.clone();
        let mut patient = config.clone();
        patient.read_timeout = Some(SILENCE);
        let client =
            |config: Config| Client::try_from(config).with_context(|| format!("connect to the cluster at {server}"));
        let (client, streams) = (client(config)?, client(patient)?);
        Ok(Self { client, streams, server, flags: flags(args), namespace })
    }

    /// As [`Self::of`], with the namespace of `--namespace`.
    pub(crate) async fn within(args: &ClusterArgs, namespace: &NamespaceArgs) -> anyhow::Result<Self> {
        let mut cluster = Self::of(args).await?;
        if let Some(namespace) = &namespace.namespace {
            cluster.namespace.clone_from(namespace);
        }
        Ok(cluster)
    }

    /// The objects of a kind: in a namespace, or of all namespaces or a cluster-scoped kind if it is `None`. The
    /// objects are untyped, because the client itself logs each object that it cannot decode as a type.
    pub(crate) fn api(&self, kind: Kind, namespace: Option<&str>) -> Api<DynamicObject> {
        Self::api_of(self.client.clone(), kind, namespace)
    }

    /// As [`Self::api`], for requests with responses of unlimited duration.
    pub(crate) fn streams(&self, kind: Kind, namespace: Option<&str>) -> Api<DynamicObject> {
        Self::api_of(self.streams.clone(), kind, namespace)
    }

    /// The objects of a resource that is known only by its name, in a namespace.
    pub(crate) fn objects(&self, resource: &ApiResource, namespace: &str) -> Api<DynamicObject> {
        Api::namespaced_with(self.client.clone(), namespace, resource)
    }

    fn api_of(client: Client, kind: Kind, namespace: Option<&str>) -> Api<DynamicObject> {
        let resource = (kind.resource)();
        match namespace {
            Some(namespace) => Api::namespaced_with(client, namespace, &resource),
            None => Api::all_with(client, &resource),
        }
    }

    /// The client of requests.
    pub(crate) fn client(&self) -> &Client {
        &self.client
    }

    /// The URL of the API server.
    pub(crate) fn server(&self) -> &str {
        &self.server
    }

    /// The pods of a namespace, for their logs and ports.
    pub(crate) fn pods(&self, namespace: &str) -> Api<Pod> {
        Api::namespaced(self.streams.clone(), namespace)
    }

    /// Gets an object. Errors: it does not exist, the user may not read it, or it cannot be decoded.
    pub(crate) async fn get<T: DeserializeOwned>(&self, asked: &Asked<'_>) -> anyhow::Result<T> {
        let found = match self.api(asked.kind, asked.namespace).get(asked.name).await {
            Ok(object) => typed(object).map_err(Error::SerdeError),
            Err(error) => Err(error),
        };
        found.map_err(|error| self.in_words(error, asked))
    }

    /// Calls `tell` with each object of a kind, one page at a time.
    pub(crate) async fn list(
        &self,
        asked: &Asked<'_>,
        selector: Option<String>,
        mut tell: impl FnMut(DynamicObject),
    ) -> Result<(), Error> {
        let api = self.api(asked.kind, asked.namespace);
        let mut params = ListParams { limit: Some(PAGE), label_selector: selector, ..ListParams::default() };
        loop {
            let page = api.list(&params).await?;
            page.items.into_iter().for_each(&mut tell);
            params.continue_token = page.metadata.continue_.filter(|token| !token.is_empty());
            if params.continue_token.is_none() {
                return Ok(());
            }
        }
    }

    /// An error in the user's terms.
    pub(crate) fn in_words(&self, error: Error, asked: &Asked<'_>) -> anyhow::Error {
        failure::in_words(error, asked, &self.server, &self.flags)
    }

    /// A command of larder or kubectl that concerns the same cluster, ready to be pasted into a shell.
    pub(crate) fn command(&self, command: &str) -> String {
        format!("{command}{}", self.flags)
    }
}

/// The flags that were given, which larder and kubectl have in common.
fn flags(args: &ClusterArgs) -> String {
    let kubeconfig = args.kubeconfig.as_ref().map(|file| file.to_string_lossy());
    let given = [("--kubeconfig", kubeconfig.as_deref()), ("--context", args.context.as_deref())];
    given.iter().filter_map(|(flag, value)| Some(format!(" {flag} {}", shell_word((*value)?)))).collect()
}

/// Decodes an object as its type.
pub(crate) fn typed<T: DeserializeOwned>(object: DynamicObject) -> Result<T, serde_json::Error> {
    serde_json::to_value(object).and_then(serde_json::from_value)
}

/// Whether the user lacks the permission, or the cluster does not serve the kind.
pub(crate) fn is_denied(error: &Error) -> bool {
    matches!(error, Error::Api(status) if [403, 404].contains(&status.code))
}

async fn config(args: &ClusterArgs) -> anyhow::Result<Config> {
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
    Config::infer().await.context("no cluster is configured: set KUBECONFIG or --kubeconfig")
}

#[cfg(test)]
mod tests {
    use larder_dataset::Chain;

    use super::*;

    #[test]
    fn printed_commands_concern_the_cluster_of_the_flags() {
        let args = ClusterArgs { kubeconfig: Some("/my files/c".into()), context: Some("training".to_owned()) };
        assert_eq!(flags(&args), " --kubeconfig '/my files/c' --context training");
        assert_eq!(flags(&ClusterArgs::default()), "");
    }

    #[tokio::test]
    async fn a_kubeconfig_that_cannot_be_read_is_named_with_its_cause_once() {
        let args = ClusterArgs { kubeconfig: Some("/nonexistent/config".into()), context: None };
        let error = config(&args).await.unwrap_err();
        let said = Chain(&*error).to_string();
        assert!(said.starts_with("--kubeconfig /nonexistent/config: "), "{said}");
        assert_eq!(said.matches("No such file or directory").count(), 1, "{said}");
    }
}
