//! The whole program: its sockets, its log and its exit.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

use larder_csi_api::csi;
use larder_csi_api::csi::controller_client::ControllerClient;
use larder_csi_api::csi::identity_client::IdentityClient;
use larder_csi_api::csi::node_client::NodeClient;
use larder_daemon_api::connect_channel;
use larder_kubelet::pluginregistration::registration_client::RegistrationClient;
use larder_kubelet::pluginregistration::{InfoRequest, RegistrationStatus};
use rustix::process::{Pid, Signal};
use tonic::Code;
use tonic::transport::Channel;

use crate::fake::mount_of;
use crate::rig::{Rig, SOURCE, list, map, plain, until};

/// The running program. Dropping it kills it.
pub(crate) struct Plugin {
    child: Child,
    log: PathBuf,
    endpoint: PathBuf,
}

impl Plugin {
    pub(crate) fn start(rig: &Rig, flags: &[&str]) -> Self {
        Self::start_logging(rig, "larder_csi=debug", flags)
    }

    fn start_logging(rig: &Rig, log_level: &str, flags: &[&str]) -> Self {
        let log = rig.path("plugin.log");
        let file = std::fs::OpenOptions::new().create(true).append(true).open(&log).unwrap();
        let endpoint = rig.path("csi.sock");
        let flag = |name: &str, path: &Path| format!("--{name}={}", path.display());
        let child = Command::new(env!("CARGO_BIN_EXE_larder-csi"))
            .env("LARDER_LOG", log_level)
            .env("CSI_ENDPOINT", format!("unix://{}", endpoint.display()))
            .args(["--node-name=node-1", "--daemon-uid=0", "--prepare-wait-ms=1000"])
            .arg(flag("kubelet-dir", &rig.kubelet()))
            .arg(flag("run-dir", &rig.path("run")))
            .arg(flag("state-dir", &rig.path("state")))
            .args(flags)
            .stderr(file)
            .stdin(Stdio::null())
            .spawn()
            .unwrap();
        Self { child, log, endpoint }
    }

