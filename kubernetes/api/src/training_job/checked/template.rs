//! Rules for the template of a role.

use k8s_openapi::api::core::v1::{PodTemplateSpec, ResourceRequirements};

use crate::checked::InvalidField;
use crate::names::{DEFAULTS_OFF_ANNOTATION, PROCESSES_ANNOTATION};
use crate::quantity::{is_device, milli};

/// The performance defaults that are on for the pods of a role.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Defaults {
    /// True if requests and limits become equal.
    pub guaranteed: bool,
    /// True if containers with more than one CPU get whole CPUs.
    pub whole_cpus: bool,
    /// True if /dev/shm gets a size.
    pub shared_memory: bool,
    /// True if huge pages are mounted.
    pub hugepages: bool,
}

impl Defaults {
    /// The defaults that the annotation [`DEFAULTS_OFF_ANNOTATION`] does not turn off.
    pub(super) fn of(field: &str, template: &PodTemplateSpec) -> Result<Self, InvalidField> {
        let mut on = Self { guaranteed: true, whole_cpus: true, shared_memory: true, hugepages: true };
        let Some(text) = annotation(template, DEFAULTS_OFF_ANNOTATION) else { return Ok(on) };
        for name in text.split(',') {
            match name.trim() {
                "guaranteed" => on.guaranteed = false,
                "whole-cpus" => on.whole_cpus = false,
                "shared-memory" => on.shared_memory = false,
                "hugepages" => on.hugepages = false,
                _ => {
                    return Err(InvalidField::new(
                        format!("{field}.metadata.annotations[{DEFAULTS_OFF_ANNOTATION}]"),
                        "must list guaranteed, whole-cpus, shared-memory or hugepages",
                    ));
                }
            }
        }
        Ok(on)
    }
}

fn annotation<'a>(template: &'a PodTemplateSpec, name: &str) -> Option<&'a str> {
    template.metadata.as_ref()?.annotations.as_ref()?.get(name).map(String::as_str)
}

/// The value of [`PROCESSES_ANNOTATION`].
pub(super) fn processes(field: &str, template: &PodTemplateSpec) -> Result<Option<u32>, InvalidField> {
    let Some(text) = annotation(template, PROCESSES_ANNOTATION) else { return Ok(None) };
    match text.parse() {
        Ok(processes @ 1..=1024) => Ok(Some(processes)),
        _ => Err(InvalidField::new(
            format!("{field}.metadata.annotations[{PROCESSES_ANNOTATION}]"),
            "must be a number from 1 to 1024",
        )),
    }
}

/// Rejects settings that Larder would have to override, and amounts that the API server would reject in a pod.
pub(super) fn check(field: &str, template: &PodTemplateSpec) -> Result<(), InvalidField> {
    let Some(spec) = template.spec.as_ref().filter(|spec| !spec.containers.is_empty()) else {
        return Err(InvalidField::new(format!("{field}.spec.containers"), "is empty"));
    };
    if spec.restart_policy.as_deref().is_some_and(|policy| policy != "Never") {
        return Err(InvalidField::new(
            format!("{field}.spec.restartPolicy"),
            "must be Never or left out: Larder makes a new pod and counts why, see spec.restart",
        ));
    }
    let ours = [
        ("hostname", spec.hostname.is_some()),
        ("subdomain", spec.subdomain.is_some()),
        ("nodeName", spec.node_name.is_some()),
        ("schedulingGroup", spec.scheduling_group.is_some()),
    ];
    if let Some((name, _)) = ours.iter().find(|(_, given)| *given) {
        return Err(InvalidField::new(format!("{field}.spec.{name}"), "is for Larder to set"));
    }
    for (list, containers) in
        [("containers", &spec.containers), ("initContainers", spec.init_containers.as_ref().unwrap_or(&Vec::new()))]
    {
        for container in containers {
            check_amounts(&format!("{field}.spec.{list}[{}]", container.name), container.resources.as_ref())?;
        }
    }
    check_amounts(&format!("{field}.spec"), spec.resources.as_ref())
}

fn check_amounts(field: &str, resources: Option<&ResourceRequirements>) -> Result<(), InvalidField> {
    let Some(resources) = resources else { return Ok(()) };
    for (list, amounts) in [("limits", &resources.limits), ("requests", &resources.requests)] {
        for (resource, quantity) in amounts.iter().flatten() {
            let refuse =
                |what: &str| Err(InvalidField::new(format!("{field}.resources.{list}[{resource}]"), what.to_owned()));
            match milli(&quantity.0) {
                None => return refuse("must be an amount such as 8, 500m or 512Gi"),
                Some(..0) => return refuse("must be at least 0"),
                Some(milli) if is_device(resource) && milli % 1_000 != 0 => {
                    return refuse("must be a whole number of devices");
                }
                Some(_) => {}
            }
        }
    }
    Ok(())
}
