//! What the runtime calls.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use larder_devices_api::nri::{
    ConfigureRequest, ConfigureResponse, Container, CreateContainerRequest, CreateContainerResponse, Event, PodSandbox,
    RemoveContainerRequest, SynchronizeRequest, SynchronizeResponse,
};
use prost::Message;
use tokio::sync::watch;
use tracing::{debug, info, warn};
use ttrpc::r#async::{MethodHandler, Service, TtrpcContext};
use ttrpc::proto::{Request, Response};

use super::container;
use super::held::{Containers, Held, Key};
use crate::instance::Begun;
use crate::view::View;

/// The calls of one connection.
pub(super) struct Plugin {
    view: watch::Receiver<Arc<View>>,
    instance: Begun,
    containers: watch::Sender<Arc<Containers>>,
    /// The pods and containers of the synchronization so far: a container may come in another message than its pod.
    synchronized: Mutex<SynchronizeRequest>,
    /// True once the runtime asks about each container.
    is_asked: watch::Sender<bool>,
}

impl Plugin {
    pub(super) fn new(
        view: watch::Receiver<Arc<View>>,
        instance: Begun,
        containers: watch::Sender<Arc<Containers>>,
    ) -> Self {
        let (synchronized, is_asked) = (Mutex::default(), watch::Sender::new(false));
        Self { view, instance, containers, synchronized, is_asked }
    }

    /// True once the runtime asks about each container that it creates.
    pub(super) fn is_asked(&self) -> watch::Receiver<bool> {
        self.is_asked.subscribe()
    }

    /// The calls by name, for ttrpc.
    pub(super) fn service(self: Arc<Self>) -> Service {
        let calls: [(&str, Call); 6] = [
            ("Configure", Self::configure),
            ("Synchronize", Self::synchronize),
            ("CreateContainer", Self::create_container),
            ("RemoveContainer", Self::remove_container),
            // The connection ends by itself.
            ("Shutdown", |_, _| Ok(Vec::new())),
            // Other events are not asked for.
            ("StateChange", |_, _| Ok(Vec::new())),
        ];
        let method = |(name, call): (&str, Call)| {
            let method: Box<dyn MethodHandler + Send + Sync> = Box::new(Method { plugin: Arc::clone(&self), call });
            (name.to_owned(), method)
        };
        Service { methods: calls.map(method).into(), streams: HashMap::new() }
    }

    fn configure(&self, request: &[u8]) -> Answer {
        let request = ConfigureRequest::decode(request)?;
        info!(
            runtime = request.runtime_name,
            version = request.runtime_version,
            "registered with the container runtime"
        );
        // Bit N-1 is event N.
        let bit = |event: Event| 1 << (event as i32 - 1);
        let events = bit(Event::CreateContainer) | bit(Event::RemoveContainer);
        Ok(ConfigureResponse { events }.encode_to_vec())
    }

    fn synchronize(&self, request: &[u8]) -> Answer {
        let SynchronizeRequest { pods, containers, more } = SynchronizeRequest::decode(request)?;
        let mut synchronized = self.synchronized();
        synchronized.pods.extend(pods);
        synchronized.containers.extend(containers);
        if !more {
            let SynchronizeRequest { pods, containers, .. } = std::mem::take(&mut *synchronized);
            let pods: HashMap<&str, &PodSandbox> = pods.iter().map(|pod| (pod.id.as_str(), pod)).collect();
            let view = Arc::clone(&self.view.borrow());
            let of_pod = |container: &Container| held(pods.get(container.pod_sandbox_id.as_str())?, container, &view);
            let held = Arc::new(containers.iter().filter_map(of_pod).collect::<Containers>());
            self.containers.send_if_modified(|containers| std::mem::replace(containers, Arc::clone(&held)) != held);
            self.is_asked.send_replace(true);
        }
        Ok(SynchronizeResponse { more, ..SynchronizeResponse::default() }.encode_to_vec())
    }

    fn create_container(&self, request: &[u8]) -> Answer {
        let request = CreateContainerRequest::decode(request)?;
        let view = Arc::clone(&self.view.borrow());
        let (Some(pod), Some(container)) = (&request.pod, &request.container) else { return Ok(Vec::new()) };
        // Of two answers that change the same, the runtime would refuse the container. The newest process has the one that holds.
        if self.instance.is_newest() != Some(true) {
            self.hold(pod, container, &view);
            return Ok(Vec::new());
        }
        let adjust = container::adjust(&request, &view);
        let (namespace, pod_name, name) = (&pod.namespace, &pod.name, &container.name);
        match adjust {
            Ok(None) => Ok(Vec::new()),
            Ok(Some(adjust)) => {
                debug!(namespace, pod = pod_name, container = name, "container limited");
                self.hold(pod, container, &view);
                Ok(CreateContainerResponse { adjust: Some(adjust), ..CreateContainerResponse::default() }
                    .encode_to_vec())
            }
            Err(refusal) => {
                warn!(namespace, pod = pod_name, container = name, %refusal, "container refused");
                Err(Refused(refusal.to_string()))
            }
        }
    }

    fn remove_container(&self, request: &[u8]) -> Answer {
        let request = RemoveContainerRequest::decode(request)?;
        let id = request.container.map(|container| container.id).unwrap_or_default();
        self.containers.send_if_modified(|containers| {
            let found = containers.iter().find(|(_, held)| held.id == id).map(|(key, _)| key.clone());
            found.is_some_and(|key| Arc::make_mut(containers).remove(&key).is_some())
        });
        Ok(Vec::new())
    }

    /// Takes a container in that has HCAs.
    fn hold(&self, pod: &PodSandbox, container: &Container, view: &View) {
        if let Some((key, held)) = held(pod, container, view) {
            self.containers.send_modify(|containers| {
                Arc::make_mut(containers).insert(key, held);
            });
        }
    }

    fn synchronized(&self) -> MutexGuard<'_, SynchronizeRequest> {
        self.synchronized.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn held(pod: &PodSandbox, container: &Container, view: &View) -> Option<(Key, Held)> {
    let traces = container::traces(container);
    let hcas: BTreeSet<String> =
        traces.iter().filter_map(|trace| trace.hca(&view.machine)).map(|hca| hca.name.clone()).collect();
    let key = Key { pod_uid: pod.uid.clone(), container: container.name.clone() };
    let held = Held {
        id: container.id.clone(),
        namespace: pod.namespace.clone(),
        pod: pod.name.clone(),
        cgroups_path: container.linux.as_ref().map(|linux| linux.cgroups_path.clone()).unwrap_or_default(),
        hcas: hcas.into_iter().collect(),
    };
    (!traces.is_empty()).then_some((key, held))
}

/// Why a call is refused.
struct Refused(String);

impl From<prost::DecodeError> for Refused {
    fn from(error: prost::DecodeError) -> Self {
        Self(format!("larder-devices cannot decode the message of the container runtime: {error}"))
    }
}

type Answer = Result<Vec<u8>, Refused>;
type Call = fn(&Plugin, &[u8]) -> Answer;

struct Method {
    plugin: Arc<Plugin>,
    call: Call,
}

#[async_trait::async_trait]
impl MethodHandler for Method {
    async fn handler(&self, _: TtrpcContext, request: Request) -> ttrpc::Result<Response> {
        let mut response = Response::new();
        match (self.call)(&self.plugin, &request.payload) {
            Ok(payload) => response.payload = payload,
            // As a status: the runtime would show an error with the debug text of the whole structure.
            Err(Refused(why)) => response.set_status(ttrpc::get_status(ttrpc::Code::INVALID_ARGUMENT, why)),
        }
        Ok(response)
    }
}
