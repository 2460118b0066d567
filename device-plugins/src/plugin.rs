//! Serves the kubelet's device plugin API: one server for each resource of mode `plugin`.
//!
//! The parts: `list` builds the device list of a resource. `service` answers the kubelet's calls. `registration`
//! registers a resource with the kubelet. `folder` notices changes in the kubelet's folder. `server` keeps one resource
//! served and registered.

mod folder;
mod list;
mod registration;
mod server;
mod service;
mod settings;

use std::collections::BTreeMap;
use std::sync::Arc;

use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tracing::info;

use crate::config::{Mode, ResourceName};
use crate::instance::Instance;
use crate::view::View;
use server::Server;

pub use list::devices;
pub use settings::{Choose, Settings};

/// Serves the resources of the newest view until `stop`; a change of the configuration adds and removes resources.
/// `views` must be the views that [`crate::cdi::keep`] has prepared.
pub async fn run(
    settings: Settings,
    instance: Arc<Instance>,
    mut views: watch::Receiver<Arc<View>>,
    stop: CancellationToken,
) {
    let settings = Arc::new(settings);
    let changes = watch::Sender::new(0);
    let mut tasks = JoinSet::new();
    tasks.spawn(folder::watch(settings.folder.clone(), changes.clone(), stop.clone()));
    let mut servers: BTreeMap<ResourceName, CancellationToken> = BTreeMap::new();
    loop {
        let view = Arc::clone(&views.borrow_and_update());
        let wanted: Vec<&ResourceName> = view
            .resources
            .iter()
            .map(|resource| &resource.config)
            .filter(|config| config.mode == Mode::Plugin)
            .map(|config| &config.name)
            .collect();
        servers.retain(|name, stop| {
            let stays = wanted.contains(&name);
            if !stays {
                info!(resource = %name, "resource no longer offered");
                stop.cancel();
            }
            stays
        });
        for name in wanted.into_iter().filter(|name| !servers.contains_key(name)).cloned().collect::<Vec<_>>() {
            let stop = stop.child_token();
            let server = Server {
                resource: name.clone(),
                settings: Arc::clone(&settings),
                instance: Arc::clone(&instance),
                views: views.clone(),
                changes: changes.subscribe(),
                stop: stop.clone(),
            };
            tasks.spawn(server.run());
            servers.insert(name, stop);
        }
        tokio::select! {
            () = stop.cancelled() => break,
            changed = views.changed() => if changed.is_err() { break },
            Some(ended) = tasks.join_next() => ended.unwrap_or_else(|error| std::panic::resume_unwind(error.into_panic())),
        }
    }
    stop.cancel();
    while tasks.join_next().await.is_some() {}
}
