//! The objects that the benchmark creates, and their removal.

use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use futures::stream::{StreamExt, TryStreamExt};
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{Node, Pod};
use k8s_openapi::api::scheduling::v1::PriorityClass;
use larder_api::{JobType, Queue, TrainingJob};
use larder_kube::api::{DeleteParams, DynamicObject, ListParams, Patch, PatchParams, PostParams};
use larder_kube::core::{ApiResource, GroupVersionKind};
use larder_kube::{Api, Client, Error, Resource};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::work::{Priority, Type};
use crate::kubernetes::objects::{self, AT_ONCE, NAMESPACE, gone};

/// The field manager of what the benchmark applies.
const MANAGER: &str = NAMESPACE;

/// The policy that Larder ships for the pods of its jobs, with its binding, and the name of the benchmark's copies.
const POLICY: &str = include_str!("../../../deploy/components/jobs/base/pod-fields.yaml");
const POLICY_NAME: &str = "larder-bench-pod-fields";

/// The timeout of the deletion of a turn's objects.
const GOING: Duration = Duration::from_secs(900);
/// The interval at which the deletion is checked.
const LOOK: Duration = Duration::from_secs(1);

/// A kind of Kueue or coscheduling, whose fields have no types here.
pub(crate) fn kind(group: &str, version: &str, kind: &str, plural: &str) -> ApiResource {
    ApiResource::from_gvk_with_plural(&GroupVersionKind::gvk(group, version, kind), plural)
}

pub(crate) fn kueue(name: &str, plural: &str) -> ApiResource {
    kind("kueue.x-k8s.io", "v1beta2", name, plural)
}

pub(crate) fn pod_groups() -> ApiResource {
    kind("scheduling.x-k8s.io", "v1alpha1", "PodGroup", "podgroups")
}

/// Whether the API server serves this kind.
pub(crate) async fn serves(client: &Client, resource: &ApiResource) -> anyhow::Result<bool> {
    let objects: Api<DynamicObject> = Api::all_with(client.clone(), resource);
    match objects.list(&ListParams::default().limit(1)).await {
        Ok(_) => Ok(true),
        Err(Error::Api(status)) if status.code == 404 => Ok(false),
        Err(error) => Err(error).with_context(|| format!("list {}", resource.plural)),
    }
}

/// Fails if the cluster has jobs, queues or nodes that are not the benchmark's.
pub(crate) async fn refuse_a_cluster_in_use(client: &Client) -> anyhow::Result<()> {
    let known = "if the CRDs are missing, run `kubectl apply -k deploy/crds` and try again";
    let all = ListParams::default();
    let jobs = Api::<TrainingJob>::all(client.clone()).list(&all).await;
    for job in jobs.with_context(|| format!("list TrainingJobs: {known}"))? {
        let (namespace, name) = (job.metadata.namespace.unwrap_or_default(), job.metadata.name.unwrap_or_default());
        if namespace != NAMESPACE {
            bail!("the cluster has the TrainingJob {namespace}/{name}: use a dedicated cluster");
        }
    }
    for queue in Api::<Queue>::all(client.clone()).list(&all).await.context("list Queues")? {
        refuse("Queue", &queue.metadata.name)?;
    }
    let queues = kueue("ClusterQueue", "clusterqueues");
    if serves(client, &queues).await? {
        let queues: Api<DynamicObject> = Api::all_with(client.clone(), &queues);
        for queue in queues.list(&all).await.context("list ClusterQueues")? {
            refuse("ClusterQueue", &queue.metadata.name)?;
        }
    }
    for node in Api::<Node>::all(client.clone()).list(&all).await.context("list the nodes")? {
        refuse("node", &node.metadata.name)?;
    }
    objects::refuse_another_controller(client).await
}

fn refuse(kind: &str, name: &Option<String>) -> anyhow::Result<()> {
    match name.as_deref() {
        Some(name) if !name.starts_with(NAMESPACE) => {
            bail!("the cluster has the {kind} {name}: use a dedicated cluster")
        }
        _ => Ok(()),
    }
}

