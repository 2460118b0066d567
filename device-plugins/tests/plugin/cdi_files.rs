//! CDI files: our file on disk, and the files of other programs.

use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use larder_devices::cdi::{self, Format, Found, Spec, spec};
use larder_devices::config::{Kind, Limits};
use larder_devices::health::Reason;
use larder_devices::instance::Instance;
use larder_devices::machine::{LinkLayer, Machine};
use larder_devices::view::View;
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::kubelet::Kubelet;
use crate::node::{Node, hca, hca_key, limits, machine, resource_of, view};

const HCA: &str = "larder.dev/hca";

/// An HCA without a resource, a limited one, one with management datagrams on InfiniBand, and one on RoCE.
fn mixed() -> View {
    let hcas = (0..3).map(|number| hca(number, LinkLayer::InfiniBand)).chain([hca(3, LinkLayer::Ethernet)]).collect();
    let mut limited = resource_of("larder.dev/limited", Kind::Rdma, 1..2);
    limited.config.limits = Some(limits());
    let mut managed = resource_of("larder.dev/managed", Kind::Rdma, 2..4);
    managed.config.mad = true;
    view(Machine { hcas, ..Machine::default() }, [limited, managed])
}

fn spec_of(view: &View, last: Option<&Spec>) -> Spec {
    spec(view, last, Path::new("/dev"), Path::new("/opt/larder"))
}

// SEMANTICS: D7
#[test]
fn the_cdi_file_is_the_golden_file() {
    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("golden/hca.cdi");
    let spec = spec_of(&mixed(), None);
    let text = serde_json::to_string_pretty(&spec).unwrap() + "\n";
    if std::env::var_os("LARDER_WRITE_GOLDEN").is_some() {
        std::fs::write(&golden, &text).unwrap();
    }
    assert_eq!(text, std::fs::read_to_string(golden).unwrap());
}

#[test]
fn without_their_resources_hcas_stay_as_the_last_file_has_them() {
    let view = mixed();
    let last = spec_of(&view, None);
    let without = View { resources: [].into(), ..view.clone() };
    assert_eq!(spec_of(&without, Some(&last)), last);
    // HCAs are identified by their PCI addresses, but limited under their current kernel names.
    let mut renamed = without.clone();
    let hcas = &mut Arc::make_mut(&mut renamed.machine).hcas;
    let (one, other) = (hcas[1].name.clone(), hcas[2].name.clone());
    (hcas[1].name, hcas[2].name) = (other, one);
    let text = serde_json::to_string(&spec_of(&renamed, Some(&last))).unwrap();
    assert!(text.contains("\"mlx5_2 hca_handle=2 hca_object=2000\"") && !text.contains("\"mlx5_1 "), "{text}");
    // A hook that cannot be parsed is not dropped: its HCA is left out, so that no container starts without the limit.
    let odd = serde_json::to_string(&last).unwrap().replace("hca_handle=2", "hca_handle=max");
    let odd: Spec = serde_json::from_str(&odd).unwrap();
    assert_eq!(spec_of(&without, Some(&odd)).devices.len(), last.devices.len() - 1);
    assert_eq!(spec_of(&without, None).devices, []);
}

// SEMANTICS: D20
#[test]
fn an_hca_that_comes_to_another_resource_keeps_the_lower_limits_of_both() {
    let owned = |name: &str, max: Option<u32>, mad: bool| {
        let mut view = mixed();
        let mut resource = resource_of(name, Kind::Rdma, 1..2);
        resource.config.limits = max.map(|max| Limits { hca_handles: Some(max), ..limits() });
        resource.config.mad = mad;
        view.resources = [resource].into();
        view
    };
    let shown = |spec: &Spec| {
        let text = serde_json::to_string(spec).unwrap();
        let max = text.split("mlx5_1 hca_handle=").nth(1).map(|rest| rest.split(' ').next().unwrap().to_owned());
        (max, text.contains("umad1"))
    };
    let (none, max) = (None::<String>, |max: &str| Some(max.to_owned()));
    let limited = spec_of(&owned("a/limited", Some(16), false), None);
    // The same resource has other terms: an administrator changed them.
    for (limits, mad, wanted) in [(Some(32), true, (max("32"), true)), (None, false, (none.clone(), false))] {
        assert_eq!(shown(&spec_of(&owned("a/limited", limits, mad), Some(&limited))), wanted);
    }
    // Another resource offers it, in several views: containers of the first resource may restart at any time, so the
    // lower limit stays.
    let mut last = limited;
    for (name, limits, wanted) in
        [("a/free", None, "16"), ("a/free", None, "16"), ("a/low", Some(2), "2"), ("a/limited", Some(16), "2")]
    {
        last = spec_of(&owned(name, limits, true), Some(&last));
        assert_eq!(shown(&last), (max(wanted), false), "{name}");
    }
    // An HCA without a limit gets the limit of the resource that it moves to.
    let free = spec_of(&owned("a/free", None, true), None);
    assert_eq!(shown(&free), (none, true));
    assert_eq!(shown(&spec_of(&owned("a/limited", Some(16), true), Some(&free))), (max("16"), true));
}

