//! A pod: the job's template merged over the type's template, plus the fields that the type and Larder add.

use std::collections::BTreeMap;

use k8s_openapi::DeepMerge;
use k8s_openapi::api::core::v1::{
    ConfigMap, Container, ContainerPort, EnvVar, PersistentVolumeClaimVolumeSource, Pod, PodSpec, PodTemplateSpec,
    SeccompProfile, Volume, VolumeMount,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use larder_api::InvalidField;
use larder_api::job_type::{RestartScope, RoleType};
use larder_api::names::{
    DATASETS_ANNOTATION, JOB_ATTEMPT_LABEL, JOB_FLAVOR_LABEL, JOB_INDEX_LABEL, JOB_QUEUE_LABEL, JOB_ROLE_LABEL,
    JOB_SERVING_LABEL, JOB_UID_LABEL, KUEUE_QUEUE_LABEL,
};
use larder_api::training_job::RestartAction;
use larder_api::training_job::checked::{CheckedRole, CheckedRule, GRACE_SECONDS_MAX};
use minijinja::Value;

use super::context::{Contexts, Facts, Rendered, ports};
use super::place::Place;
use super::template::Templates;
use super::{files, launcher, names, performance, shared, split};
use crate::jobs::constraints::DATA_VOLUME;

/// Renders the pods and the files of a job for one set of facts.
pub struct Renderer<'a> {
    rendered: Rendered<'a>,
    facts: &'a Facts,
    templates: Templates,
    contexts: Contexts,
}

impl<'a> Renderer<'a> {
    /// Builds the context that all pods of the job share.
    pub fn new(rendered: Rendered<'a>, facts: &'a Facts) -> Self {
        Self::with(Templates::new(), rendered, facts)
    }

    /// Like [`Self::new`], with templates that count their use of resources.
    pub(super) fn with(templates: Templates, rendered: Rendered<'a>, facts: &'a Facts) -> Self {
        Self { rendered, facts, templates, contexts: Contexts::of(&rendered, facts) }
    }

    /// Renders the pod of a role's index. Fails if the job has no such role, or a template of the type does not render.
    pub fn pod(&self, role: &str, index: u32, attempt: u32, place: &Place) -> Result<Pod, InvalidField> {
        let rendered = &self.rendered;
        let (of_job, of_type) = rendered.role(role)?;
        let context = self.contexts.pod(rendered, role, index, attempt);
        let PodTemplateSpec { metadata, spec } = self.template(of_job, of_type, &context)?;
        let mut spec = spec.unwrap_or_default();
        self.add_environment(role, &context, &mut spec)?;
        add_ports(&ports(rendered, of_job), &mut spec);
        files::mount(rendered, role, &mut spec);
        launcher::add(rendered, role, self.facts, &mut spec);
        self.add_datasets(&mut spec);
        split::add(rendered.job, index, rendered.desired(of_job, self.facts), self.facts, &mut spec);
        performance::apply(&rendered.kind.performance, of_job.defaults, &mut spec);
        place.apply(&mut spec);
        self.finish(role, index, &mut spec);
        Ok(Pod { metadata: self.metadata(role, index, attempt, place, metadata), spec: Some(spec), ..Pod::default() })
    }

    /// Renders the files of the type; `None` if it has none.
    pub fn config_map(&self) -> Result<Option<ConfigMap>, InvalidField> {
        let mut data = BTreeMap::new();
        for file in &self.rendered.kind.files {
            let field = format!("spec.files[{}].content", file.path);
            data.insert(files::key(file), self.templates.text(&field, &file.content, &self.contexts.job)?);
        }
        if let Some(hosts) = launcher::hosts(&self.rendered, self.facts) {
            data.insert(files::HOSTS_KEY.to_owned(), hosts);
        }
        let metadata = shared::metadata(&self.rendered, names::config_map(self.rendered.name, self.rendered.uid));
        Ok((!data.is_empty()).then(|| ConfigMap { metadata, data: Some(data), ..ConfigMap::default() }))
    }

