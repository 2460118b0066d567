//! A container that the runtime is about to create, and what the plugin changes in it.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::path::Path;

use larder_devices_api::nri::{
    Container, ContainerAdjustment, CreateContainerRequest, LinuxContainerAdjustment, LinuxResources, PosixRlimit,
};
use larder_rdma_limit::{Line, Max};

use crate::cdi;
use crate::limits::{self, LowerLimits, TooHigh, Unreadable};
use crate::machine::{Hca, Machine, PciAddress};
use crate::names::{HOOK, LIMITS_ANNOTATION, MAX_ANNOTATION};
use crate::resource::{DeviceKey, Resource};
use crate::view::View;

/// Why a container is not created. The text is in its pod's events.
#[derive(Debug, thiserror::Error)]
pub(super) enum Refusal {
    /// The pod's annotation is not understood.
    #[error("the pod's annotation {LIMITS_ANNOTATION} is malformed: {0}")]
    Unreadable(#[from] Unreadable),
    /// The pod asks for more than it may have.
    #[error(transparent)]
    TooHigh(#[from] TooHigh),
    /// The HCA is not on this node.
    #[error("larder-devices knows no HCA {0} on this node: it is gone, or was not found yet")]
    Unknown(String),
    /// The pod asks for lower limits of an HCA that no resource offers, and that was not limited.
    #[error(
        "the pod's annotation {LIMITS_ANNOTATION} lowers the limits of the HCA {0}, which belongs to no resource now"
    )]
    NoResource(String),
}

/// What our CDI file gave a container of an HCA. Some runtimes tell of the name, all of them of the hook.
#[derive(Debug)]
pub(super) enum Trace<'c> {
    /// The name in the file.
    Name(&'c str),
    /// The arguments of the hook.
    Hook(&'c [String]),
}

impl Trace<'_> {
    /// The HCA, if this machine has it.
    pub(super) fn hca<'m>(&self, machine: &'m Machine) -> Option<&'m Hca> {
        let mut hcas = machine.hcas.iter();
        match self {
            Self::Name(name) => hcas.find(|hca| cdi::name(hca.place.pci) == *name),
            Self::Hook(args) => {
                let line = Line::from_args(args)?;
                hcas.find(|hca| hca.name == line.device)
            }
        }
    }
}

impl Trace<'_> {
    /// What the hook allows of the HCA.
    fn max(&self) -> Option<Max> {
        match self {
            Self::Name(_) => None,
            Self::Hook(args) => Some(Line::from_args(args)?.max),
        }
    }
}

impl fmt::Display for Trace<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Name(name) => f.write_str(name),
            Self::Hook(args) => match Line::from_args(args) {
                Some(line) => f.write_str(&line.device),
                None => write!(f, "of the hook's arguments {args:?}"),
            },
        }
    }
}

/// What tells of HCAs of ours in a container, an HCA perhaps twice. Empty for all other containers.
pub(super) fn traces(container: &Container) -> Vec<Trace<'_>> {
    let names = container.cdi_devices.iter().filter_map(|device| cdi::own_name(&device.name));
    let hooks = container.hooks.iter().flat_map(|hooks| &hooks.create_runtime);
    let ours = hooks.filter(|hook| Path::new(&hook.path).file_name().is_some_and(|name| name == HOOK));
    names.map(Trace::Name).chain(ours.map(|hook| Trace::Hook(&hook.args))).collect()
}

/// The HCAs whose device nodes a container has, by whatever way it came to them. Runtimes before NRI 0.10 tell of nothing else where
/// there is no hook.
fn opened<'m>(container: &Container, machine: &'m Machine) -> Vec<&'m Hca> {
    let devices = container.linux.iter().flat_map(|linux| &linux.devices);
    let numbers: Vec<(i64, i64)> =
        devices.filter(|device| device.r#type == "c").map(|device| (device.major, device.minor)).collect();
    let is_there = |hca: &&Hca| {
        let own = hca.uverbs.as_ref().map(|uverbs| (uverbs.numbers.0.into(), uverbs.numbers.1.into()));
        own.is_some_and(|own| numbers.contains(&own))
    };
    machine.hcas.iter().filter(is_there).collect()
}

