//! Kubeflow's TFJob, PyTorchJob and MPIJob as TrainingJobs.
//!
//! Invariant: nothing is dropped without a word. Each field is taken, or named in a warning; what is left of an object after
//! all that is known was taken is named by `fields`.

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

/// A TrainingJob, and what it lacks of the manifest that it was made from.
#[derive(Clone, Debug, PartialEq)]
pub struct Converted {
    /// The job.
    pub job: TrainingJob,
    /// Each names a field of the manifest, and what has become of it.
    pub warnings: Vec<String>,
}

/// Converts a manifest. Errors: it is of no kind that is known, or a field has no form that could be read.
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
