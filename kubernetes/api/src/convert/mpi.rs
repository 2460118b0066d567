//! MPIJob: the type `mpi`, or `horovod` if the launcher runs horovodrun.

use super::fields::Fields;
use super::policy::{self, Restarts};
use super::template::replicas;
use crate::checked::InvalidField;
use crate::training_job::TrainingJob;

/// Converts version 1, whose launcher is a pod.
pub(super) fn convert_v1(
    spec: &mut Fields,
    job: &mut TrainingJob,
    warnings: &mut Vec<String>,
) -> Result<(), InvalidField> {
    convert(spec, Restarts::ByRole("Never"), job, warnings)
}

/// Converts version 2, whose launcher is a batch Job.
pub(super) fn convert_v2(
    spec: &mut Fields,
    job: &mut TrainingJob,
    warnings: &mut Vec<String>,
) -> Result<(), InvalidField> {
    convert(spec, Restarts::ByJob(6), job, warnings)
}

fn convert(
    spec: &mut Fields,
    who: Restarts,
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
        let command = worker.words().collect::<Vec<_>>().join(" ");
        if !command.is_empty() {
            let what = if runs_sshd_alone(&command) {
                "its command, sshd, is left out; the JobType's agent runs".to_owned()
            } else {
                format!(
                    "its command, `{command}`, is left out, as the JobType's agent must run; what it prepares belongs \
                     into the image or an init container"
                )
            };
            warnings.push(format!("{}: {what}", worker.path));
            worker.clear_command();
        }
    }
    let horovod = launcher.iter().find(|launcher| launcher.words().any(|word| word.ends_with("horovodrun")));
    job.spec.type_ = if horovod.is_some() { "horovod" } else { "mpi" }.to_owned();
    if let Some(launcher) = horovod.filter(|launcher| !launcher.words().any(|word| word.contains("PATH=/larder:"))) {
        warnings.push(format!(
            "{}: horovodrun calls ssh, which is in /larder: start it by sh -c 'PATH=/larder:$PATH exec horovodrun ...'",
            launcher.path
        ));
    }
    if spec.take("sshAuthMountPath").is_some() {
        warnings.push("spec.sshAuthMountPath: is left out; there is no ssh, and programs must not call it".to_owned());
    }
    // Larder's launchers always wait for their workers, so the policy is not needed.
    spec.take("launcherCreationPolicy");
    // The type's files and variables work for Open MPI, Intel MPI and MPICH.
    let implementation: Option<String> = spec.read("mpiImplementation")?;
    if let Some(other) = implementation.filter(|name| !["OpenMPI", "Intel", "MPICH"].contains(&name.as_str())) {
        warnings.push(format!("spec.mpiImplementation: is {other}, which is not known"));
    }
    if spec.read::<bool>("runLauncherAsWorker")?.unwrap_or_default() {
        warnings
            .push("spec.runLauncherAsWorker: is left out; add a worker, as the launcher is in no hostfile".to_owned());
    }
    // In version 1, the policy is here and not in `runPolicy`.
    let path = spec.path("cleanPodPolicy");
    let clean: Option<String> = spec.read("cleanPodPolicy")?;
    policy::apply(spec, launcher.into_iter().chain(worker).collect(), who, job, warnings)?;
    if let Some(clean) = clean {
        let kept = policy::keep_pods(&path, &clean, warnings);
        if job.spec.keep_pods.is_none() {
            job.spec.keep_pods = kept;
        } else if job.spec.keep_pods != kept {
            warnings.push(format!("{path}: is left out, as spec.runPolicy.cleanPodPolicy decides"));
        }
    }
    Ok(())
}

/// True if a worker's command only runs sshd.
fn runs_sshd_alone(command: &str) -> bool {
    let mut words = command.split_whitespace().skip_while(|word| ["sh", "bash", "-c", "exec"].contains(&program(word)));
    words.next().is_some_and(|word| program(word) == "sshd") && !command.contains([';', '&', '|'])
}

fn program(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or(path)
}
