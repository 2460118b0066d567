//! The objects that all pods of a job share: the Service, the launcher's Secret and the claims to datasets; and the
//! metadata that these objects have in common.

use std::collections::BTreeMap;

use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::{
    PersistentVolumeClaim, PersistentVolumeClaimSpec, Secret, Service, ServicePort, ServiceSpec,
    VolumeResourceRequirements,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use larder_api::TrainingJob;
use larder_api::names::{DATASET_ANNOTATION, FIELD_MANAGER, JOB_LABEL, JOB_SERVING_LABEL, STORAGE_CLASS};

use super::context::{Rendered, ports};
use super::names;

/// The key within the Secret, and the name of the file that it is mounted as.
pub(super) const KEY: &str = "key";

pub fn metadata(rendered: &Rendered<'_>, name: String) -> ObjectMeta {
    ObjectMeta {
        name: Some(name),
        namespace: Some(rendered.namespace.to_owned()),
        labels: Some(labels(rendered)),
        owner_references: Some(vec![owner(rendered.name, rendered.uid)]),
        ..ObjectMeta::default()
    }
}

/// The reference to the job with this name and uid, which controls the object that has it.
pub fn owner(name: &str, uid: &str) -> OwnerReference {
    OwnerReference {
        api_version: <TrainingJob as larder_kube::Resource>::api_version(&()).into_owned(),
        kind: <TrainingJob as larder_kube::Resource>::kind(&()).into_owned(),
        name: name.to_owned(),
        uid: uid.to_owned(),
        controller: Some(true),
        block_owner_deletion: Some(true),
    }
}

/// The labels that every object of the job has.
pub(super) fn labels(rendered: &Rendered<'_>) -> BTreeMap<String, String> {
    [("app.kubernetes.io/managed-by", FIELD_MANAGER), (JOB_LABEL, rendered.name)]
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .into()
}

/// The headless Service that gives pods their DNS names; `None` if the type needs none. It selects pods that have
/// [`JOB_SERVING_LABEL`]. A pod that is being replaced loses this label.
pub fn service(rendered: &Rendered<'_>) -> Option<Service> {
    let rules = rendered.kind.service.as_ref()?;
    let mut by_name = BTreeMap::new();
    for role in &rendered.job.roles {
        by_name.extend(ports(rendered, role));
    }
    let ports: Vec<_> = by_name
        .into_iter()
        .map(|(name, port)| ServicePort { name: Some(name), port: i32::from(port), ..ServicePort::default() })
        .collect();
    let selector = [(JOB_LABEL, rendered.name), (JOB_SERVING_LABEL, "true")];
    Some(Service {
        metadata: metadata(rendered, names::service(rendered.name)),
        spec: Some(ServiceSpec {
            cluster_ip: Some("None".to_owned()),
            publish_not_ready_addresses: Some(rules.publish_not_ready),
            selector: Some(selector.map(|(name, value)| (name.to_owned(), value.to_owned())).into()),
            ports: (!ports.is_empty()).then_some(ports),
            ..ServiceSpec::default()
        }),
        ..Service::default()
    })
}

/// The Secret that authenticates a launcher to the pods of its job, with a key that the caller has generated; `None` if
/// the type has no launcher. It is created once, because running pods keep the key that they started with.
pub fn secret(rendered: &Rendered<'_>, key: &[u8]) -> Option<Secret> {
    rendered.kind.launcher.as_ref()?;
    Some(Secret {
        metadata: metadata(rendered, names::secret(rendered.name, rendered.uid)),
        data: Some([(KEY.to_owned(), ByteString(key.to_vec()))].into()),
        immutable: Some(true),
        ..Secret::default()
    })
}

/// Claims to the datasets of other namespaces. They bind if those namespaces grant the datasets. The claims to datasets
/// of the job's own namespace already exist.
pub fn claims(rendered: &Rendered<'_>) -> Vec<PersistentVolumeClaim> {
    let others = rendered.job.datasets.iter().filter(|mount| mount.dataset.namespace != rendered.namespace);
    let claim = others.map(|mount| {
        let name = names::claim(rendered.namespace, &mount.dataset);
        PersistentVolumeClaim {
            metadata: ObjectMeta {
                annotations: Some([(DATASET_ANNOTATION.to_owned(), mount.dataset.to_string())].into()),
                // Several jobs share the claim, so no job owns it.
                labels: Some([("app.kubernetes.io/managed-by".to_owned(), FIELD_MANAGER.to_owned())].into()),
                owner_references: None,
                ..metadata(rendered, name)
            },
            spec: Some(PersistentVolumeClaimSpec {
                access_modes: Some(vec!["ReadOnlyMany".to_owned()]),
                storage_class_name: Some(STORAGE_CLASS.to_owned()),
                resources: Some(VolumeResourceRequirements {
                    requests: Some([("storage".to_owned(), Quantity("1Mi".to_owned()))].into()),
                    ..VolumeResourceRequirements::default()
                }),
                ..PersistentVolumeClaimSpec::default()
            }),
            ..PersistentVolumeClaim::default()
        }
    });
    claim.collect()
}