/// What a container gets beside its devices. `None` if it has none of ours.
pub(super) fn adjust(request: &CreateContainerRequest, view: &View) -> Result<Option<ContainerAdjustment>, Refusal> {
    let Some(container) = &request.container else { return Ok(None) };
    let (mut hcas, mut hooked) = (BTreeMap::<PciAddress, &Hca>::new(), BTreeMap::<PciAddress, Max>::new());
    for trace in traces(container) {
        let hca = trace.hca(&view.machine).ok_or_else(|| Refusal::Unknown(trace.to_string()))?;
        hcas.insert(hca.place.pci, hca);
        hooked.extend(trace.max().map(|max| (hca.place.pci, max)));
    }
    // By its nodes alone, a container may also be privileged or another plugin's: it is not limited, and may lock what it needs.
    let with_memlock = |resource: &Resource| resource.config.limits.is_some_and(|limits| limits.memlock.is_some());
    let opened = opened(container, &view.machine).into_iter().filter(|hca| !hcas.contains_key(&hca.place.pci));
    let opened: Vec<&Resource> = opened.filter_map(|hca| resource(view, hca)).filter(|it| with_memlock(it)).collect();
    if hcas.is_empty() && opened.is_empty() {
        return Ok(None);
    }
    let annotation = request.pod.as_ref().and_then(|pod| pod.annotations.get(LIMITS_ANNOTATION));
    let lower: LowerLimits = annotation.map(|text| text.parse()).transpose()?.unwrap_or_default();
    let (mut lines, mut memlock) = (Vec::new(), None);
    for hca in hcas.into_values() {
        let name = &hca.name;
        let Some(resource) = resource(view, hca) else {
            // The configuration has changed. Containers that have it keep the limit of its hook, which the annotation still lowers.
            let requested = Max { handles: lower.hca_handles, objects: lower.hca_objects };
            match hooked.get(&hca.place.pci) {
                _ if requested == Max::default() => {}
                Some(max) => lines.push(Line { device: name.clone(), max: max.min(requested) }),
                None => return Err(Refusal::NoResource(name.clone())),
            }
            continue;
        };
        if let Some(limits) = limits::effective(&resource.config.name, resource.config.limits, &lower)? {
            lines.extend(limits::line(name, &limits));
            // Each resource says what its containers may lock at least.
            memlock = memlock.max(limits.memlock);
        }
    }
    for resource in opened {
        let limits = limits::effective(&resource.config.name, resource.config.limits, &lower)?;
        memlock = memlock.max(limits.and_then(|limits| limits.memlock));
    }
    Ok(Some(adjustment(container, &lines, memlock, view.capabilities.unified)))
}

fn resource<'a>(view: &'a View, hca: &Hca) -> Option<&'a Resource> {
    let key = DeviceKey::Hca(hca.place.pci);
    view.resources.iter().find(|resource| resource.units.iter().any(|unit| unit.devices.contains(&key)))
}

