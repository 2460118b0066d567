//! The flags of a job without a manifest.

use std::str::FromStr;

use clap::Args;

/// Every flag requires `--name`.
#[derive(Debug, Args)]
#[command(next_help_heading = "A job without a manifest")]
pub(crate) struct QuickArgs {
    /// The name of the job.
    #[arg(long, value_name = "NAME", conflicts_with = "files", requires = "image")]
    pub(crate) name: Option<String>,
    /// The JobType. Types that need more than one role, such as mpi, require a manifest.
    #[arg(long = "type", value_name = "TYPE", default_value = "single", requires = "name")]
    pub(crate) kind: String,
    /// The container image.
    #[arg(long, value_name = "IMAGE", requires = "name")]
    pub(crate) image: Option<String>,
    /// The role of the pods, as defined by the JobType.
    #[arg(long, value_name = "ROLE", default_value = "worker", requires = "name")]
    pub(crate) role: String,
    /// Number of pods.
    #[arg(long, value_name = "N", default_value_t = 1, requires = "name", value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub(crate) replicas: u32,
    /// GPUs per pod: N of nvidia.com/gpu, or RESOURCE=N.
    #[arg(long, value_name = "N", requires = "name")]
    pub(crate) gpus: Option<Gpus>,
    /// CPUs per pod. Default: the JobType's.
    #[arg(long, value_name = "AMOUNT", requires = "name")]
    pub(crate) cpus: Option<String>,
    /// Memory per pod, such as 64Gi. Default: the JobType's.
    #[arg(long, value_name = "AMOUNT", requires = "name")]
    pub(crate) memory: Option<String>,
    /// A Dataset and the directory to mount it at in the pods. May be repeated.
    #[arg(long = "dataset", value_name = "DATASET:DIR", requires = "name")]
    pub(crate) datasets: Vec<Mounted>,
    /// The Queue to submit the job to.
    #[arg(long, value_name = "QUEUE", requires = "name")]
    pub(crate) queue: Option<String>,
    /// The command to run, after --. Default: the image's command.
    #[arg(last = true, value_name = "COMMAND", requires = "name")]
    pub(crate) command: Vec<String>,
}

/// A number of GPUs of an extended resource.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Gpus {
    pub(crate) resource: String,
    pub(crate) count: u32,
}

impl FromStr for Gpus {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (resource, count) = text.split_once('=').unwrap_or(("nvidia.com/gpu", text));
        let count = count.parse().map_err(|_| "expected a number such as 8, or RESOURCE=8".to_owned())?;
        Ok(Self { resource: resource.to_owned(), count })
    }
}

/// A dataset and its directory in the pods.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Mounted {
    pub(crate) dataset: String,
    pub(crate) path: String,
}

impl FromStr for Mounted {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.split_once(':') {
            Some((dataset, path)) if !dataset.is_empty() && path.starts_with('/') => {
                Ok(Self { dataset: dataset.to_owned(), path: path.to_owned() })
            }
            _ => Err("expected a Dataset and a directory, such as imagenet:/data or team-b/coco:/data".to_owned()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gpus_and_datasets_are_parsed() {
        let gpus = |text: &str| text.parse::<Gpus>().map(|gpus| (gpus.resource, gpus.count));
        assert_eq!(gpus("8"), Ok(("nvidia.com/gpu".to_owned(), 8)));
        assert_eq!(gpus("amd.com/gpu=4"), Ok(("amd.com/gpu".to_owned(), 4)));
        assert!(gpus("many").is_err() && gpus("-1").is_err() && gpus("1.5").is_err());
        let mounted = |text: &str| text.parse::<Mounted>().map(|mounted| (mounted.dataset, mounted.path));
        assert_eq!(mounted("team-b/coco:/data"), Ok(("team-b/coco".to_owned(), "/data".to_owned())));
        assert!(mounted("imagenet").is_err() && mounted(":/data").is_err() && mounted("imagenet:data").is_err());
    }
}
