//! `larder job diff`: the difference between the jobs of the cluster and the same jobs after `larder job submit`.

use std::io::Write;
use std::process::{Command, ExitCode, Stdio};

use anyhow::{Context, bail};
use larder_kube::api::DynamicObject;
use serde_json::{Value, json};

use super::manifest::{self, Manifest, remove_what_the_cluster_adds};
use super::{convert, submit};
use crate::args::cluster::ObjectKey;
use crate::args::job::DiffArgs;
use crate::cluster::{Asked, Cluster, JOB};
use crate::output;

/// The exit code if the comparison failed. 1 says that there are differences, as with `diff` and `kubectl diff`.
const FAILED: u8 = 2;

pub(super) async fn run(args: &DiffArgs) -> anyhow::Result<ExitCode> {
    match differ(args).await {
        Ok(true) => Ok(ExitCode::FAILURE),
        Ok(false) => Ok(ExitCode::SUCCESS),
        Err(error) if error.is::<output::ReaderGone>() => Err(error),
        Err(error) => {
            output::error(&error);
            Ok(ExitCode::from(FAILED))
        }
    }
}

/// Prints the differences of all jobs. Returns false if there are none.
async fn differ(args: &DiffArgs) -> anyhow::Result<bool> {
    let mut manifests = manifest::read(&args.files)?;
    let cluster = Cluster::within(&args.cluster, &args.namespace).await?;
    let mut differ = false;
    for found in &mut manifests {
        let key = submit::place(found, args.namespace.namespace.as_deref(), &cluster.namespace)?;
        found.job.check().with_context(|| found.from.clone())?;
        if found.was.is_some() {
            convert::note(found);
        }
        differ |= differs(&cluster, found, &key).await?;
    }
    Ok(differ)
}

async fn differs(cluster: &Cluster, found: &Manifest, key: &ObjectKey) -> anyhow::Result<bool> {
    let live = cluster.api(JOB, Some(&key.namespace)).get_opt(&key.name).await;
    let live = live.map_err(|error| cluster.in_words(error, &Asked::one("get", JOB, &key.namespace, &key.name)))?;
    let (merged, _) = submit::try_out(cluster, found, key).await?;
    let before = live.map(|live| text(&live)).transpose()?.unwrap_or_default();
    let difference = unified(key, &before, &text(&merged)?)?;
    output::text(&difference)?;
    Ok(!difference.is_empty())
}

/// An object as YAML, without the fields that the cluster adds.
fn text(object: &DynamicObject) -> anyhow::Result<String> {
    let mut value: Value = json!(object);
    remove_what_the_cluster_adds(&mut value);
    manifest::yaml(std::iter::once(&value))
}

/// The unified difference of two texts; empty if they are equal.
fn unified(key: &ObjectKey, live: &str, merged: &str) -> anyhow::Result<String> {
    if live == merged {
        return Ok(String::new());
    }
    let file = |text: &str| -> anyhow::Result<tempfile::NamedTempFile> {
        let mut file = tempfile::NamedTempFile::new()?;
        file.write_all(text.as_bytes())?;
        Ok(file)
    };
    let (live, merged) =
        (file(live).context("write a temporary file")?, file(merged).context("write a temporary file")?);
    let mut diff = Command::new("diff");
    diff.arg("-u").args(["-L", &format!("live/{key}"), "-L", &format!("merged/{key}")]);
    diff.arg(live.path()).arg(merged.path()).stdin(Stdio::null());
    let printed = diff.output().context("run diff: install diffutils")?;
    if printed.status.code() != Some(1) {
        bail!("diff failed ({}): {}", printed.status, String::from_utf8_lossy(&printed.stderr).trim());
    }
    Ok(String::from_utf8_lossy(&printed.stdout).into_owned())
}