    /// Merges the job's template over the type's. The first containers of both are merged into one.
    fn template(
        &self,
        role: &CheckedRole,
        of_type: &RoleType,
        context: &Value,
    ) -> Result<PodTemplateSpec, InvalidField> {
        let Some(defaults) = &of_type.template else { return Ok(role.template.clone()) };
        let field = format!("spec.roles[{}].template", role.name);
        let mut value = serde_json::to_value(defaults).expect("a template is JSON");
        self.templates.texts(&field, &mut value, context)?;
        // Strings with a format of their own, such as timestamps, contain no braces, so no template changes them.
        let mut template: PodTemplateSpec = serde_json::from_value(value).expect("texts stay texts");
        let ours = template.spec.as_mut().and_then(|spec| spec.containers.first_mut());
        let theirs = role.template.spec.as_ref().and_then(|spec| spec.containers.first());
        if let (Some(ours), Some(theirs)) = (ours, theirs) {
            ours.name.clone_from(&theirs.name);
            // The arguments belong to the command: if the job sets a command, the type's arguments do not apply.
            if theirs.command.is_some() {
                ours.args = None;
            }
        }
        template.merge_from(role.template.clone());
        Ok(template)
    }

    /// Puts the variables of the type and the job's parameters first, so that the template's own can refer to them.
    fn add_environment(&self, role: &str, context: &Value, spec: &mut PodSpec) -> Result<(), InvalidField> {
        let mut variables = Vec::new();
        for one in &self.rendered.kind.environment {
            if !one.roles.is_empty() && !one.roles.iter().any(|name| name == role) {
                continue;
            }
            let field = |rest: &str| format!("spec.environment[{}].{rest}", one.name);
            if let Some(when) = &one.when
                && !self.templates.holds(&field("when"), when, context)?
            {
                continue;
            }
            if self.rendered.job.parameters.iter().any(|(name, _)| *name == one.name) {
                continue;
            }
            let value = self.templates.text(&field("value"), &one.value, context)?;
            variables.push(EnvVar { name: one.name.clone(), value: Some(value), ..EnvVar::default() });
        }
        let parameter = |(name, value): &(String, String)| EnvVar {
            name: name.clone(),
            value: Some(value.clone()),
            ..EnvVar::default()
        };
        variables.extend(self.rendered.job.parameters.iter().map(parameter));
        for container in &mut spec.containers {
            let own = container.env.take().unwrap_or_default();
            let ours = variables.iter().filter(|one| !own.iter().any(|other| other.name == one.name)).cloned();
            let all: Vec<_> = ours.chain(own.iter().cloned()).collect();
            container.env = (!all.is_empty()).then_some(all);
        }
        Ok(())
    }

    fn add_datasets(&self, spec: &mut PodSpec) {
        for (at, mount) in self.rendered.job.datasets.iter().enumerate() {
            let name = format!("{DATA_VOLUME}{at}");
            spec.volumes.get_or_insert_default().push(Volume {
                name: name.clone(),
                persistent_volume_claim: Some(PersistentVolumeClaimVolumeSource {
                    claim_name: names::claim(self.rendered.namespace, &mount.dataset),
                    read_only: Some(true),
                }),
                ..Volume::default()
            });
            for container in &mut spec.containers {
                container.volume_mounts.get_or_insert_default().push(VolumeMount {
                    name: name.clone(),
                    mount_path: mount.path.clone(),
                    read_only: Some(true),
                    ..VolumeMount::default()
                });
            }
        }
    }