// SEMANTICS: D8
#[test]
fn names_in_the_files_of_others_are_found() {
    let golden = |name: &str| std::fs::read(Path::new(env!("CARGO_MANIFEST_DIR")).join("golden").join(name)).unwrap();
    let wanted = ["nvidia.com/gpu=0", "nvidia.com/gpu=GPU-8f3e4c5a-0000-0000-0000-000000000001", "nvidia.com/gpu=all"];
    assert_eq!(cdi::names(&golden("nvidia-yaml.cdi"), Format::Yaml), wanted);
    assert_eq!(cdi::names(&golden("nvidia-json.cdi"), Format::Json), wanted);
    for odd in ["", "[]", "{", "kind: 3", "devices: {}", "{\"kind\": \"a/b\", \"devices\": [{\"name\": {}}]}", "\u{0}"]
    {
        assert_eq!(cdi::names(odd.as_bytes(), Format::Json), Vec::<String>::new(), "{odd}");
        assert_eq!(cdi::names(odd.as_bytes(), Format::Yaml), Vec::<String>::new(), "{odd}");
    }
    let large = format!("kind: a/b\ndevices: [{{name: c}}]\n#{}", "x".repeat(4 << 20));
    assert_eq!(cdi::names(large.as_bytes(), Format::Yaml), Vec::<String>::new());
}

// SEMANTICS: D8
#[test]
fn a_file_with_a_name_that_cdi_does_not_allow_has_no_names() {
    let names = |kind: &str, device: Value| {
        let file = json!({"kind": kind, "devices": [{"name": "good"}, {"name": device}, {"name": 7}]});
        cdi::names(file.to_string().as_bytes(), Format::Json)
    };
    for kind in ["", "/", "gpu", "=a/b", "a/b=", "a/", "/b", "1/b", "a/b/c", "a b/c", "a/b\n", "a-/b", "é/b"] {
        assert_eq!(names(kind, json!("x")), Vec::<String>::new(), "{kind:?}");
    }
    // A name that occurs twice is not allowed either.
    let odd = ["", "=", "a=b", "a/b", "-a", "a.", "a\n", "é", "good", "7"].map(Value::from);
    for device in odd.into_iter().chain([json!(-1), json!({})]) {
        assert_eq!(names("a/b", device.clone()), Vec::<String>::new(), "{device}");
    }
    let wanted = ["v.x-1_y/c-9=good", "v.x-1_y/c-9=0:1.2-3_4", "v.x-1_y/c-9=7"];
    assert_eq!(names("v.x-1_y/c-9", json!("0:1.2-3_4")), wanted);
}

// SEMANTICS: D8
#[test]
fn files_of_others_are_read_again_when_they_change() {
    let folder = tempfile::tempdir().unwrap();
    let found = Found::new(vec![folder.path().join("absent"), folder.path().to_owned()]);
    assert!(found.names().is_empty());
    let write = |name: &str, kind: &str| {
        let text = format!("{{\"kind\": \"{kind}\", \"devices\": [{{\"name\": \"x\"}}]}}");
        std::fs::write(folder.path().join("new.tmp"), text).unwrap();
        std::fs::rename(folder.path().join("new.tmp"), folder.path().join(name)).unwrap();
    };
    write("a.json", "a/b");
    write("b.txt", "b/b");
    assert_eq!(found.names().into_iter().collect::<Vec<_>>(), ["a/b=x"]);
    write("a.json", "c/d");
    assert_eq!(found.names().into_iter().collect::<Vec<_>>(), ["c/d=x"]);
    std::fs::remove_file(folder.path().join("a.json")).unwrap();
    assert!(found.names().is_empty());
}