/// Creates each object when it is due, several at a time. Returns when each request was sent.
pub(crate) async fn create<K>(api: &Api<K>, objects: Vec<(Duration, Value)>) -> anyhow::Result<Vec<(String, Instant)>>
where
    K: Resource + Clone + DeserializeOwned + serde::Serialize + std::fmt::Debug,
{
    let started = tokio::time::Instant::now();
    let create = |(due, object)| async move {
        tokio::time::sleep_until(started + due).await;
        create_one(api, object).await
    };
    futures::stream::iter(objects).map(create).buffered(AT_ONCE).try_collect().await
}

pub(crate) async fn create_one<K>(api: &Api<K>, object: Value) -> anyhow::Result<(String, Instant)>
where
    K: Resource + Clone + DeserializeOwned + serde::Serialize + std::fmt::Debug,
{
    let name = object["metadata"]["name"].as_str().unwrap_or_default().to_owned();
    let object: K = serde_json::from_value(object).with_context(|| format!("make {name}"))?;
    let sent = Instant::now();
    api.create(&PostParams::default(), &object).await.with_context(|| format!("make {name}"))?;
    Ok((name, sent))
}

/// Applies an object of any kind, in its namespace if it has one.
pub(crate) async fn apply(api: Api<DynamicObject>, object: &Value) -> anyhow::Result<()> {
    let name = object["metadata"]["name"].as_str().unwrap_or_default();
    let applied = api.patch(name, &PatchParams::apply(MANAGER).force(), &Patch::Apply(object)).await;
    applied.map(drop).with_context(|| format!("apply {name}"))
}

/// The benchmark's copies of the policy for pods and of its binding.
fn policies() -> anyhow::Result<Vec<(ApiResource, Value)>> {
    let mut copies = Vec::new();
    for document in serde_yaml_ng::Deserializer::from_str(POLICY) {
        let mut object = Value::deserialize(document).context("read a policy")?;
        let name = object["kind"].as_str().unwrap_or_default().to_owned();
        object["metadata"]["name"] = POLICY_NAME.into();
        let plural = if name == "MutatingAdmissionPolicy" {
            "mutatingadmissionpolicies"
        } else {
            object["spec"]["policyName"] = POLICY_NAME.into();
            "mutatingadmissionpolicybindings"
        };
        copies.push((kind("admissionregistration.k8s.io", "v1", &name, plural), object));
    }
    Ok(copies)
}

/// Creates the PriorityClasses, the JobTypes and the policy for pods.
pub(crate) async fn make_classes(client: &Client) -> anyhow::Result<()> {
    let classes: Api<PriorityClass> = Api::all(client.clone());
    for priority in Priority::ALL {
        create_one(&classes, json!({"metadata": {"name": priority.name()}, "value": priority.value()})).await?;
    }
    let types: Api<JobType> = Api::all(client.clone());
    for type_ in Type::ALL {
        let mut manifest: Value = serde_yaml_ng::from_str(type_.manifest()).context("read a JobType")?;
        manifest["metadata"]["name"] = type_.name().into();
        create_one(&types, manifest).await?;
    }
    for (resource, object) in policies()? {
        apply(Api::all_with(client.clone(), &resource), &object).await?;
    }
    Ok(())
}

/// Whether the controller reports all JobTypes as valid.
pub(crate) async fn types_are_valid(client: &Client) -> anyhow::Result<bool> {
    let types = Api::<JobType>::all(client.clone()).list(&ListParams::default()).await.context("list JobTypes")?;
    let valid = |type_: &JobType| {
        let conditions = type_.status.iter().flat_map(|status| &status.conditions);
        conditions.into_iter().any(|condition| condition.type_ == "Valid" && condition.status == "True")
    };
    Ok(Type::ALL.iter().all(|wanted| types.iter().any(|type_| named(type_, &wanted.name()) && valid(type_))))
}

fn named(type_: &JobType, name: &str) -> bool {
    type_.metadata.name.as_deref() == Some(name)
}

