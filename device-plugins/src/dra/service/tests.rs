use tempfile::TempDir;

use super::super::samples::{Api as Server, claim, rails, view, with_faults};
use super::*;
use crate::config::Mode;
use crate::health::Reason;
use crate::node::samples;
use crate::resource::DeviceKey;

/// A node on which the process can be restarted.
struct Node {
    folder: TempDir,
    api: Server,
    views: watch::Sender<Arc<View>>,
}

impl Node {
    fn new(view: View) -> Self {
        Self { folder: tempfile::tempdir().unwrap(), api: Server::new(), views: watch::Sender::new(Arc::new(view)) }
    }

    fn start(&self) -> Service {
        self.start_with(false)
    }

    fn start_with(&self, gpus_by_cdi_only: bool) -> Service {
        let cdi = self.folder.path().join("cdi");
        let settings = Settings { node: "n1".into(), found: Found::new(vec![cdi.clone()]), cdi, gpus_by_cdi_only };
        let changes = watch::Sender::new(0);
        Service::new(settings, self.api.client(), self.views.subscribe(), changes, CancellationToken::new())
    }

    fn make(&self, name: &str, claim: serde_json::Value) {
        self.api.lock().claims.insert(format!("team/{name}"), claim);
    }

    /// The files of claims.
    fn files(&self) -> Vec<String> {
        let entries = std::fs::read_dir(self.folder.path().join("cdi")).into_iter().flatten().flatten();
        let mut names: Vec<String> = entries.map(|entry| entry.file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    fn file(&self, name: &str) -> PathBuf {
        self.folder.path().join("cdi").join(name)
    }
}

fn named(name: &str, uid: &str) -> Claim {
    Claim { namespace: "team".into(), name: name.into(), uid: uid.into() }
}

/// For each claim, by uid: the devices that it was prepared with, or the error.
async fn prepare_all(service: &Service, claims: &[(&str, &str)]) -> Vec<String> {
    let claims = claims.iter().map(|(name, uid)| named(name, uid)).collect();
    let answer = service.node_prepare_resources(Request::new(NodePrepareResourcesRequest { claims })).await.unwrap();
    let shown = |(uid, answer): (String, NodePrepareResourceResponse)| {
        let device =
            |it: &Device| format!("{} {} {}", it.request_names.join("+"), it.device_name, it.cdi_device_ids.join(" "));
        let devices: Vec<String> = answer.devices.iter().map(device).collect();
        assert!(answer.devices.iter().all(|device| device.pool_name == "n1"));
        format!("{uid}: {}{}", devices.join(", "), answer.error)
    };
    let mut shown: Vec<String> = answer.into_inner().claims.into_iter().map(shown).collect();
    shown.sort();
    shown
}

async fn unprepare(service: &Service, name: &str, uid: &str) -> String {
    let request = NodeUnprepareResourcesRequest { claims: vec![named(name, uid)] };
    let mut answer = service.node_unprepare_resources(Request::new(request)).await.unwrap().into_inner();
    answer.claims.remove(uid).unwrap().error
}

// SEMANTICS: D27
#[tokio::test]
async fn preparing_and_unpreparing_a_claim_is_idempotent_across_processes() {
    let node = Node::new(rails());
    node.make("c", claim("u1", &[("gpu", "gpu-0"), ("hca", "hca-0000-20-00-0")]));
    let own = "larder.dev/claim=u1";
    let expected = format!(
        "u1: gpu gpu-0 {own}.device.gpu-0 {own}.request.gpu, hca hca-0000-20-00-0 larder.dev/hca=0000:20:00.0 \
         {own}.request.hca, * hca-0000-20-00-0 larder.dev/hca=0000:20:00.0 {own}.claim"
    );
    assert_eq!(prepare_all(&node.start(), &[("c", "u1")]).await, std::slice::from_ref(&expected));
    assert_eq!(node.files(), ["larder.dev-claim-u1.json"]);
    let text = std::fs::read_to_string(node.file("larder.dev-claim-u1.json")).unwrap();
    // The pod is running, so a new fault of its device does not fail this call.
    let faults = [(samples::gpu(0), Reason::GpuFault)];
    node.views.send_replace(Arc::new(with_faults(rails(), &faults)));
    assert_eq!(prepare_all(&node.start(), &[("c", "u1")]).await, std::slice::from_ref(&expected));
    node.views.send_replace(Arc::new(view(Mode::Plugin, Mode::Plugin)));
    let service = node.start();
    assert_eq!(prepare_all(&service, &[("c", "u1")]).await, std::slice::from_ref(&expected));
    assert_eq!(std::fs::read_to_string(node.file("larder.dev-claim-u1.json")).unwrap(), text);
    // The claim may have been deleted by then.
    node.api.lock().claims.clear();
    for service in [service, node.start()] {
        assert_eq!(unprepare(&service, "c", "u1").await, "");
        assert_eq!(node.files(), [""; 0]);
    }
}

// SEMANTICS: D27
#[tokio::test]
async fn a_claim_that_fails_does_not_stop_the_others_and_can_be_retried() {
    let faults = [(samples::gpu(0), Reason::GpuFault)];
    let node = Node::new(with_faults(rails(), &faults));
    node.make("ill", claim("u1", &[("r", "gpu-0")]));
    node.make("well", claim("u2", &[("r", "gpu-1")]));
    node.make("unknown", claim("u3", &[("r", "gpu-7")]));
    node.make("other", claim("u9", &[("r", "gpu-1")]));
    let claims = [("ill", "u1"), ("well", "u2"), ("unknown", "u3"), ("other", "u4"), ("absent", "u5"), ("odd", "../x")];
    let service = node.start();
    let answers = prepare_all(&service, &claims).await;
    let well = "u2: r gpu-1 larder.dev/claim=u2.device.gpu-1 larder.dev/claim=u2.request.r";
    let expected = [
        "../x: \"../x\" is not the uid of a claim",
        "u1: device gpu-0 is out of service: GpuFault was seen; it returns to service once it is repaired",
        well,
        "u3: n1 does not offer device gpu-7 through DRA now",
        "u4: the claim was deleted and created again as \"u9\"",
    ];
    assert_eq!(answers[..5], expected);
    assert!(answers[5].starts_with("u5: read the claim: "), "{}", answers[5]);
    assert_eq!(node.files(), ["larder.dev-claim-u2.json"]);
    node.views.send_replace(Arc::new(rails()));
    let now = prepare_all(&service, &claims[..1]).await;
    assert_eq!(now, [well.replace("u2", "u1").replace("gpu-1", "gpu-0")]);
    assert!(unprepare(&service, "odd", "../x").await.contains("is not the uid of a claim"));
}

// SEMANTICS: D27
#[tokio::test]
async fn parameters_of_a_claim_are_an_error_for_the_kubelet() {
    let node = Node::new(rails());
    let mut tuned = claim("u1", &[("r", "gpu-0")]);
    let opaque = serde_json::json!({"driver": "devices.larder.dev", "parameters": {"sharing": "mps"}});
    tuned["status"]["allocation"]["devices"]["config"] = serde_json::json!([{"source": "FromClaim", "opaque": opaque}]);
    node.make("tuned", tuned);
    node.make("plain", claim("u2", &[("r", "gpu-1")]));
    let answers = prepare_all(&node.start(), &[("tuned", "u1"), ("plain", "u2")]).await;
    assert!(answers[0].starts_with("u1: devices.larder.dev takes no parameters: "), "{answers:?}");
    assert!(answers[1].starts_with("u2: r gpu-1 "), "{answers:?}");
    assert_eq!(node.files(), ["larder.dev-claim-u2.json"]);
}

// SEMANTICS: D8
#[tokio::test]
async fn a_claim_for_gpus_by_cdi_alone_waits_for_nvidias_file() {
    let node = Node::new(rails());
    node.make("c", claim("u1", &[("gpu", "gpu-0"), ("hca", "hca-0000-20-00-0")]));
    node.make("hca", claim("u2", &[("hca", "hca-0000-20-00-0")]));
    let service = node.start_with(true);
    let answers = prepare_all(&service, &[("c", "u1"), ("hca", "u2")]).await;
    let DeviceKey::Gpu(uuid) = samples::gpu(0) else { panic!("not a GPU") };
    let refused = format!("u1: NVIDIA's CDI files do not name {uuid}, and --gpus-by-cdi-only excludes");
    assert!(answers[0].starts_with(&refused), "{answers:?}");
    assert!(answers[1].starts_with("u2: hca "), "{answers:?}");
    assert_eq!(node.files(), ["larder.dev-claim-u2.json"]);
    let device = serde_json::json!({"name": uuid, "containerEdits": {"deviceNodes": [{"path": "/dev/nvidia0"}]}});
    let spec = serde_json::json!({"cdiVersion": "0.6.0", "kind": "nvidia.com/gpu", "devices": [device]});
    std::fs::write(node.file("nvidia.json"), spec.to_string()).unwrap();
    let answers = prepare_all(&service, &[("c", "u1")]).await;
    assert!(answers[0].starts_with(&format!("u1: gpu gpu-0 nvidia.com/gpu={uuid} ")), "{answers:?}");
}

#[tokio::test]
async fn an_administrator_gets_a_device_that_is_out_of_service() {
    let faults = [(samples::gpu(0), Reason::GpuFault)];
    let node = Node::new(with_faults(rails(), &faults));
    let mut look = claim("u1", &[("r", "gpu-0")]);
    look["status"]["allocation"]["devices"]["results"][0]["adminAccess"] = true.into();
    node.make("look", look);
    node.make("ill", claim("u2", &[("r", "gpu-0")]));
    let answers = prepare_all(&node.start(), &[("look", "u1"), ("ill", "u2")]).await;
    assert!(answers[0].starts_with("u1: r gpu-0 ") && answers[1].contains("is out of service"), "{answers:?}");
    let all = Files::new(node.folder.path().join("cdi")).all();
    assert!(all.iter().flat_map(|prepared| &prepared.devices).all(|device| device.admin), "{all:?}");
}

// SEMANTICS: D27
#[tokio::test]
async fn a_claim_that_was_given_other_devices_and_a_damaged_file_are_prepared_anew() {
    let node = Node::new(rails());
    let service = node.start();
    node.make("c", claim("u1", &[("r", "gpu-0")]));
    let first = prepare_all(&service, &[("c", "u1")]).await;
    node.make("c", claim("u1", &[("r", "gpu-1")]));
    let second = prepare_all(&service, &[("c", "u1")]).await;
    assert_eq!(second, [first[0].replace("gpu-0", "gpu-1")]);
    let file = node.file("larder.dev-claim-u1.json");
    let sound = std::fs::read(&file).unwrap();
    for damaged in [&b""[..], b"{}", &sound[..sound.len() / 2], b"\0\xff"] {
        std::fs::write(&file, damaged).unwrap();
        // A process was killed before it renamed its temporary file.
        std::fs::write(node.file(".larder.dev-claim-u1.json.x1.tmp"), damaged).unwrap();
        assert_eq!(prepare_all(&node.start(), &[("c", "u1")]).await, second);
        assert_eq!(std::fs::read(&file).unwrap(), sound);
    }
    std::fs::write(node.file(".larder.dev-claim-u1.json.x1.tmp"), b"").unwrap();
    assert_eq!(unprepare(&service, "c", "u1").await, "");
    assert_eq!(node.files(), [""; 0]);
}

#[tokio::test]
async fn an_unreachable_api_server_and_a_full_disk_are_errors_of_the_claim() {
    let node = Node::new(rails());
    node.make("c", claim("u1", &[("r", "gpu-0")]));
    node.api.lock().refused = vec![("GET".into(), 503)];
    let answers = prepare_all(&node.start(), &[("c", "u1")]).await;
    assert!(answers[0].starts_with("u1: read the claim: "), "{answers:?}");
    node.api.lock().refused.clear();
    std::fs::write(node.folder.path().join("cdi"), b"").unwrap();
    let answers = prepare_all(&node.start(), &[("c", "u1")]).await;
    assert!(answers[0].starts_with("u1: write the claim's CDI file: "), "{answers:?}");
}
