//! Answers the kubelet's calls for one resource.

use std::collections::HashMap;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use futures::Stream;
use larder_kubelet::deviceplugin::device_plugin_server::DevicePlugin;
use larder_kubelet::deviceplugin::{
    AllocateRequest, AllocateResponse, CdiDevice, ContainerAllocateResponse, ContainerPreferredAllocationResponse,
    Device, DevicePluginOptions, DeviceSpec, Empty, ListAndWatchResponse, PreStartContainerRequest,
    PreStartContainerResponse, PreferredAllocationRequest, PreferredAllocationResponse,
};
use tokio::sync::watch;
use tokio::time::{Interval, MissedTickBehavior};
use tokio_util::sync::CancellationToken;
use tonic::{Request, Response, Status, async_trait};
use tracing::{info, warn};

use super::settings::Settings;
use super::{list, registration};
use crate::cdi::nodes;
use crate::config::ResourceName;
use crate::grant::{Grant, Refusal, grant};
use crate::instance::Instance;
use crate::resource::Resource;
use crate::view::View;

/// How often the list is sent again without a change.
const REPEAT: Duration = Duration::from_secs(60);

/// Counts of ListAndWatch streams.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Streams {
    /// All streams since the start.
    pub(super) opened: u64,
    /// The streams that are open now.
    pub(super) open: u64,
}

/// The device plugin service of one resource.
#[derive(Debug)]
pub(super) struct Service {
    pub(super) resource: ResourceName,
    pub(super) settings: Arc<Settings>,
    pub(super) views: watch::Receiver<Arc<View>>,
    pub(super) streams: watch::Sender<Streams>,
    /// Incremented to make all streams send their list again.
    pub(super) again: watch::Sender<u64>,
    pub(super) instance: Arc<Instance>,
    pub(super) stop: CancellationToken,
}

impl Service {
    fn view(&self) -> Arc<View> {
        Arc::clone(&self.views.borrow())
    }

    fn resource<'a>(&self, view: &'a View) -> Result<&'a Resource, Status> {
        let found = view.resources.iter().find(|resource| resource.config.name == self.resource);
        found.ok_or_else(|| Status::not_found(format!("this node no longer offers {}", self.resource)))
    }

    fn answer(&self, grant: Grant) -> ContainerAllocateResponse {
        let node = |name: String| DeviceSpec {
            container_path: format!("/dev/{}/{name}", nodes::FOLDER),
            host_path: self.settings.host_dev.join(nodes::FOLDER).join(&name).to_string_lossy().into_owned(),
            permissions: "rw".to_owned(),
        };
        ContainerAllocateResponse {
            envs: grant.env.into_iter().collect(),
            mounts: Vec::new(),
            devices: grant.nodes.into_iter().map(node).collect(),
            annotations: HashMap::new(),
            cdi_devices: grant.cdi.into_iter().map(|name| CdiDevice { name }).collect(),
        }
    }

    fn refuse(&self, refusal: &Refusal) -> Status {
        warn!(resource = %self.resource, %refusal, "allocation refused");
        self.again.send_modify(|count| *count += 1);
        Status::failed_precondition(refusal.to_string())
    }
}

#[async_trait]
impl DevicePlugin for Service {
    type ListAndWatchStream = Pin<Box<dyn Stream<Item = Result<ListAndWatchResponse, Status>> + Send>>;

    async fn get_device_plugin_options(&self, _: Request<Empty>) -> Result<Response<DevicePluginOptions>, Status> {
        Ok(Response::new(registration::options()))
    }

    async fn list_and_watch(&self, _: Request<Empty>) -> Result<Response<Self::ListAndWatchStream>, Status> {
        let lists = Lists {
            resource: self.resource.clone(),
            views: self.views.clone(),
            again: self.again.subscribe(),
            repeat: Lists::repeat(),
            sent: None,
            instance: Arc::clone(&self.instance),
            stop: self.stop.clone(),
            _open: Open::begin(self.streams.clone()),
        };
        let stream = futures::stream::unfold(lists, |mut lists| async {
            let devices = lists.next().await?;
            Some((Ok(ListAndWatchResponse { devices }), lists))
        });
        Ok(Response::new(Box::pin(stream)))
    }

    async fn get_preferred_allocation(
        &self,
        request: Request<PreferredAllocationRequest>,
    ) -> Result<Response<PreferredAllocationResponse>, Status> {
        let view = self.view();
        let resource = self.resource(&view)?;
        let container_responses = request
            .into_inner()
            .container_requests
            .into_iter()
            .map(|request| {
                let size = usize::try_from(request.allocation_size).unwrap_or_default();
                let (available, must_include) = (&request.available_device_i_ds, &request.must_include_device_i_ds);
                let chosen = (self.settings.choose)(&view.machine, resource, available, must_include, size);
                ContainerPreferredAllocationResponse { device_i_ds: chosen }
            })
            .collect();
        Ok(Response::new(PreferredAllocationResponse { container_responses }))
    }

