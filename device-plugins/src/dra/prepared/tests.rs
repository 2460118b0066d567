use super::super::devices::offered;
use super::super::samples::{rails, view};
use super::*;
use crate::config::Mode;
use crate::view::View;

fn prepared(view: &View, given: &[(&str, &str)], vendor: &[&str]) -> (Prepared, ClaimFile) {
    let offered = offered(view);
    let given: Vec<Given<'_>> = given
        .iter()
        .map(|(request, device)| {
            let (request, device) = ((*request).to_owned(), (*device).to_owned());
            let offered = &offered[&device];
            let allocated = Allocated { request, device, share: None, admin: false };
            Given { allocated, key: offered.key, resource: offered.resource }
        })
        .collect();
    let vendor = vendor.iter().map(|name| (*name).to_owned()).collect();
    prepare(&view.machine, &Uid::new("u1").unwrap(), "team/c".to_owned(), &given, &vendor)
}

/// What a container gets if it uses one request, or the whole claim. The kubelet passes CDI names in this order. The
/// runtime applies each name once and uses the last value of a variable.
fn container((prepared, file): &(Prepared, ClaimFile), request: Option<&str>) -> (Vec<String>, Vec<String>) {
    let devices = prepared.devices.iter().filter(|it| request.is_none_or(|request| it.request == request));
    let file = serde_json::to_value(file).unwrap();
    let (mut names, mut env) = (Vec::new(), BTreeMap::new());
    for name in devices.flat_map(|device| &device.cdi) {
        if names.contains(name) {
            continue;
        }
        names.push(name.clone());
        if let Some(own) = name.strip_prefix("larder.dev/claim=") {
            let edited = file["devices"].as_array().unwrap().iter().find(|edited| edited["name"] == own).unwrap();
            let lines = edited["containerEdits"]["env"].as_array().unwrap();
            env.extend(lines.iter().map(|line| line.as_str().unwrap().split_once('=').unwrap()));
        }
    }
    names.retain(|name| !name.starts_with("larder.dev/claim="));
    (names, env.into_iter().map(|(name, value)| format!("{name}={value}")).collect())
}

const PAIRS: [(&str, &str); 4] =
    [("gpu-0", "gpu-0"), ("hca-0", "hca-0000-20-00-0"), ("gpu-1", "gpu-1"), ("hca-1", "hca-0000-21-00-0")];

// SEMANTICS: D28
#[test]
fn a_container_sees_the_devices_of_the_requests_that_it_uses_and_no_others() {
    let claim = prepared(&rails(), &PAIRS, &[]);
    let hcas = ["larder.dev/hca=0000:20:00.0", "larder.dev/hca=0000:21:00.0"];
    let all = "LARDER_CLAIM=u1 NCCL_IB_HCA==mlx5_0:1,mlx5_1:1 NVIDIA_VISIBLE_DEVICES=GPU-0,GPU-1 \
               UCX_NET_DEVICES=mlx5_0:1,mlx5_1:1";
    let shown = |request| {
        let (names, env) = container(&claim, request);
        (names.join(" "), env.join(" "))
    };
    assert_eq!(shown(None), (hcas.join(" "), all.to_owned()));
    let second = "LARDER_CLAIM=u1 NCCL_IB_HCA==mlx5_1:1 UCX_NET_DEVICES=mlx5_1:1";
    assert_eq!(shown(Some("hca-1")), (hcas[1].to_owned(), second.to_owned()));
    assert_eq!(shown(Some("gpu-1")), (String::new(), "LARDER_CLAIM=u1 NVIDIA_VISIBLE_DEVICES=GPU-1".to_owned()));
    assert_eq!(shown(Some("none")), (String::new(), String::new()));
}

