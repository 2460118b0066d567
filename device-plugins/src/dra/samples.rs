//! A fake API server of a node with claims and slices, and a fake kubelet whose pods hold devices through the device
//! plugin.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::SystemTime;

use axum::body::{Body as Answer, to_bytes};
use axum::http::{Request, Response};
use larder_kube::Client;
use larder_kube::client::Body;
use larder_kubelet::podresources::pod_resources_lister_server::{PodResourcesLister, PodResourcesListerServer};
use larder_kubelet::podresources::{
    AllocatableResourcesRequest, AllocatableResourcesResponse, ContainerDevices, ContainerResources,
    GetPodResourcesRequest, GetPodResourcesResponse, ListPodResourcesRequest, ListPodResourcesResponse, PodResources,
};
use serde_json::{Value, json};
use tokio::net::UnixListener;
use tokio_stream::wrappers::UnixListenerStream;
use tonic::Status;
use tower::service_fn;

use crate::config::{Kind, Mode};
use crate::health::{Fault, Reason};
use crate::node::samples;
use crate::resource::{DeviceKey, Resource};
use crate::view::View;

/// The node of [`samples::view`], with these modes of `larder.dev/gpu` and `larder.dev/hca`.
pub(super) fn view(gpu: Mode, hca: Mode) -> View {
    let mut resources = samples::view().resources.to_vec();
    (resources[0].config.mode, resources[1].config.mode) = (gpu, hca);
    View { resources: resources.into(), ..samples::view() }
}

/// A view with two rails of that node.
pub(super) fn rails() -> View {
    let mut rail: Resource = samples::resource("larder.dev/rail", Kind::Rail, 1, &[samples::gpu(0), samples::gpu(1)]);
    rail.config.mode = Mode::Dra;
    for (number, unit) in rail.units.iter_mut().enumerate() {
        unit.devices.push(samples::hca(number));
    }
    View { resources: Arc::new([rail]), ..samples::view() }
}

/// The view with these devices out of service.
pub(super) fn with_faults(view: View, faults: &[(DeviceKey, Reason)]) -> View {
    let fault = |(key, reason): &(DeviceKey, Reason)| {
        let (message, recovery) = (format!("{} was seen", reason.name()), "it is repaired".to_owned());
        (key.clone(), Fault { reason: *reason, message, since: SystemTime::UNIX_EPOCH, recovery })
    };
    View { faults: Arc::new(faults.iter().map(fault).collect()), ..view }
}

/// A claim with these devices of the node `n1` allocated, as (request, device).
pub(super) fn claim(uid: &str, given: &[(&str, &str)]) -> Value {
    let result = |(request, device): &(&str, &str)| json!({"request": request, "driver": "devices.larder.dev", "pool": "n1", "device": device});
    let results: Vec<Value> = given.iter().map(result).collect();
    json!({
        "apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim",
        "metadata": {"name": "c", "namespace": "team", "uid": uid},
        "status": {"allocation": {"devices": {"results": results}}},
    })
}

pub(super) struct Inner {
    pub(super) capacity: Value,
    pub(super) slices: BTreeMap<String, Value>,
    /// Keyed by namespace and name.
    pub(super) claims: BTreeMap<String, Value>,
    /// Requests with this prefix are answered with this status code.
    pub(super) refused: Vec<(String, u16)>,
    /// "VERB NAME" of each write.
    pub(super) writes: Vec<String>,
    version: u64,
}

/// The API server.
#[derive(Clone)]
pub(super) struct Api(Arc<Mutex<Inner>>);

impl Api {
    pub(super) fn new() -> Self {
        Self(Arc::new(Mutex::new(Inner {
            capacity: json!({"cpu": "8"}),
            slices: BTreeMap::new(),
            claims: BTreeMap::new(),
            refused: Vec::new(),
            writes: Vec::new(),
            version: 0,
        })))
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().unwrap()
    }

    /// The writes since the last call.
    pub(super) fn writes(&self) -> Vec<String> {
        std::mem::take(&mut self.lock().writes)
    }

    /// The names and taints of the devices in the slices.
    pub(super) fn devices(&self) -> Vec<String> {
        let inner = self.lock();
        let devices = inner.slices.values().flat_map(|slice| slice["spec"]["devices"].as_array().unwrap());
        let shown = devices.map(|device| {
            let taint = device["taints"][0]["value"].as_str().unwrap_or_default();
            format!("{} {taint}", device["name"].as_str().unwrap()).trim_end().to_owned()
        });
        shown.collect()
    }

