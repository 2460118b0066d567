//! Converts Kubeflow's TFJob, PyTorchJob and MPIJob to TrainingJobs.
//!
//! Invariant: nothing is dropped silently. Each field is converted, or named in a warning. `fields` warns about the
//! fields of an object that no conversion has taken.

mod fields;
mod mpi;
mod policy;
mod pytorch;
mod template;
mod tensorflow;

use serde_json::Value;

use crate::checked::InvalidField;
use crate::training_job::TrainingJob;
use fields::Fields;

/// A TrainingJob, and the differences from the manifest that it was converted from.
#[derive(Clone, Debug, PartialEq)]
pub struct Converted {
    /// The job.
    pub job: TrainingJob,
    /// Each warning names a field of the manifest, and says how it was handled.
    pub warnings: Vec<String>,
}

/// Converts a manifest. Errors: the kind is unknown, or a field cannot be parsed.
pub fn convert(manifest: &Value) -> Result<Converted, InvalidField> {
    let mut manifest = Fields::of("", manifest.clone())?;
    let version: String = manifest.read("apiVersion")?.unwrap_or_default();
    let kind: String = manifest.read("kind")?.unwrap_or_default();
    let of_kind = match (version.as_str(), kind.as_str()) {
        ("kubeflow.org/v1", "TFJob") => tensorflow::convert,
        ("kubeflow.org/v1", "PyTorchJob") => pytorch::convert,
        ("kubeflow.org/v1", "MPIJob") => mpi::convert_v1,
        ("kubeflow.org/v2beta1", "MPIJob") => mpi::convert_v2,
        _ => {
            return Err(InvalidField::new(
                "kind",
                format!("is {kind:?} of {version:?}; TFJob, PyTorchJob and MPIJob of kubeflow.org can be converted"),
            ));
        }
    };
    let mut warnings = Vec::new();
    let mut job = TrainingJob::new("", Default::default());
    metadata(&mut manifest, &mut job, &mut warnings)?;
    let mut spec = manifest.object("spec")?;
    of_kind(&mut spec, &mut job, &mut warnings)?;
    spec.rest(&mut warnings);
    manifest.rest(&mut warnings);
    if let Err(error) = job.check() {
        warnings.push(format!("the TrainingJob is not valid as it is: {error}"));
    }
    Ok(Converted { job, warnings })
}

fn metadata(manifest: &mut Fields, job: &mut TrainingJob, warnings: &mut Vec<String>) -> Result<(), InvalidField> {
    let mut metadata = manifest.object("metadata")?;
    job.metadata.name = metadata.read("name")?;
    job.metadata.namespace = metadata.read("namespace")?;
    job.metadata.labels = metadata.read("labels")?;
    job.metadata.annotations = metadata.read("annotations")?;
    metadata.rest(warnings);
    Ok(())
}
