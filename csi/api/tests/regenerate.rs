//! Keeps the generated code current: generates it again from `proto/` and fails if the checked-in code differs. With
//! `LARDER_WRITE_GOLDEN=1` it replaces the checked-in code.
//!
//! The proto is the official file, unchanged. Calls that the driver does not serve are left out of the code, together
//! with the messages that only they use. The server answers such a call with `Unimplemented`.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use prost_types::{DescriptorProto, FileDescriptorProto};
use tonic_prost_build::Config;

/// The calls that the driver serves.
const SERVED: [(&str, &[&str]); 3] = [
    ("Identity", &["GetPluginInfo", "GetPluginCapabilities", "Probe"]),
    (
        "Controller",
        &["CreateVolume", "DeleteVolume", "ValidateVolumeCapabilities", "ListVolumes", "ControllerGetCapabilities"],
    ),
    ("Node", &["NodePublishVolume", "NodeUnpublishVolume", "NodeGetVolumeStats", "NodeGetCapabilities", "NodeGetInfo"]),
];

#[test]
fn the_generated_code_is_current() {
    // Read at run time: a test binary may have been built in another clone.
    let here = PathBuf::from(std::env::var("CARGO_MANIFEST_DIR").unwrap());
    let out = tempfile::tempdir().unwrap();
    let proto = here.join("proto");
    // A message must not print a secret that it carries: `src/lib.rs` implements their Debug by hand.
    let builder = tonic_prost_build::configure().out_dir(out.path()).build_transport(false).skip_debug(WITH_SECRETS);
    let files = Config::new().load_fds(&[proto.join("csi.proto")], &[proto]);
    let mut files = files.expect("protoc works (`make tools` installs it)");
    files.file.iter_mut().filter(|file| file.package() == "csi.v1").for_each(cut);
    builder.compile_fds(files).unwrap();
    {
        let file = "csi.v1.rs";
        let made = std::fs::read_to_string(out.path().join(file)).unwrap();
        let kept = here.join("src/gen").join(file);
        if std::env::var_os("LARDER_WRITE_GOLDEN").is_some() {
            std::fs::write(&kept, &made).unwrap();
        }
        let same = std::fs::read_to_string(&kept).is_ok_and(|kept| kept == made);
        assert!(
            same,
            "{} differs from what proto/ generates: run this test with LARDER_WRITE_GOLDEN=1",
            kept.display()
        );
    }
}

/// The numbers of the fields of a file with its messages and services, in the paths of comments.
const MESSAGES: i32 = 4;
const SERVICES: i32 = 6;
/// The number of a service's methods.
const METHODS: i32 = 2;

/// Removes everything from a file that the driver does not serve.
fn cut(file: &mut FileDescriptorProto) {
    // Comments are addressed by the position of the item that they describe, so positions must be mapped.
    let mut positions = BTreeMap::new();
    let served: BTreeMap<_, _> = SERVED.into_iter().collect();
    let mut services = Vec::new();
    for (at, mut service) in (0..).zip(std::mem::take(&mut file.service)) {
        let Some(calls) = served.get(service.name()) else { continue };
        let mut methods = Vec::new();
        for (method_at, method) in (0..).zip(std::mem::take(&mut service.method)) {
            if calls.contains(&method.name()) {
                positions.insert(vec![SERVICES, at, METHODS, method_at], [services.len(), methods.len()].to_vec());
                methods.push(method);
            }
        }
        assert_eq!(methods.len(), calls.len(), "the proto has all calls of {}", service.name());
        positions.insert(vec![SERVICES, at], vec![services.len()]);
        service.method = methods;
        services.push(service);
    }
    assert_eq!(services.len(), SERVED.len());
    let used = used(&file.message_type, services.iter().flat_map(|service| &service.method));
    let mut messages = Vec::new();
    for (at, message) in (0..).zip(std::mem::take(&mut file.message_type)) {
        if used.contains(message.name()) {
            positions.insert(vec![MESSAGES, at], vec![messages.len()]);
            messages.push(message);
        }
    }
    (file.service, file.message_type) = (services, messages);
    for location in file.source_code_info.iter_mut().flat_map(|info| &mut info.location) {
        let path = &mut location.path;
        let known = |length: usize| path.get(..length).and_then(|start| positions.get(start));
        let is_cut = [MESSAGES, SERVICES].iter().any(|part| path.first() == Some(part)) && path.len() > 1;
        match (known(4).filter(|_| path[0] == SERVICES), known(2)) {
            (Some(found), _) => (path[1], path[3]) = (found[0] as i32, found[1] as i32),
            (None, Some(_)) if path[0] == SERVICES && path.get(2) == Some(&METHODS) && path.len() > 3 => path.clear(),
            (None, Some(found)) => path[1] = found[0] as i32,
            (None, None) if is_cut => path.clear(),
            (None, None) => {}
        }
    }
    let is_kept = |location: &prost_types::source_code_info::Location| !location.path.is_empty();
    file.source_code_info.iter_mut().for_each(|info| info.location.retain(is_kept));
}

/// The names of the messages that these methods receive and return, including nested messages.
fn used<'a>(
    messages: &[DescriptorProto],
    methods: impl Iterator<Item = &'a prost_types::MethodDescriptorProto>,
) -> BTreeSet<String> {
    let top = |path: &str| path.strip_prefix(".csi.v1.").map(|name| name.split('.').next().unwrap().to_owned());
    let mut waiting: Vec<String> =
        methods.flat_map(|method| [top(method.input_type()), top(method.output_type())]).flatten().collect();
    let mut used = BTreeSet::new();
    while let Some(name) = waiting.pop() {
        let message = messages.iter().find(|message| message.name() == name);
        if let Some(message) = message.filter(|_| used.insert(name)) {
            contained(message, &mut |path| waiting.extend(top(path)));
        }
    }
    used
}

fn contained(message: &DescriptorProto, take: &mut impl FnMut(&str)) {
    message.field.iter().for_each(|field| take(field.type_name()));
    message.nested_type.iter().for_each(|nested| contained(nested, take));
}

/// Messages with a field that holds a secret.
const WITH_SECRETS: &[&str] = &[
    "csi.v1.CreateVolumeRequest",
    "csi.v1.DeleteVolumeRequest",
    "csi.v1.NodePublishVolumeRequest",
    "csi.v1.ValidateVolumeCapabilitiesRequest",
];