    /// Sets the fields that are equal in every pod of a job.
    fn finish(&self, role: &str, index: u32, spec: &mut PodSpec) {
        let restarts = if self.restarts_in_place(role) { "OnFailure" } else { "Never" };
        spec.restart_policy = Some(restarts.to_owned());
        spec.hostname = Some(names::hostname(self.rendered.name, role, index));
        spec.subdomain = self.rendered.kind.service.as_ref().map(|_| names::service(self.rendered.name));
        // In a namespace with hundreds of services, the variables of service links alone would exceed the argument
        // limit of some programs.
        spec.enable_service_links.get_or_insert(false);
        // A pod that is to end uses its quota and its node until it has ended.
        spec.termination_grace_period_seconds =
            spec.termination_grace_period_seconds.map(|seconds| seconds.min(GRACE_SECONDS_MAX));
        let profile = || SeccompProfile { type_: "RuntimeDefault".to_owned(), ..SeccompProfile::default() };
        spec.security_context.get_or_insert_default().seccomp_profile.get_or_insert_with(profile);
    }

    /// True if the kubelet restarts the containers of this role's pods. A pod that is never replaced alone would only
    /// lose the log of its crash.
    fn restarts_in_place(&self, role: &str) -> bool {
        let Rendered { job, kind, .. } = self.rendered;
        let position = job.roles.iter().position(|of_job| of_job.name == role);
        let by_rule = |rule: &CheckedRule| {
            rule.action == RestartAction::RestartPod && position.is_some_and(|position| rule.is_about(position))
        };
        let by_scope = job.scope.unwrap_or(kind.scope) == RestartScope::Worker;
        job.in_place > 0 && (by_scope || job.rules.iter().any(by_rule))
    }

    fn metadata(
        &self,
        role: &str,
        index: u32,
        attempt: u32,
        place: &Place,
        template: Option<ObjectMeta>,
    ) -> ObjectMeta {
        let ours = shared::metadata(&self.rendered, names::pod(self.rendered.name, role, index, attempt));
        let template = template.unwrap_or_default();
        let mut labels = template.labels.unwrap_or_default();
        // Only a pod that is kept on nodes of a flavor may carry this label.
        labels.remove(JOB_FLAVOR_LABEL);
        labels.extend(place.labels.clone());
        // Kueue would treat a pod with this label as a workload of its own.
        labels.remove(KUEUE_QUEUE_LABEL);
        // Only a pod of a job that a queue has admitted may carry this label.
        labels.remove(JOB_QUEUE_LABEL);
        labels.extend(self.rendered.job.queue().map(|queue| (JOB_QUEUE_LABEL.to_owned(), queue.to_owned())));
        labels.extend(ours.labels.unwrap_or_default());
        let of_pod = [
            (JOB_UID_LABEL, self.rendered.uid.to_owned()),
            (JOB_ROLE_LABEL, role.to_owned()),
            (JOB_INDEX_LABEL, index.to_string()),
            (JOB_ATTEMPT_LABEL, attempt.to_string()),
            (JOB_SERVING_LABEL, "true".to_owned()),
        ];
        labels.extend(of_pod.map(|(name, value)| (name.to_owned(), value)));
        let mut annotations = template.annotations.unwrap_or_default();
        annotations.extend(place.annotations.clone());
        let datasets: Vec<_> = self.rendered.job.datasets.iter().map(|mount| mount.dataset.to_string()).collect();
        if !datasets.is_empty() {
            // The template may name more datasets, of inline volumes or of its own claims.
            let own = annotations.remove(DATASETS_ANNOTATION);
            annotations
                .insert(DATASETS_ANNOTATION.to_owned(), own.into_iter().chain(datasets).collect::<Vec<_>>().join(","));
        }
        ObjectMeta { labels: Some(labels), annotations: (!annotations.is_empty()).then_some(annotations), ..ours }
    }
}

/// Declares the type's ports on the first container.
fn add_ports(ports: &[(String, u16)], spec: &mut PodSpec) {
    let Some(main): Option<&mut Container> = spec.containers.first_mut() else { return };
    for (name, port) in ports {
        let declared = main.ports.get_or_insert_default();
        if !declared.iter().any(|there| there.name.as_deref() == Some(name)) {
            declared.push(ContainerPort {
                name: Some(name.clone()),
                container_port: i32::from(*port),
                ..ContainerPort::default()
            });
        }
    }
}
