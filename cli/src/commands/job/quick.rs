//! A TrainingJob from flags alone.

use serde_json::{Map, Value, json};

use crate::args::job::QuickArgs;

/// The job that the flags describe; `None` without --name.
pub(super) fn job(args: &QuickArgs) -> Option<Value> {
    let name = args.name.as_ref()?;
    let mut limits = Map::new();
    for (resource, amount) in [("cpu", &args.cpus), ("memory", &args.memory)] {
        limits.extend(amount.as_ref().map(|amount| (resource.to_owned(), json!(amount))));
    }
    limits.extend(args.gpus.as_ref().map(|gpus| (gpus.resource.clone(), json!(gpus.count.to_string()))));
    let mut container = json!({"name": args.role, "image": args.image});
    if !args.command.is_empty() {
        container["command"] = json!(args.command);
    }
    if !limits.is_empty() {
        container["resources"] = json!({"limits": limits});
    }
    let role = json!({
        "name": args.role,
        "replicas": args.replicas,
        "template": {"spec": {"containers": [container]}},
    });
    let mut spec = json!({"type": args.kind, "roles": [role]});
    if !args.datasets.is_empty() {
        let mount = |mounted: &crate::args::job::Mounted| json!({"name": mounted.dataset, "mountPath": mounted.path});
        spec["datasets"] = args.datasets.iter().map(mount).collect();
    }
    if let Some(queue) = &args.queue {
        spec["queue"] = json!(queue);
    }
    Some(json!({
        "apiVersion": "larder.dev/v1alpha1",
        "kind": "TrainingJob",
        "metadata": {"name": name},
        "spec": spec,
    }))
}

#[cfg(test)]
mod tests {
    use clap::Parser;
    use larder_api::TrainingJob;

    use super::*;
    use crate::args::job::{JobCommand, SubmitArgs};
    use crate::args::{Cli, Command, JobArgs};

    fn submit(words: &[&str]) -> Result<SubmitArgs, clap::Error> {
        match Cli::try_parse_from([&["larder", "job", "submit"], words].concat())?.command {
            Command::Job(JobArgs { what: JobCommand::Submit(args) }) => Ok(args),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn the_flags_make_a_job_that_is_valid() {
        let words = "--type pytorch --name x --image i --replicas 4 --gpus 8 --cpus 16 --memory 64Gi --dataset \
                     imagenet:/data --queue q -- python train.py --name y";
        let args = submit(&words.split_whitespace().collect::<Vec<_>>()).unwrap();
        let value = job(&args.quick).unwrap();
        let container = json!({
            "name": "worker",
            "image": "i",
            "command": ["python", "train.py", "--name", "y"],
            "resources": {"limits": {"cpu": "16", "memory": "64Gi", "nvidia.com/gpu": "8"}},
        });
        let spec = json!({
            "type": "pytorch",
            "queue": "q",
            "datasets": [{"name": "imagenet", "mountPath": "/data"}],
            "roles": [{"name": "worker", "replicas": 4, "template": {"spec": {"containers": [container]}}}],
        });
        assert_eq!((&value["metadata"], &value["spec"]), (&json!({"name": "x"}), &spec));
        let mut made: TrainingJob = serde_json::from_value(value).unwrap();
        made.metadata.namespace = Some("team-a".to_owned());
        made.check().unwrap();
        let least = job(&submit(&["--name", "x", "--image", "i"]).unwrap().quick).unwrap();
        let template = json!({"spec": {"containers": [{"name": "worker", "image": "i"}]}});
        let role = json!({"name": "worker", "replicas": 1, "template": template});
        assert_eq!(least["spec"], json!({"type": "single", "roles": [role]}));
        serde_json::from_value::<TrainingJob>(least).unwrap().check().unwrap();
    }

    #[test]
    fn conflicting_flags_are_named() {
        assert_eq!(job(&submit(&["train.yaml"]).unwrap().quick), None);
        for (words, named) in [
            ("", "<FILE>"),
            ("--name x", "--image"),
            ("train.yaml --name x --image i", "--name"),
            ("train.yaml --queue q", "--name"),
            ("train.yaml --replicas 4", "--name"),
            ("train.yaml -- python train.py", "--name"),
            ("train.yaml --wait --dry-run", "--dry-run"),
            ("--name x --image i --replicas 0", "--replicas"),
            ("--name x --image i --gpus many", "--gpus"),
            ("--name x --image i --dataset imagenet", "--dataset"),
        ] {
            let error = submit(&words.split_whitespace().collect::<Vec<_>>()).unwrap_err().to_string();
            assert!(error.contains(named), "{words}: {error}");
        }
    }
}