fn file(node: &Node) -> std::path::PathBuf {
    node.path("cdi").join(cdi::FILE)
}

// SEMANTICS: D10
#[tokio::test]
async fn the_file_is_there_before_the_devices_and_goes_with_the_last() {
    let node = Node::new(view(machine(), [resource_of(HCA, Kind::Rdma, 0..8)]));
    let (foreign, torn) = (node.path("cdi/vendor.json"), node.path("cdi/.larder.dev-hca.json.x1.tmp"));
    std::fs::write(&foreign, b"foreign").unwrap();
    std::fs::write(&torn, b"{").unwrap();
    let kubelet = Kubelet::start(&node.plugins());
    let process = node.start().await;
    kubelet.until("registered", |known| !known.registrations.is_empty()).await;
    let text = std::fs::read_to_string(file(&node)).unwrap();
    assert_eq!(text.matches("uverbs").count(), 16, "{text}");
    assert!(!torn.exists());
    assert_eq!(std::fs::metadata(file(&node)).unwrap().mode() & 0o777, 0o644);
    // A restarted process writes nothing.
    let inode = std::fs::metadata(file(&node)).unwrap().ino();
    process.stop().await;
    let _process = node.start().await;
    kubelet.until_healthy(HCA, 8).await;
    assert_eq!(std::fs::metadata(file(&node)).unwrap().ino(), inode);
    // A changed name is in the file before the kubelet receives more devices.
    node.change(|view| {
        let machine = Arc::make_mut(&mut view.machine);
        machine.hcas[0].uverbs.as_mut().unwrap().name = "uverbs7".to_owned();
        view.resources = [resource_of(HCA, Kind::Rdma, 0..7)].into();
    });
    kubelet.until_healthy(HCA, 7).await;
    assert_eq!(std::fs::read_to_string(file(&node)).unwrap().matches("uverbs0").count(), 0);
    node.change(|view| {
        view.machine = Machine::default().into();
        view.resources = [resource_of(HCA, Kind::Rdma, [])].into();
    });
    kubelet.until_healthy(HCA, 0).await;
    assert!(!file(&node).exists());
    assert_eq!(std::fs::read(&foreign).unwrap(), b"foreign");
}

#[tokio::test]
async fn an_hca_that_no_resource_has_any_more_keeps_its_last_limit_or_cannot_be_had() {
    let limited = |numbers: std::ops::Range<u32>| {
        let mut resource = resource_of(HCA, Kind::Rdma, numbers);
        resource.config.limits = Some(limits());
        resource
    };
    let node = Node::new(view(machine(), [limited(0..8)]));
    let kubelet = Kubelet::start(&node.plugins());
    let process = node.start().await;
    kubelet.until_healthy(HCA, 8).await;
    node.change(|view| {
        Arc::make_mut(&mut view.machine).hcas[7].name = "rocep7".to_owned();
        view.resources = [limited(0..4)].into();
    });
    kubelet.until_healthy(HCA, 4).await;
    let text = std::fs::read_to_string(file(&node)).unwrap();
    for name in ["mlx5_0", "mlx5_6", "rocep7"] {
        assert!(text.contains(&format!("\"{name} hca_handle=2 hca_object=2000\"")), "{name}: {text}");
    }
    assert_eq!(text.matches("--max").count(), 8);
    // Another process reads the terms from the file.
    process.stop().await;
    let process = node.start().await;
    kubelet.until("registered again", |known| known.registrations.len() == 2).await;
    assert_eq!(std::fs::read_to_string(file(&node)).unwrap(), text);
    // After a reboot the terms are unknown, and the runtime does not start a container with a device that is in no
    // file.
    process.stop().await;
    std::fs::remove_file(file(&node)).unwrap();
    let _process = node.start().await;
    kubelet.until("registered again", |known| known.registrations.len() == 3).await;
    let text = std::fs::read_to_string(file(&node)).unwrap();
    assert_eq!((text.matches("uverbs").count(), text.matches("--max").count()), (8, 4), "{text}");
}

