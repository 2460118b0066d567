//! TFJob: the type `tensorflow`.

use super::fields::Fields;
use super::policy::{self, Restarts};
use super::template::replicas;
use crate::checked::InvalidField;
use crate::training_job::TrainingJob;

/// Kubeflow's names in the order of the type's roles. A `Master` is what TensorFlow 1 called the chief.
const ROLES: [(&str, &str); 5] =
    [("Chief", "chief"), ("Master", "chief"), ("PS", "ps"), ("Worker", "worker"), ("Evaluator", "evaluator")];

pub(super) fn convert(
    spec: &mut Fields,
    job: &mut TrainingJob,
    warnings: &mut Vec<String>,
) -> Result<(), InvalidField> {
    job.spec.type_ = "tensorflow".to_owned();
    let dynamic = spec.read::<bool>("enableDynamicWorker")?.unwrap_or_default();
    let mut specs = spec.object("tfReplicaSpecs")?;
    let mut roles = Vec::new();
    // Kubeflow's role names are case-insensitive.
    for given in specs.names() {
        let Some((_, role)) = ROLES.iter().find(|(name, _)| name.eq_ignore_ascii_case(&given)) else { continue };
        let Some(mut replicas) = replicas(&mut specs, &given, role, "tensorflow", warnings)? else { continue };
        if dynamic && *role == "worker" {
            replicas.role.min = Some(1);
            warnings.push("spec.enableDynamicWorker: became spec.roles[worker].min of 1".to_owned());
        }
        roles.push(replicas);
    }
    roles.sort_by_key(|replicas| ROLES.iter().position(|(_, role)| *role == replicas.role.name));
    specs.rest(warnings);
    let path = spec.path("successPolicy");
    if spec.read::<String>("successPolicy")?.is_some_and(|policy| !policy.is_empty()) {
        warnings.push(format!(
            "{path}: is left out; the JobType says when the job is done: with its chief or first worker"
        ));
    }
    policy::apply(spec, roles, Restarts::ByRole("Never"), job, warnings)
}