/// Removes the jobs of a turn and their pods, and waits until they are deleted. Kubernetes' controllers and Kueue must
/// run, because the objects have their finalizers.
pub(crate) async fn clear(client: &Client) -> anyhow::Result<()> {
    let background = DeleteParams::background();
    delete_all(&Api::<TrainingJob>::namespaced(client.clone(), NAMESPACE), &background).await?;
    delete_all(&Api::<Job>::namespaced(client.clone(), NAMESPACE), &background).await?;
    let pods = Api::<Pod>::namespaced(client.clone(), NAMESPACE);
    let started = Instant::now();
    loop {
        // Again each time, because a controller may have created more pods.
        delete_all(&pods, &DeleteParams::default().grace_period(0)).await?;
        let left = [
            any(&Api::<TrainingJob>::namespaced(client.clone(), NAMESPACE)).await?,
            any(&Api::<Job>::namespaced(client.clone(), NAMESPACE)).await?,
            any(&pods).await?,
            any(&Api::<DynamicObject>::namespaced_with(client.clone(), NAMESPACE, &kueue("Workload", "workloads")))
                .await?,
        ];
        let Some(left) = left.into_iter().flatten().next() else { break };
        if started.elapsed() > GOING {
            bail!("{left} is not being deleted; see `kubectl get -o yaml`");
        }
        tokio::time::sleep(LOOK).await;
    }
    let queues = Api::<Queue>::all(client.clone());
    delete_all(&queues, &background).await?;
    let groups = Api::<DynamicObject>::namespaced_with(client.clone(), NAMESPACE, &pod_groups());
    delete_all(&groups, &background).await?;
    let local = kueue("LocalQueue", "localqueues");
    delete_all(&Api::<DynamicObject>::namespaced_with(client.clone(), NAMESPACE, &local), &background).await?;
    let queues = kueue("ClusterQueue", "clusterqueues");
    delete_all(&Api::<DynamicObject>::all_with(client.clone(), &queues), &background).await?;
    let flavors = Api::<DynamicObject>::all_with(client.clone(), &kueue("ResourceFlavor", "resourceflavors"));
    gone(flavors.delete(NAMESPACE, &background).await.map(drop)).context("delete the ResourceFlavor")
}

/// Removes all objects of the benchmark. Its controller must have ended.
pub(crate) async fn remove(client: &Client) -> anyhow::Result<()> {
    clear(client).await?;
    objects::delete_namespace(client).await?;
    for type_ in Type::ALL {
        let types: Api<JobType> = Api::all(client.clone());
        gone(types.delete(&type_.name(), &DeleteParams::default()).await.map(drop)).context("delete a JobType")?;
    }
    for priority in Priority::ALL {
        let classes: Api<PriorityClass> = Api::all(client.clone());
        let deleted = classes.delete(&priority.name(), &DeleteParams::default()).await;
        gone(deleted.map(drop)).context("delete a PriorityClass")?;
    }
    for (resource, _) in policies()? {
        let all: Api<DynamicObject> = Api::all_with(client.clone(), &resource);
        gone(all.delete(POLICY_NAME, &DeleteParams::default()).await.map(drop)).context("delete a policy")?;
    }
    objects::delete_nodes(client).await?;
    objects::await_namespace_gone(client).await
}

async fn delete_all<K>(api: &Api<K>, how: &DeleteParams) -> anyhow::Result<()>
where
    K: Resource + Clone + DeserializeOwned + std::fmt::Debug,
{
    gone(api.delete_collection(how, &ListParams::default()).await.map(drop)).context("delete the objects of a run")
}

/// The name of some existing object; `None` if there is none.
async fn any<K>(api: &Api<K>) -> anyhow::Result<Option<String>>
where
    K: Resource + Clone + DeserializeOwned + std::fmt::Debug,
{
    match api.list_metadata(&ListParams::default().limit(1)).await {
        Ok(list) => Ok(list.items.into_iter().next().and_then(|object| object.metadata.name)),
        Err(Error::Api(status)) if status.code == 404 => Ok(None),
        Err(error) => Err(error).context("list the objects of a run"),
    }
}