// SEMANTICS: D10
#[tokio::test]
async fn devices_whose_cdi_file_cannot_be_written_are_out_of_service_until_it_can() {
    let node = Node::new(view(machine(), [resource_of(HCA, Kind::Rdma, 0..8)]));
    // A file in place of the folder: removing permissions would not stop root.
    std::fs::remove_dir(node.path("cdi")).unwrap();
    std::fs::write(node.path("cdi"), b"").unwrap();
    let kubelet = Kubelet::start(&node.plugins());
    let mut process = node.start().await;
    kubelet.until("a list", |known| known.devices.get(HCA).is_some_and(|devices| devices.len() == 8)).await;
    assert_eq!(kubelet.known.borrow().healthy(HCA), Vec::<String>::new());
    let faults = Arc::clone(&process.prepared.wait_for(|view| view.faults.len() == 8).await.unwrap().faults);
    let fault = &faults[&hca_key(0)];
    assert_eq!(fault.reason, Reason::NotPrepared);
    assert!(fault.message.contains(cdi::FILE), "{}", fault.message);
    std::fs::remove_file(node.path("cdi")).unwrap();
    kubelet.until_healthy(HCA, 8).await;
    assert!(process.prepared.borrow().faults.is_empty());
}

// SEMANTICS: D10
#[tokio::test]
async fn a_missing_device_node_takes_its_hca_out_of_service() {
    let node = Node::new(view(machine(), [resource_of(HCA, Kind::Rdma, 0..8)]));
    node.change(|view| Arc::make_mut(&mut view.machine).hcas[5].uverbs = None);
    let uverbs = node.path("dev/infiniband/uverbs2");
    std::fs::remove_file(&uverbs).unwrap();
    let kubelet = Kubelet::start(&node.plugins());
    let process = node.start().await;
    kubelet.until_healthy(HCA, 6).await;
    let messages: Vec<String> = process.prepared.borrow().faults.values().map(|fault| fault.message.clone()).collect();
    let wanted = [
        "/dev/infiniband/uverbs2 of mlx5_2 is missing",
        "mlx5_5 has no uverbs device: load the kernel module ib_uverbs",
    ];
    assert_eq!(messages, wanted);
    std::fs::write(&uverbs, b"").unwrap();
    kubelet.until_healthy(HCA, 7).await;
}

#[tokio::test]
async fn the_first_view_is_passed_on_even_if_there_is_nothing() {
    let node = Node::new(View::default());
    let instance = Arc::new(Instance::begin(&node.plugins()).await.unwrap());
    let (prepared, mut passed_on) = watch::channel(Arc::new(View::default()));
    let (settings, stop) = (node.cdi_settings(true), CancellationToken::new());
    let keeping = tokio::spawn(cdi::keep(settings, instance, node.views.subscribe(), prepared, stop.clone()));
    passed_on.changed().await.unwrap();
    stop.cancel();
    keeping.await.unwrap();
}

// SEMANTICS: D10
#[tokio::test(start_paused = true)]
async fn an_older_process_leaves_the_file_to_the_newer_one() {
    let node = Node::new(view(machine(), [resource_of(HCA, Kind::Rdma, 0..8)]));
    let older = Arc::new(Instance::begin(&node.plugins()).await.unwrap());
    let prepared = watch::Sender::new(Arc::new(View::default()));
    let mut passed_on = prepared.subscribe();
    let (settings, views) = (node.cdi_settings(true), node.views.subscribe());
    tokio::spawn(cdi::keep(settings, older, views, prepared, CancellationToken::new()));
    passed_on.wait_for(|view| view.machine.hcas.len() == 8).await.unwrap();
    let before = std::fs::read(file(&node)).unwrap();
    let newer = Instance::begin(&node.plugins()).await.unwrap();
    node.change(|view| Arc::make_mut(&mut view.machine).hcas.truncate(7));
    passed_on.wait_for(|view| view.machine.hcas.len() == 7).await.unwrap();
    assert_eq!(std::fs::read(file(&node)).unwrap(), before);
    drop(newer);
    // The file is written soon, even without a change, since the plugin registers then.
    let since = Instant::now();
    while std::fs::read_to_string(file(&node)).unwrap().matches("uverbs").count() != 14 {
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    assert!(since.elapsed() < Duration::from_secs(2), "{:?}", since.elapsed());
}
