use std::sync::Arc;

use hyper_util::rt::TokioIo;
use larder_kubelet::dra::dra_plugin_client::DraPluginClient;
use larder_kubelet::dra::{Claim, NodePrepareResourcesRequest};
use larder_kubelet::dra_health::NodeWatchResourcesRequest;
use larder_kubelet::dra_health::dra_resource_health_client::DraResourceHealthClient;
use larder_kubelet::pluginregistration::registration_client::RegistrationClient;
use larder_kubelet::pluginregistration::{InfoRequest, RegistrationStatus};
use tonic::transport::{Channel, Endpoint, Uri};

use super::super::samples::{Api, claim, rails};
use super::super::service::Settings;
use super::*;
use crate::cdi::Found;

/// Connects as soon as the socket accepts.
async fn dial(socket: &Path) -> Channel {
    loop {
        let path = socket.to_owned();
        let connect = tower::service_fn(move |_: Uri| {
            let path = path.clone();
            async move { UnixStream::connect(&path).await.map(TokioIo::new) }
        });
        match Endpoint::from_static("http://localhost").connect_with_connector(connect).await {
            Ok(channel) => return channel,
            Err(_) => sleep(Duration::from_millis(10)).await,
        }
    }
}

#[tokio::test]
async fn removed_sockets_of_the_driver_are_recreated_and_registered() {
    let folder = tempfile::tempdir().unwrap();
    let kubelet = folder.path().to_owned();
    // A leftover of an earlier process.
    std::fs::create_dir(kubelet.join("plugins_registry")).unwrap();
    let registration = kubelet.join("plugins_registry/devices.larder.dev-reg.sock");
    drop(std::os::unix::net::UnixListener::bind(&registration).unwrap());
    let instance = Arc::new(Instance::begin(&kubelet.join("device-plugins")).await.unwrap());
    let (api, stop) = (Api::new(), CancellationToken::new());
    api.lock().claims.insert("team/c".into(), claim("u1", &[("r", "gpu-0")]));
    let views = watch::Sender::new(Arc::new(rails()));
    let settings = Settings {
        node: "n1".into(),
        cdi: kubelet.join("cdi"),
        found: Found::new(Vec::new()),
        gpus_by_cdi_only: false,
    };
    let service = Service::new(settings, api.client(), views.subscribe(), watch::Sender::new(0), stop.clone());
    let answers = watch::Sender::new(Answer::None);
    let (mut answered, serving_stop, serving_kubelet) = (answers.subscribe(), stop.clone(), kubelet.clone());
    let serving = tokio::spawn(async move {
        serve(&serving_kubelet, &instance, service, answers, serving_stop).await;
    });
    for _ in 0..2 {
        let mut registration_client = RegistrationClient::new(dial(&registration).await);
        let info = registration_client.get_info(InfoRequest {}).await.unwrap().into_inner();
        assert_eq!((&*info.r#type, &*info.name), ("DRAPlugin", "devices.larder.dev"));
        assert_eq!(info.supported_versions, ["v1.DRAPlugin"]);
        let status = RegistrationStatus { plugin_registered: true, error: String::new() };
        registration_client.notify_registration_status(status).await.unwrap();
        answered.changed().await.unwrap();
        assert_eq!(*answered.borrow_and_update(), Answer::Registered);
        let channel = dial(Path::new(&info.endpoint)).await;
        let claims = vec![Claim { namespace: "team".into(), name: "c".into(), uid: "u1".into() }];
        let mut plugin = DraPluginClient::new(channel.clone());
        let answer = plugin.node_prepare_resources(NodePrepareResourcesRequest { claims }).await.unwrap();
        assert_eq!(answer.into_inner().claims["u1"].devices[0].device_name, "gpu-0");
        let mut health = DraResourceHealthClient::new(channel);
        let told = health.node_watch_resources(NodeWatchResourcesRequest {}).await.unwrap();
        assert_eq!(told.into_inner().message().await.unwrap().unwrap().devices.len(), 4);
        for socket in [registration.as_path(), Path::new(&info.endpoint)] {
            std::fs::remove_file(socket).unwrap();
        }
    }
    // A newer process replaces the socket.
    drop(dial(&registration).await);
    std::fs::remove_file(&registration).unwrap();
    std::fs::write(&registration, b"newer").unwrap();
    stop.cancel();
    serving.await.unwrap();
    assert_eq!(std::fs::read(&registration).unwrap(), b"newer");
    assert!(!kubelet.join("plugins/devices.larder.dev/dra.sock").exists());
}