    async fn allocate(&self, request: Request<AllocateRequest>) -> Result<Response<AllocateResponse>, Status> {
        let settings = Arc::clone(&self.settings);
        let vendor = tokio::task::spawn_blocking(move || settings.found.names()).await;
        let vendor = vendor.map_err(|error| Status::internal(format!("look for CDI files: {error}")))?;
        let view = self.view();
        let resource = self.resource(&view)?;
        let mut container_responses = Vec::new();
        for request in request.into_inner().container_requests {
            let granted = grant(&view, resource, &request.devices_ids, &vendor, self.settings.means);
            let granted = granted.map_err(|refusal| self.refuse(&refusal))?;
            info!(resource = %self.resource, ids = ?request.devices_ids, cdi = ?granted.cdi, "allocated");
            container_responses.push(self.answer(granted));
        }
        Ok(Response::new(AllocateResponse { container_responses }))
    }

    async fn pre_start_container(
        &self,
        _: Request<PreStartContainerRequest>,
    ) -> Result<Response<PreStartContainerResponse>, Status> {
        Ok(Response::new(PreStartContainerResponse {}))
    }
}

/// One ListAndWatch stream. A list is built when the kubelet reads it, so a slow kubelet gets the newest list next, and
/// no other task waits for it.
struct Lists {
    resource: ResourceName,
    views: watch::Receiver<Arc<View>>,
    again: watch::Receiver<u64>,
    repeat: Interval,
    sent: Option<Vec<Device>>,
    instance: Arc<Instance>,
    stop: CancellationToken,
    _open: Open,
}

impl Lists {
    fn repeat() -> Interval {
        let mut repeat = tokio::time::interval_at(tokio::time::Instant::now() + REPEAT, REPEAT);
        repeat.set_missed_tick_behavior(MissedTickBehavior::Delay);
        repeat
    }

    /// The next list to send, or `None` at the end.
    async fn next(&mut self) -> Option<Vec<Device>> {
        let mut is_due = self.sent.is_none();
        loop {
            let devices = list::devices(&self.views.borrow_and_update(), &self.resource);
            // The kubelet keeps reading the streams of an older process, so the older process stops sending. Closing
            // its streams would make the kubelet close the newer process's streams, too.
            let is_ours = self.sent.is_none() || self.instance.is_newest();
            if is_ours && (is_due || self.sent.as_ref() != Some(&devices)) {
                self.sent = Some(devices.clone());
                return Some(devices);
            }
            is_due = tokio::select! {
                () = self.stop.cancelled() => return None,
                changed = self.views.changed() => { changed.ok()?; false }
                changed = self.again.changed() => { changed.ok()?; true }
                _ = self.repeat.tick() => true,
            };
        }
    }
}

/// Counts a stream while it is open.
struct Open(watch::Sender<Streams>);

impl Open {
    fn begin(streams: watch::Sender<Streams>) -> Self {
        streams.send_modify(|streams| {
            streams.opened += 1;
            streams.open += 1;
        });
        Self(streams)
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        self.0.send_modify(|streams| streams.open -= 1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // SEMANTICS: D12
    #[tokio::test(start_paused = true)]
    async fn the_list_is_sent_every_minute_and_when_asked_for() {
        let folder = tempfile::tempdir().unwrap();
        let instance = Arc::new(Instance::begin(folder.path()).await.unwrap());
        let views = watch::Sender::new(Arc::new(View::default()));
        let (streams, again) = (watch::Sender::new(Streams::default()), watch::Sender::new(0));
        let mut lists = Lists {
            resource: ResourceName::new("larder.dev/gpu").unwrap(),
            views: views.subscribe(),
            again: again.subscribe(),
            repeat: Lists::repeat(),
            sent: None,
            instance,
            stop: CancellationToken::new(),
            _open: Open::begin(streams.clone()),
        };
        let started = tokio::time::Instant::now();
        let mut seconds = Vec::new();
        for round in 0..4 {
            if round == 3 {
                // A view that changes nothing for this resource sends no list. An explicit request does.
                views.send_modify(|_| {});
                again.send_modify(|count| *count += 1);
            }
            assert_eq!(lists.next().await, Some(Vec::new()));
            seconds.push(started.elapsed().as_secs());
        }
        assert_eq!(seconds, [0, 60, 120, 120]);
        let newer = Instance::begin(folder.path()).await.unwrap();
        tokio::time::timeout(REPEAT * 3, lists.next()).await.expect_err("a newer process lives");
        drop(newer);
        assert_eq!(lists.next().await, Some(Vec::new()));
        assert_eq!(*streams.borrow(), Streams { opened: 1, open: 1 });
        lists.stop.cancel();
        assert_eq!(lists.next().await, None);
        drop(lists);
        assert_eq!(*streams.borrow(), Streams { opened: 1, open: 0 });
    }
}
