//! MPIJob: the type `mpi`, or `horovod` if the launcher runs horovodrun.

use super::fields::Fields;
use super::policy;
use super::template::replicas;
use crate::checked::InvalidField;
use crate::training_job::{KeepPods, TrainingJob};

pub(super) fn convert(
    spec: &mut Fields,
    job: &mut TrainingJob,
    warnings: &mut Vec<String>,
) -> Result<(), InvalidField> {
    let slots = spec.read("slotsPerWorker")?.unwrap_or(1);
    // The main container of a launcher may have any name; version 1 can name it.
    let main: String = spec.read("mainContainer")?.unwrap_or_default();
    let mut specs = spec.object("mpiReplicaSpecs")?;
    let launcher = replicas(&mut specs, "Launcher", "launcher", &main, warnings)?;
    let mut worker = replicas(&mut specs, "Worker", "worker", &main, warnings)?;
    specs.rest(warnings);
    if let Some(worker) = &mut worker {
        worker.set_processes(slots);
        if worker.words().any(|word| word.ends_with("sshd")) {
            warnings
                .push("spec.mpiReplicaSpecs.Worker: its command, sshd, is left out; the JobType's agent runs".into());
            worker.clear_command();
        }
    }
    let is_horovod = launcher.iter().any(|launcher| launcher.words().any(|word| word.ends_with("horovodrun")));
    job.spec.type_ = if is_horovod { "horovod" } else { "mpi" }.to_owned();
    if spec.take("sshAuthMountPath").is_some() {
        warnings.push("spec.sshAuthMountPath: is left out; there is no ssh, and programs must not call it".to_owned());
    }
    // Every launcher of ours waits for its workers.
    spec.take("launcherCreationPolicy");
    // The files and variables of the type serve Open MPI, Intel MPI and MPICH.
    let implementation: Option<String> = spec.read("mpiImplementation")?;
    if let Some(other) = implementation.filter(|name| !["OpenMPI", "Intel", "MPICH"].contains(&name.as_str())) {
        warnings.push(format!("spec.mpiImplementation: is {other}, which is not known"));
    }
    if spec.read::<bool>("runLauncherAsWorker")?.unwrap_or_default() {
        warnings
            .push("spec.runLauncherAsWorker: is left out; add a worker, as the launcher is in no hostfile".to_owned());
    }
    // Version 1 has it here.
    let clean: Option<String> = spec.read("cleanPodPolicy")?;
    policy::apply(spec, launcher.into_iter().chain(worker).collect(), job, warnings)?;
    if let (None, Some(clean)) = (job.spec.keep_pods, clean) {
        job.spec.keep_pods = match clean.as_str() {
            "All" => Some(KeepPods::None),
            "None" => Some(KeepPods::All),
            _ => Some(KeepPods::Ended),
        };
    }
    Ok(())
}