#[test]
fn gpus_come_by_nvidias_names_if_all_of_them_have_one() {
    let request = [("r", "gpu-0"), ("r", "gpu-1")];
    let view = view(Mode::Dra, Mode::Dra);
    let names = ["nvidia.com/gpu=GPU-0", "nvidia.com/gpu=GPU-1"];
    let (given, env) = container(&prepared(&view, &request, &names), None);
    assert_eq!(
        (given, env.join(" ")),
        (names.map(str::to_owned).into(), "LARDER_CLAIM=u1 NVIDIA_VISIBLE_DEVICES=void".into())
    );
    let (given, env) = container(&prepared(&view, &request, &names[..1]), None);
    assert_eq!((given, env.join(" ")), (Vec::new(), "LARDER_CLAIM=u1 NVIDIA_VISIBLE_DEVICES=GPU-0,GPU-1".to_owned()));
}

#[test]
fn the_first_name_of_each_device_is_its_own() {
    // The kubelet reports the health of each device under its first CDI name.
    let (prepared, _) = prepared(&view(Mode::Dra, Mode::Dra), &[("r", "gpu-0"), ("r", "gpu-1")], &[]);
    let first: Vec<&str> = prepared.devices.iter().map(|device| device.cdi[0].as_str()).collect();
    assert_eq!(first, ["larder.dev/claim=u1.device.gpu-0", "larder.dev/claim=u1.device.gpu-1"]);
}

#[test]
fn the_file_says_what_was_prepared() {
    let (prepared, file) = prepared(&rails(), &PAIRS, &[]);
    let text = String::from_utf8(file.encode().unwrap()).unwrap();
    assert_eq!(ClaimFile::decode(text.as_bytes()), Some(prepared.clone()));
    let given = |(request, device): (&str, &str)| Allocated {
        request: request.into(),
        device: device.into(),
        share: None,
        admin: false,
    };
    assert!(prepared.is_of(&PAIRS.map(given)));
    assert!(!prepared.is_of(&PAIRS.map(given)[..3]));
    let mut other = PAIRS.map(given);
    other[3].share = Some("s1".into());
    assert!(!prepared.is_of(&other));
    let absent = |name: &str| text.replace(&format!("\"name\": \"u1.{name}\""), "\"name\": \"u1.other\"");
    let nameless = text.replace(",\\\"larder.dev/claim=u1.request.hca-0\\\"", "");
    // The runtime ignores a whole file if it does not allow one of the devices, even one that no container gets.
    let more = |name: &str, env: &str| {
        let device = format!("{{\"name\": \"{name}\", \"containerEdits\": {{\"env\": [\"{env}\"]}}}}");
        text.replace("\n  \"devices\": [", &format!("\n  \"devices\": [{device},"))
    };
    assert_eq!(ClaimFile::decode(more("u1.more", "A=b").as_bytes()), Some(prepared.clone()));
    for damaged in [
        text.replace("devices.larder.dev/prepared", "x"),
        text.replace("\\\"claim\\\"", "1"),
        text.replace("\"kind\": \"larder.dev/claim\"", "\"kind\": \"larder.dev/hca\""),
        nameless,
        absent("device.gpu-0"),
        absent("request.hca-0"),
        absent("claim"),
        more("u1.re`quest", "A=b"),
        more("u1.claim", "A=b"),
        more("u1.more", "=b"),
        more("u1.more", "A"),
        more("u1.more", "A=b").replace("\"A=b\"", ""),
    ] {
        assert_ne!(damaged, text);
        assert_eq!(ClaimFile::decode(damaged.as_bytes()), None, "{damaged}");
    }
}

#[test]
fn the_file_of_a_claim_is_the_golden_file() {
    let golden = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("golden/claim-file.dra");
    let text = String::from_utf8(prepared(&rails(), &PAIRS[..2], &[]).1.encode().unwrap()).unwrap();
    if std::env::var_os("LARDER_WRITE_GOLDEN").is_some() {
        std::fs::write(&golden, &text).unwrap();
    }
    assert_eq!(text, std::fs::read_to_string(golden).unwrap());
}