    pub(super) fn client(&self) -> Client {
        let api = self.clone();
        let service = service_fn(move |request: Request<Body>| {
            let api = api.clone();
            async move {
                let (parts, body) = request.into_parts();
                let bytes = to_bytes(Answer::new(body), 1 << 20).await.unwrap();
                let body = serde_json::from_slice(&bytes).unwrap_or_default();
                let path = parts.uri.to_string();
                let (code, answer) = api.answer(parts.method.as_str(), &path, body);
                Ok::<_, Infallible>(Response::builder().status(code).body(Answer::from(answer.to_string())).unwrap())
            }
        });
        Client::new(service, "default")
    }

    fn answer(&self, method: &str, uri: &str, mut body: Value) -> (u16, Value) {
        let mut inner = self.lock();
        let (path, query) = uri.split_once('?').unwrap_or((uri, ""));
        let status = |code: u16| {
            (code, json!({"kind": "Status", "status": "Failure", "code": code, "message": "no", "reason": ""}))
        };
        let request = format!("{method} {path}");
        if let Some((_, code)) = inner.refused.iter().find(|(what, _)| request.starts_with(what)) {
            return status(*code);
        }
        let name = path.rsplit('/').next().unwrap().to_owned();
        if path == "/api/v1/nodes/n1" {
            let metadata = json!({"name": "n1", "uid": "node-uid"});
            return (200, json!({"metadata": metadata, "status": {"capacity": inner.capacity}}));
        }
        if let Some(claim) = path.strip_prefix("/apis/resource.k8s.io/v1/namespaces/") {
            let found = inner.claims.get(&claim.replace("/resourceclaims", "")).cloned();
            return found.map_or_else(|| status(404), |claim| (200, claim));
        }
        if method == "GET" {
            assert_eq!(query, "&fieldSelector=spec.nodeName%3Dn1%2Cspec.driver%3Ddevices.larder.dev");
            let items: Vec<Value> = inner.slices.values().cloned().collect();
            return (200, json!({"metadata": {}, "items": items}));
        }
        inner.version += 1;
        let version = json!(inner.version.to_string());
        let name = if method == "POST" { body["metadata"]["name"].as_str().unwrap().to_owned() } else { name };
        inner.writes.push(format!("{method} {name}"));
        let found = inner.slices.get(&name).map(|slice| slice["metadata"]["resourceVersion"].clone());
        match (method, found) {
            ("DELETE", Some(_)) => {
                inner.slices.remove(&name);
                return (200, json!({"kind": "Status", "status": "Success"}));
            }
            ("PUT", Some(found)) if found == body["metadata"]["resourceVersion"] => {}
            ("POST", None) => {}
            (_, found) => return status(if found.is_some() { 409 } else { 404 }),
        }
        body["metadata"]["resourceVersion"] = version;
        inner.slices.insert(name, body.clone());
        (200, body)
    }
}

/// A kubelet where a pod `p` of `team` holds an ID of a resource.
#[derive(Clone)]
struct Kubelet(Vec<(String, String)>);

#[tonic::async_trait]
impl PodResourcesLister for Kubelet {
    async fn list(
        &self,
        _: tonic::Request<ListPodResourcesRequest>,
    ) -> Result<tonic::Response<ListPodResourcesResponse>, Status> {
        let given = |(resource_name, id): &(String, String)| ContainerDevices {
            resource_name: resource_name.clone(),
            device_ids: vec![id.clone()],
            topology: None,
        };
        let devices = self.0.iter().map(given).collect();
        let containers = vec![ContainerResources { name: "main".into(), devices, ..ContainerResources::default() }];
        let pod = PodResources { name: "p".into(), namespace: "team".into(), containers };
        Ok(tonic::Response::new(ListPodResourcesResponse { pod_resources: vec![pod] }))
    }

    async fn get_allocatable_resources(
        &self,
        _: tonic::Request<AllocatableResourcesRequest>,
    ) -> Result<tonic::Response<AllocatableResourcesResponse>, Status> {
        Err(Status::unimplemented("not asked"))
    }

    async fn get(
        &self,
        _: tonic::Request<GetPodResourcesRequest>,
    ) -> Result<tonic::Response<GetPodResourcesResponse>, Status> {
        Err(Status::unimplemented("not asked"))
    }
}

/// Serves a kubelet's pod resources API below its folder. An earlier server is replaced.
pub(super) fn serve_pods(kubelet: &Path, held: &[(&str, &str)]) {
    let folder = kubelet.join("pod-resources");
    std::fs::create_dir_all(&folder).unwrap();
    let socket = folder.join("kubelet.sock");
    let _ = std::fs::remove_file(&socket);
    let incoming = UnixListenerStream::new(UnixListener::bind(socket).unwrap());
    let held = held.iter().map(|(resource, id)| ((*resource).to_owned(), (*id).to_owned())).collect();
    let service = PodResourcesListerServer::new(Kubelet(held));
    tokio::spawn(tonic::transport::Server::builder().add_service(service).serve_with_incoming(incoming));
}