fn adjustment(container: &Container, lines: &[Line], memlock: Option<u64>, unified: bool) -> ContainerAdjustment {
    let text = lines.iter().map(Line::to_string).collect::<Vec<_>>().join("\n");
    let mut adjustment = ContainerAdjustment::default();
    if !lines.is_empty() {
        adjustment.annotations.insert(MAX_ANNOTATION.to_owned(), text.clone());
    } else if container.annotations.contains_key(MAX_ANNOTATION) {
        // Only this plugin speaks to the hook. A minus removes.
        adjustment.annotations.insert(format!("-{MAX_ANNOTATION}"), String::new());
    }
    if let Some(bytes) = memlock {
        let rlimit = PosixRlimit { r#type: "RLIMIT_MEMLOCK".to_owned(), hard: bytes, soft: bytes };
        adjustment.rlimits.push(rlimit);
    }
    if unified && !lines.is_empty() {
        let unified = HashMap::from([("rdma.max".to_owned(), text)]);
        let resources = Some(LinuxResources { unified, ..LinuxResources::default() });
        adjustment.linux = Some(LinuxContainerAdjustment { resources, ..LinuxContainerAdjustment::default() });
    }
    adjustment
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use larder_devices_api::nri::{CdiDevice, Hook, Hooks, LinuxContainer, LinuxDevice, PodSandbox};

    use std::collections::BTreeSet;

    use super::*;
    use crate::config::{Give, Kind, Limits, Mode, ResourceConfig, ResourceName, Select};
    use crate::health::capabilities::Capabilities;
    use crate::machine::{CharDevice, Place};
    use crate::resource::Unit;

    const LIMITS: Limits =
        Limits { hca_handles: Some(2), hca_objects: Some(2000), memlock: Some(1 << 30), required: true };

    /// mlx5_0 and mlx5_1 with LIMITS; mlx5_2 with none; mlx5_3 in no resource.
    fn view() -> View {
        let pci = |n| PciAddress { bus: n, ..PciAddress::default() };
        let hca = |n: u8| Hca {
            name: format!("mlx5_{n}"),
            uverbs: Some(CharDevice { name: format!("uverbs{n}"), numbers: (231, n.into()) }),
            place: Place { pci: pci(n), ..Place::default() },
            ..Hca::default()
        };
        let resource = |name: &str, limits, of: &[u8]| Resource {
            config: ResourceConfig {
                name: ResourceName::new(name).unwrap(),
                kind: Kind::Rdma,
                select: Select::default(),
                share: 1,
                give: Give::One,
                mode: Mode::Plugin,
                mad: false,
                limits,
                line: 1,
            },
            units: of
                .iter()
                .map(|n| Unit {
                    id: pci(*n).to_string(),
                    devices: vec![DeviceKey::Hca(pci(*n))],
                    numa: BTreeSet::new(),
                })
                .collect(),
        };
        View {
            machine: Arc::new(Machine { hcas: (0..4).map(hca).collect(), ..Machine::default() }),
            resources: [resource("a/limited", Some(LIMITS), &[0, 1]), resource("a/free", None, &[2])].into(),
            capabilities: Capabilities { unified: true, ..Capabilities::default() },
            ..View::default()
        }
    }

    fn request(cdi: &[&str], pod: &[(&str, &str)]) -> CreateContainerRequest {
        let owned = |(name, value): &(&str, &str)| ((*name).to_owned(), (*value).to_owned());
        let cdi_devices = cdi.iter().map(|name| CdiDevice { name: (*name).to_owned() }).collect();
        CreateContainerRequest {
            pod: Some(PodSandbox { annotations: pod.iter().map(owned).collect(), ..PodSandbox::default() }),
            container: Some(Container { cdi_devices, ..Container::default() }),
        }
    }

    /// As our CDI file calls HCA `n`.
    fn cdi(n: u8) -> String {
        format!("larder.dev/hca=0000:{n:02x}:00.0")
    }

    fn refused(request: &CreateContainerRequest) -> String {
        adjust(request, &view()).unwrap_err().to_string()
    }

    // SEMANTICS: D21
    #[test]
    fn other_containers_are_left_alone_whatever_their_pods_ask_for() {
        let others =
            request(&["nvidia.com/gpu=0", "larder.dev/gpu=1", "x.dev/hca=0000:00:00.0"], &[(LIMITS_ANNOTATION, "?")]);
        assert_eq!(adjust(&others, &view()).unwrap(), None);
        assert_eq!(adjust(&CreateContainerRequest::default(), &view()).unwrap(), None);
    }

    // SEMANTICS: D21
    #[test]
    fn a_container_gets_the_limits_of_all_of_its_hcas() {
        let two = request(&[&cdi(1), "larder.dev/gpu=1", &cdi(0)], &[]);
        let adjusted = adjust(&two, &view()).unwrap().unwrap();
        let lines = "mlx5_0 hca_handle=2 hca_object=2000\nmlx5_1 hca_handle=2 hca_object=2000";
        assert_eq!(adjusted.annotations[MAX_ANNOTATION], lines);
        assert_eq!(adjusted.linux.unwrap().resources.unwrap().unified["rdma.max"], lines);
        let memlock = PosixRlimit { r#type: "RLIMIT_MEMLOCK".to_owned(), hard: 1 << 30, soft: 1 << 30 };
        assert_eq!(adjusted.rlimits, [memlock]);
        // Cgroup v1 has no such key, and runtimes refuse it.
        let mut on_v1 = view();
        on_v1.capabilities.unified = false;
        let v1 = adjust(&two, &on_v1).unwrap().unwrap();
        assert_eq!((v1.linux, &v1.annotations[MAX_ANNOTATION]), (None, &lines.to_owned()));
    }

    #[test]
    fn the_devices_of_the_cdi_file_identify_a_containers_hcas() {
        let view = view();
        let spec = cdi::spec(&view, None, Path::new("/dev"), Path::new("/opt/larder"));
        let file = serde_json::to_value(spec).unwrap();
        let text = |value: &serde_json::Value| value.as_str().unwrap().to_owned();
        let device = &file["devices"][1];
        let name = format!("{}={}", text(&file["kind"]), text(&device["name"]));
        let hook = &device["containerEdits"]["hooks"][0];
        let args: Vec<String> = hook["args"].as_array().unwrap().iter().map(text).collect();
        let hook = Hook { path: text(&hook["path"]), args, ..Hook::default() };
        let other = Hook { path: "/opt/other".to_owned(), args: vec!["--max".into(), "x".into()], ..Hook::default() };
        let with = |names: &[&str], hooks: &[&Hook]| {
            let mut request = request(names, &[]);
            let create_runtime = hooks.iter().map(|hook| (*hook).clone()).collect();
            request.container.as_mut().unwrap().hooks = Some(Hooks { create_runtime, ..Hooks::default() });
            request
        };
        for request in [with(&[&name], &[]), with(&[], &[&other, &hook]), with(&[&name], &[&hook])] {
            let adjusted = adjust(&request, &view).unwrap().unwrap();
            assert_eq!(adjusted.annotations[MAX_ANNOTATION], "mlx5_1 hca_handle=2 hca_object=2000");
        }
        assert_eq!(adjust(&with(&[], &[&other]), &view).unwrap(), None);
        let odd = Hook { args: vec!["x".into()], ..hook };
        assert!(
            refused(&with(&[], &[&odd])).starts_with("larder-devices knows no HCA of the hook's arguments [\"x\"]")
        );
    }

    // SEMANTICS: D21
    #[test]
    fn a_container_may_lock_memory_by_its_device_nodes_alone() {
        let with = |r#type: &str, minors: &[i64], annotations: &[(&str, &str)]| {
            let mut request = request(&[], annotations);
            let device = |minor: &i64| LinuxDevice {
                path: format!("/dev/infiniband/uverbs{minor}"),
                r#type: r#type.to_owned(),
                major: 231,
                minor: *minor,
                ..LinuxDevice::default()
            };
            let devices = minors.iter().map(device).collect();
            request.container.as_mut().unwrap().linux = Some(LinuxContainer { devices, ..LinuxContainer::default() });
            adjust(&request, &view())
        };
        let adjusted = with("c", &[1, 2], &[]).unwrap().unwrap();
        let memlock = PosixRlimit { r#type: "RLIMIT_MEMLOCK".to_owned(), hard: 1 << 30, soft: 1 << 30 };
        // What limits it, if anything does, is the hook.
        assert_eq!(adjusted, ContainerAdjustment { rlimits: vec![memlock], ..ContainerAdjustment::default() });
        let annotated = |text| with("c", &[1], &[(LIMITS_ANNOTATION, text)]);
        assert_eq!(annotated("memlock=4Ki").unwrap().unwrap().rlimits[0].hard, 4096);
        assert!(annotated("memlock=2Gi").is_err());
        // No node, none of an HCA, of one that has no such limit, of one in no resource.
        for (r#type, minors) in [("c", &[][..]), ("b", &[1]), ("c", &[9]), ("c", &[2]), ("c", &[3])] {
            assert_eq!(with(r#type, minors, &[(LIMITS_ANNOTATION, "?")]).unwrap(), None);
        }
    }

    // SEMANTICS: D21
    #[test]
    fn an_annotation_lowers_the_limits_or_the_container_is_refused() {
        let annotated = |text| request(&[&cdi(0)], &[(LIMITS_ANNOTATION, text)]);
        let adjusted = adjust(&annotated("hca_object=5 memlock=4Ki"), &view()).unwrap().unwrap();
        assert_eq!(adjusted.annotations[MAX_ANNOTATION], "mlx5_0 hca_handle=2 hca_object=5");
        assert_eq!(adjusted.rlimits[0].hard, 4096);
        assert!(refused(&annotated("hca_object=2001")).ends_with("a/limited allows 2000: request less, or omit it"));
        let malformed = "the pod's annotation rdma.larder.dev/limits is malformed: \"much\" is not one of hca_handle=N";
        assert!(refused(&annotated("much")).starts_with(malformed));
        let both = [cdi(0), cdi(2)];
        let both = both.each_ref().map(String::as_str);
        assert!(refused(&request(&both, &[(LIMITS_ANNOTATION, "hca_object=5")])).contains("a/free has no such limit"));
    }

    // SEMANTICS: D21
    #[test]
    fn an_annotation_that_came_from_elsewhere_does_not_reach_the_hook() {
        for (hca, key, value) in
            [(cdi(0), MAX_ANNOTATION, "mlx5_0 hca_handle=2 hca_object=2000"), (cdi(2), "-rdma.larder.dev/max", "")]
        {
            let mut forged = request(&[&hca], &[]);
            let container = forged.container.as_mut().unwrap();
            container.annotations.insert(MAX_ANNOTATION.to_owned(), "mlx5_0 hca_handle=1".to_owned());
            let adjusted = adjust(&forged, &view()).unwrap().unwrap();
            assert_eq!(adjusted.annotations, HashMap::from([(key.to_owned(), value.to_owned())]));
        }
    }

    #[test]
    fn an_hca_that_is_not_known_is_refused_and_one_without_a_resource_keeps_its_hooks_limit() {
        let unknown = refused(&request(&[&cdi(9)], &[]));
        assert_eq!(unknown, "larder-devices knows no HCA 0000:09:00.0 on this node: it is gone, or was not found yet");
        let free = adjust(&request(&[&cdi(3)], &[]), &view()).unwrap();
        assert_eq!(free, Some(ContainerAdjustment::default()));
        let annotated = request(&[&cdi(3)], &[(LIMITS_ANNOTATION, "hca_handle=1")]);
        assert!(refused(&annotated).contains("the HCA mlx5_3, which belongs to no resource now"));
        // It was limited: its pod lowered that, and still does.
        let line: Line = "mlx5_3 hca_handle=2 hca_object=9".parse().unwrap();
        let hook = Hook { path: format!("/opt/larder/{HOOK}"), args: line.to_args(), ..Hook::default() };
        let lowered = |annotation| {
            let mut request = request(&[&cdi(3)], &[(LIMITS_ANNOTATION, annotation)]);
            let hooks = Hooks { create_runtime: vec![hook.clone()], ..Hooks::default() };
            request.container.as_mut().unwrap().hooks = Some(hooks);
            adjust(&request, &view()).unwrap().unwrap().annotations
        };
        let annotation = |line: &str| HashMap::from([(MAX_ANNOTATION.to_owned(), line.to_owned())]);
        assert_eq!(lowered("hca_handle=1 memlock=4Ki"), annotation("mlx5_3 hca_handle=1 hca_object=9"));
        assert_eq!(lowered("hca_object=99"), annotation(&line.to_string()));
        assert_eq!(lowered("memlock=4Ki"), HashMap::new());
    }
}
