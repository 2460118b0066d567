//! PyTorchJob: the type `pytorch`, or `pytorch-elastic` with an `elasticPolicy`.

use serde::Deserialize;
use serde_json::Value;

use super::fields::Fields;
use super::policy::{self, Restarts};
use super::template::{Replicas, replicas};
use crate::checked::InvalidField;
use crate::training_job::TrainingJob;

/// The name of the rendezvous port, in Kubeflow's templates and in Larder's.
const PORT: &str = "pytorchjob-port";

pub(super) fn convert(
    spec: &mut Fields,
    job: &mut TrainingJob,
    warnings: &mut Vec<String>,
) -> Result<(), InvalidField> {
    let elastic = spec.take("elasticPolicy").map(|given| Fields::of("spec.elasticPolicy", given)).transpose()?;
    let mut specs = spec.object("pytorchReplicaSpecs")?;
    let mut roles = Vec::new();
    for (name, role) in [("Master", "master"), ("Worker", "worker")] {
        roles.extend(replicas(&mut specs, name, role, "pytorch", warnings)?);
    }
    specs.rest(warnings);
    if let Some(processes) = spec.take("nprocPerNode") {
        roles.iter_mut().for_each(|replicas| set_processes(replicas, &processes));
    }
    job.spec.type_ = "pytorch".to_owned();
    if let Some(elastic) = elastic {
        job.spec.type_ = "pytorch-elastic".to_owned();
        match &mut roles[..] {
            [worker] if worker.role.name == "worker" => apply_elastic(elastic, worker, warnings)?,
            _ => return Err(InvalidField::new("spec.elasticPolicy", "needs the role Worker and no other")),
        }
    }
    policy::apply(spec, roles, Restarts::ByRole("OnFailure"), job, warnings)
}

/// A number, or one of torchrun's words such as `auto`.
fn set_processes(replicas: &mut Replicas, processes: &Value) {
    let text = processes.as_str().map_or_else(|| processes.to_string(), str::to_owned);
    match text.parse() {
        Ok(number) => replicas.set_processes(number),
        Err(_) => replicas.set_variable("PET_NPROC_PER_NODE", text),
    }
}

fn apply_elastic(mut elastic: Fields, worker: &mut Replicas, warnings: &mut Vec<String>) -> Result<(), InvalidField> {
    #[derive(Deserialize)]
    struct Setting {
        key: String,
        value: String,
    }
    worker.role.min = elastic.read("minReplicas")?;
    worker.role.max = elastic.read("maxReplicas")?;
    if let Some(port) = elastic.read("rdzvPort")? {
        worker.set_port(PORT, port);
    }
    if let Some(processes) = elastic.take("nProcPerNode") {
        set_processes(worker, &processes);
    }
    if let Some(restarts) = elastic.read::<u32>("maxRestarts")? {
        worker.set_variable("PET_MAX_RESTARTS", restarts.to_string());
    }
    if let Some(id) = elastic.read("rdzvId")? {
        worker.set_variable("PET_RDZV_ID", id);
    }
    if let Some(settings) = elastic.read::<Vec<Setting>>("rdzvConf")? {
        let settings: Vec<_> = settings.iter().map(|one| format!("{}={}", one.key, one.value)).collect();
        worker.set_variable("PET_RDZV_CONF", settings.join(","));
    }
    let path = elastic.path("rdzvBackend");
    if let Some(backend) = elastic.read::<String>("rdzvBackend")?.filter(|backend| backend != "c10d") {
        warnings.push(format!("{path}: is {backend}; the workers meet at the first of them by c10d"));
    }
    elastic.rest(warnings);
    Ok(())
}