    pub(crate) async fn ready(&mut self) {
        let mut identity = IdentityClient::new(self.channel());
        for _ in 0..200 {
            if let Ok(answer) = identity.probe(csi::ProbeRequest {}).await
                && answer.into_inner().ready == Some(true)
            {
                return;
            }
            assert!(self.child.try_wait().unwrap().is_none(), "larder-csi ended: {}", self.log());
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        panic!("larder-csi is not ready: {}", self.log());
    }

    fn channel(&self) -> Channel {
        connect_channel(&self.endpoint)
    }

    pub(crate) fn log(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap()
    }

    fn signal(&self, signal: Signal) {
        rustix::process::kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    async fn ended(&mut self) -> ExitStatus {
        let mut status = None;
        until("the plugin has ended", || {
            status = self.child.try_wait().unwrap();
            status.is_some()
        })
        .await;
        status.unwrap()
    }

    async fn unpublish(&self, volume: &str, target: &Path) {
        let target_path = target.to_str().unwrap().to_owned();
        let request = csi::NodeUnpublishVolumeRequest { volume_id: volume.to_owned(), target_path };
        NodeClient::new(self.channel()).node_unpublish_volume(request).await.unwrap();
    }
}

impl Drop for Plugin {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A plugin with one volume, at `target`.
async fn with_a_mount(rig: &Rig, target: &Path) -> Plugin {
    let mut plugin = Plugin::start(rig, &[]);
    plugin.ready().await;
    NodeClient::new(plugin.channel()).node_publish_volume(plain("v", target)).await.unwrap();
    plugin
}

/// The plugin ends, larderd serves its mount, and the next plugin can end the mount.
async fn assert_handed_over(rig: &Rig, mut plugin: Plugin, target: &Path) {
    assert!(plugin.ended().await.success(), "{}", plugin.log());
    assert_eq!(rig.fake.served(), [mount_of(SOURCE)]);
    assert_eq!(list(target).await.unwrap(), 0);
    let mut plugin = Plugin::start(rig, &[]);
    plugin.ready().await;
    plugin.unpublish("v", target).await;
    rig.assert_clean();
}

#[tokio::test(flavor = "multi_thread")]
async fn mounts_outlive_the_plugin_however_it_ends() {
    let rig = Rig::new();
    let target = rig.target("a");
    let mut plugin = with_a_mount(&rig, &target).await;
    let device = rig.mounted(&target).unwrap().device;
    plugin.signal(Signal::KILL);
    plugin.ended().await;
    assert_eq!(list(&target).await.unwrap(), 0);

    let mut plugin = Plugin::start(&rig, &[]);
    plugin.ready().await;
    plugin.signal(Signal::TERM);
    assert!(plugin.ended().await.success(), "{}", plugin.log());
    assert!(!rig.path("csi.sock").exists());
    assert_eq!(list(&target).await.unwrap(), 0);

    let mut plugin = Plugin::start(&rig, &[]);
    plugin.ready().await;
    assert_eq!(rig.mounted(&target).unwrap().device, device);
    plugin.unpublish("v", &target).await;
    rig.assert_clean();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_plugin_that_stops_while_larderd_restarts_hands_its_connections_over_first() {
    let mut rig = Rig::new();
    let target = rig.target("a");
    let plugin = with_a_mount(&rig, &target).await;
    rig.fake.kill();
    tokio::time::sleep(Duration::from_millis(100)).await;
    plugin.signal(Signal::TERM);
    tokio::time::sleep(Duration::from_millis(500)).await;
    rig.fake.restart();
    assert_handed_over(&rig, plugin, &target).await;
}

// SEMANTICS: K2
#[tokio::test(flavor = "multi_thread")]
async fn a_plugin_that_stops_with_larderd_stays_until_the_next_larderd_has_its_connections() {
    let mut rig = Rig::new();
    let target = rig.target("a");
    let plugin = with_a_mount(&rig, &target).await;
    rig.fake.begin_stop();
    plugin.signal(Signal::TERM);
    until("larderd says that it stops", || plugin.log().contains("waiting for the next one")).await;
    rig.fake.kill();
    rig.fake.restart();
    assert_handed_over(&rig, plugin, &target).await;
}

// SEMANTICS: K4
#[tokio::test(flavor = "multi_thread")]
async fn killed_at_any_moment_it_leaves_nothing_that_unpublish_does_not_clean() {
    let rig = Rig::new();
    for round in 0..12 {
        let mut plugin = Plugin::start(&rig, &[]);
        plugin.ready().await;
        let targets: Vec<_> = (0..6).map(|index| rig.target(&format!("t{index}"))).collect();
        let calls: Vec<_> = targets
            .iter()
            .map(|target| {
                let (mut node, target) = (NodeClient::new(plugin.channel()), target.clone());
                tokio::spawn(async move { node.node_publish_volume(plain("v", &target)).await.map(drop) })
            })
            .collect();
        tokio::time::sleep(Duration::from_millis(round)).await;
        plugin.signal(Signal::KILL);
        plugin.ended().await;
        for call in calls {
            let _ = call.await.unwrap();
        }
        let mut plugin = Plugin::start(&rig, &[]);
        plugin.ready().await;
        for target in &targets {
            plugin.unpublish("v", target).await;
        }
        rig.assert_clean();
        plugin.signal(Signal::KILL);
        plugin.ended().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn secrets_are_in_no_file_log_or_error() {
    const SECRET: &str = "hunter2-wJalrXUtnFEMI";
    let rig = Rig::new();
    let mut plugin = Plugin::start_logging(&rig, "trace", &[]);
    plugin.ready().await;
    let mut node = NodeClient::new(plugin.channel());
    let with = |target: &str, secrets: &[(&str, &str)]| {
        let mut request = plain("v", &rig.target(target));
        request.secrets = map(secrets);
        let token = format!("{{\"aud\":{{\"token\":\"{SECRET}\"}}}}");
        request.volume_context.insert("csi.storage.k8s.io/serviceAccount.tokens".to_owned(), token);
        request
    };
    node.node_publish_volume(with("a", &[("accessKeyId", "AKIA"), ("secretAccessKey", SECRET)])).await.unwrap();
    let credentials = rig.fake.asked().pop().unwrap().credentials.unwrap();
    assert_eq!(credentials.variables["AWS_ACCESS_KEY_ID"], "AKIA");
    assert_eq!(credentials.variables["AWS_SECRET_ACCESS_KEY"], SECRET);
    assert_eq!(rig.fake.offered()[0].dataset.as_ref().unwrap().credentials, Some(credentials));

    let pod = |target: &str, tokens: &str| {
        let mut request = with(target, &[]);
        let role = ("roleArn".to_owned(), "arn:aws:iam::1:role/r".to_owned());
        request.volume_context.extend([("identity".to_owned(), "pod".to_owned()), role]);
        request.volume_context.insert("csi.storage.k8s.io/serviceAccount.tokens".to_owned(), tokens.to_owned());
        request
    };
    let token = |token: &str| format!("{{\"sts.amazonaws.com\":{{\"token\":\"{token}\"}}}}");
    let mut errors = Vec::new();
    errors.push(node.node_publish_volume(pod("b", SECRET)).await.unwrap_err());
    errors.push(node.node_publish_volume(pod("b", &token(&SECRET.repeat(2000)))).await.unwrap_err());
    let mut elsewhere = pod("b", &token(SECRET));
    elsewhere.volume_context.insert("stsEndpoint".to_owned(), format!("http://u:{SECRET}@h"));
    errors.push(node.node_publish_volume(elsewhere).await.unwrap_err());
    node.node_publish_volume(pod("c", &token(SECRET))).await.unwrap();
    let given = rig.fake.asked().pop().unwrap().credentials.unwrap();
    assert_eq!(given.variables["LARDER_IDENTITY_TOKEN"], SECRET);
    // A new token, while the pod runs.
    node.node_publish_volume(pod("c", &token(&format!("new-{SECRET}")))).await.unwrap();

    for secrets in [[("secretAccessKey", SECRET)], [("password", SECRET)]] {
        errors.push(node.node_publish_volume(with("b", &secrets)).await.unwrap_err());
    }
    let mut url = with("b", &[("accessKeyId", "AKIA"), ("secretAccessKey", SECRET)]);
    url.volume_context.insert("source".to_owned(), format!("s3://AKIA:{SECRET}@bucket"));
    errors.push(node.node_publish_volume(url.clone()).await.unwrap_err());
    url.volume_context = map(&[("source", SOURCE), ("endpoint", &format!("http://u:{SECRET}@h"))]);
    errors.push(node.node_publish_volume(url).await.unwrap_err());
    for error in errors {
        assert_eq!(error.code(), Code::InvalidArgument);
        assert!(!format!("{error:?}").contains(SECRET), "{error:?}");
    }
    assert!(plugin.log().contains("larder_csi"), "the log is written");
    assert!(!plugin.log().contains(SECRET), "the log");
    let mut folders = vec![rig.path("state"), rig.kubelet().join("plugins"), rig.kubelet().join("plugins_registry")];
    let mut files = 0;
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder).unwrap().map(Result::unwrap) {
            let kind = entry.file_type().unwrap();
            if kind.is_dir() && !entry.path().ends_with(mount_of(SOURCE)) {
                folders.push(entry.path());
            } else if kind.is_file() {
                files += 1;
                assert!(!std::fs::read_to_string(entry.path()).unwrap().contains(SECRET), "{:?}", entry.path());
            }
        }
    }
    assert_eq!(files, 2, "the records");
    plugin.unpublish("v", &rig.target("a")).await;
    plugin.unpublish("v", &rig.target("c")).await;
    rig.assert_clean();
}

#[tokio::test(flavor = "multi_thread")]
async fn the_kubelet_finds_the_driver_and_may_refuse_it() {
    let rig = Rig::new();
    let mut plugin = Plugin::start(&rig, &["--kubelet-endpoint=/seen/csi.sock", "--topology"]);
    plugin.ready().await;
    let socket = rig.kubelet().join("plugins_registry/csi.larder.dev-reg.sock");
    let mut registration = RegistrationClient::new(connect_channel(&socket));
    let info = registration.get_info(InfoRequest {}).await.unwrap().into_inner();
    assert_eq!((info.r#type.as_str(), info.name.as_str()), ("CSIPlugin", "csi.larder.dev"));
    assert_eq!((info.endpoint.as_str(), info.supported_versions), ("/seen/csi.sock", vec!["1.0.0".to_owned()]));
    let node = NodeClient::new(plugin.channel()).node_get_info(csi::NodeGetInfoRequest {}).await.unwrap().into_inner();
    assert_eq!(node.node_id, "node-1");
    assert_eq!(node.accessible_topology.unwrap().segments, map(&[("topology.larder.dev/node", "node-1")]));

    let good = RegistrationStatus { plugin_registered: true, error: String::new() };
    registration.notify_registration_status(good).await.unwrap();
    let bad = RegistrationStatus { plugin_registered: false, error: "no such version".to_owned() };
    registration.notify_registration_status(bad).await.unwrap();
    assert_eq!(plugin.ended().await.code(), Some(1));
    let log = plugin.log();
    assert!(log.contains("no such version"), "{log}");
}

#[tokio::test(flavor = "multi_thread")]
async fn volumes_of_claims_outlive_the_plugin() {
    let rig = Rig::new();
    let mut plugin = Plugin::start(&rig, &[]);
    plugin.ready().await;
    let capability = plain("v", Path::new("/")).volume_capability.unwrap();
    let create = csi::CreateVolumeRequest {
        name: "pvc-1".to_owned(),
        volume_capabilities: vec![capability],
        parameters: map(&[("dataset", "imagenet"), ("csi.storage.k8s.io/pvc/name", "claim")]),
        ..csi::CreateVolumeRequest::default()
    };
    let made = ControllerClient::new(plugin.channel()).create_volume(create.clone()).await.unwrap().into_inner();
    assert_eq!(made.volume.as_ref().unwrap().volume_context, map(&[("dataset", "imagenet")]));
    let mut bad = create.clone();
    bad.name = "pvc-2".to_owned();
    bad.parameters = map(&[("bucket", "b")]);
    let error = ControllerClient::new(plugin.channel()).create_volume(bad).await.unwrap_err();
    assert_eq!(error.code(), Code::InvalidArgument);
    plugin.signal(Signal::KILL);
    plugin.ended().await;
    let mut plugin = Plugin::start(&rig, &[]);
    plugin.ready().await;
    let mut controller = ControllerClient::new(plugin.channel());
    let listed = controller.list_volumes(csi::ListVolumesRequest::default()).await.unwrap().into_inner().entries;
    assert_eq!(listed.len(), 1);
    assert_eq!(listed[0].volume, made.volume);
    assert_eq!(controller.create_volume(create.clone()).await.unwrap().into_inner(), made);
    let mut other = create.clone();
    other.parameters = map(&[("dataset", "coco")]);
    assert_eq!(controller.create_volume(other).await.unwrap_err().code(), Code::AlreadyExists);
    let mut long = create;
    long.name = "n".repeat(300);
    assert!(controller.create_volume(long).await.unwrap().into_inner().volume.unwrap().volume_id.len() <= 128);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_admin_server_tells_whether_larderd_is_there() {
    let mut rig = Rig::new();
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let mut plugin = Plugin::start(&rig, &[&format!("--admin-address=127.0.0.1:{port}")]);
    plugin.ready().await;
    assert!(get(port, "/readyz").starts_with("HTTP/1.1 200"));
    rig.fake.kill();
    until("it is not ready", || get(port, "/readyz").starts_with("HTTP/1.1 503")).await;
    assert!(get(port, "/healthz").starts_with("HTTP/1.1 200"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_plugin_is_ready_before_the_first_larderd_and_not_before_the_next_if_pods_read() {
    let mut rig = Rig::new();
    rig.fake.kill();
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let flags = [format!("--admin-address=127.0.0.1:{port}")];
    let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
    let mut plugin = Plugin::start(&rig, &flags);
    let is = |answer: &str| {
        std::net::TcpStream::connect(("127.0.0.1", port)).is_ok() && get(port, "/readyz").starts_with(answer)
    };
    until("it is ready", || is("HTTP/1.1 200")).await;
    rig.fake.restart();
    plugin.ready().await;
    NodeClient::new(plugin.channel()).node_publish_volume(plain("v", &rig.target("a"))).await.unwrap();
    plugin.signal(Signal::KILL);
    plugin.ended().await;
    // Only larderd holds the mount.
    let mut plugin = Plugin::start(&rig, &flags);
    plugin.ready().await;
    rig.fake.kill();
    plugin.signal(Signal::KILL);
    plugin.ended().await;
    let mut plugin = Plugin::start(&rig, &flags);
    until("it is not ready", || is("HTTP/1.1 503")).await;
    rig.fake.restart();
    plugin.ready().await;
    assert!(is("HTTP/1.1 200"));
    plugin.unpublish("v", &rig.target("a")).await;
    rig.assert_clean();
}

fn get(port: u16, path: &str) -> String {
    use std::io::{Read, Write};
    let mut stream = std::net::TcpStream::connect(("127.0.0.1", port)).unwrap();
    write!(stream, "GET {path} HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}
