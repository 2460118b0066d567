//! `larder version`: the version of this command, of the programs that serve this machine's mounts, and of the
//! cluster's programs and definitions.

mod skew;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::bail;
use k8s_openapi::api::core::v1::{Container, Pod};
use larder_api::definitions;
use larder_api::names::SYSTEM_NAMESPACE;
use larder_daemon_api::mountinfo::larder_mounts;
use larder_dataset::Chain;
use larder_kube::Error;
use serde::{Deserialize, Serialize};

use crate::args::VersionArgs;
use crate::cluster::{Asked, Cluster, DEFINITION, POD, is_denied, typed};
use crate::mount_stats::{is_foreign, read_all};
use crate::{output, source};
use skew::is_supported;

const OWN: &str = env!("CARGO_PKG_VERSION");
/// The labels of the pods of Larder's programs.
const SELECTOR: &str =
    "app.kubernetes.io/name in (larderd, larder-csi, larder-controller, larder-scheduler, larder-devices)";
/// The time for the mounts to answer. The process of one may be away.
const PATIENCE: Duration = Duration::from_secs(5);
/// The most places that a line of the table names.
const NAMED: usize = 3;

/// A program that runs in one version.
#[derive(Debug, Serialize)]
struct Running {
    program: String,
    version: String,
    /// The nodes of its pods.
    nodes: Vec<String>,
}

/// The process that serves a mount of this machine.
#[derive(Debug, Serialize)]
struct Mounted {
    dir: PathBuf,
    version: String,
}

/// The versions of a kind of objects.
#[derive(Debug, Serialize)]
struct Definition {
    kind: String,
    served: Vec<String>,
    /// The versions in which the API server may have stored objects.
    stored: Vec<String>,
}

#[derive(Debug, Default, Serialize)]
struct Report {
    version: &'static str,
    mounts: Vec<Mounted>,
    programs: Vec<Running>,
    definitions: Vec<Definition>,
}

pub(crate) fn run(args: &VersionArgs) -> anyhow::Result<ExitCode> {
    if args.all {
        return source::runtime()?.block_on(all(args));
    }
    if args.json {
        output::json(&serde_json::json!({"version": OWN}))?;
    } else {
        output::line(format_args!("larder {OWN}"))?;
    }
    Ok(ExitCode::SUCCESS)
}

async fn all(args: &VersionArgs) -> anyhow::Result<ExitCode> {
    let mut report = Report { version: OWN, mounts: mounts(), ..Report::default() };
    let is_named = args.cluster.kubeconfig.is_some() || args.cluster.context.is_some();
    match Cluster::of(&args.cluster).await {
        Ok(cluster) => {
            report.programs = programs(&cluster).await?;
            report.definitions = kinds(&cluster).await?;
        }
        Err(error) if is_named => return Err(error),
        Err(error) => output::note(format_args!("no cluster is shown: {}", Chain(&*error))),
    }
    if args.json {
        output::json(&report)?;
    } else {
        output::text(&table(&report))?;
    }
    if !works_together(&report) {
        bail!(
            "these versions are more than one minor version apart, which is not supported: upgrade one minor version \
             after the other (docs/VERSIONS.md)"
        );
    }
    Ok(ExitCode::SUCCESS)
}

/// Whether this command works with the programs of the cluster, and with those behind the mounts. These two never meet.
fn works_together(report: &Report) -> bool {
    let mounted: Vec<&str> = report.mounts.iter().map(|mounted| mounted.version.as_str()).collect();
    let running: Vec<&str> = report.programs.iter().map(|running| running.version.as_str()).collect();
    [mounted, running].into_iter().all(|side| is_supported(side.into_iter().chain([report.version])))
}

/// The mounts of this machine whose processes answer. A note names each of the others, but for those of other users
/// who share theirs with nobody.
fn mounts() -> Vec<Mounted> {
    let mut dirs: Vec<PathBuf> = larder_mounts().into_iter().map(|mount| mount.path).collect();
    dirs.sort();
    dirs.dedup();
    let all = read_all(&dirs, PATIENCE);
    let mut answered = Vec::new();
    for (dir, stats) in dirs.into_iter().zip(all) {
        match stats {
            Ok(stats) => answered.push(Mounted { dir, version: stats.process.version }),
            Err(error) if is_foreign(&error) => {}
            Err(error) => output::note(format_args!("no version of a mount: {}", Chain(&*error))),
        }
    }
    answered
}

/// The programs of the cluster, by the tags of their pods' images.
async fn programs(cluster: &Cluster) -> anyhow::Result<Vec<Running>> {
    let asked = Asked::all(POD, Some(SYSTEM_NAMESPACE));
    let mut nodes_of = BTreeMap::<(String, String), Vec<String>>::new();
    let listed = cluster.list(&asked, Some(SELECTOR.to_owned()), |object| {
        let spec = typed::<Pod>(object).ok().and_then(|pod| pod.spec).unwrap_or_default();
        for program in spec.containers.iter().filter_map(running) {
            nodes_of.entry(program).or_default().push(spec.node_name.clone().unwrap_or_else(|| "no node".to_owned()));
        }
    });
    match listed.await {
        Err(error) if is_denied(&error) => {
            output::note(format_args!(
                "you may not list the pods of {SYSTEM_NAMESPACE}: the cluster's programs are not shown"
            ));
        }
        listed => listed.map_err(|error| cluster.in_words(error, &asked))?,
    }
    let running = |((program, version), nodes)| Running { program, version, nodes };
    Ok(nodes_of.into_iter().map(running).collect())
}

/// The program of a container and its version, unless the program is not Larder's.
fn running(container: &Container) -> Option<(String, String)> {
    let program = container.command.as_ref()?.first().filter(|program| program.starts_with("larder"))?;
    let image = container.image.as_deref().unwrap_or_default();
    let name = image.split_once('@').map_or(image, |(name, _digest)| name);
    let tag = name.rsplit_once(':').map(|(_, tag)| tag).filter(|tag| !tag.contains('/'));
    Some((program.clone(), tag.map_or("unknown", |tag| tag.strip_prefix('v').unwrap_or(tag)).to_owned()))
}

/// The definitions of Larder's kinds that the cluster has.
async fn kinds(cluster: &Cluster) -> anyhow::Result<Vec<Definition>> {
    let mut found = Vec::new();
    for name in definitions::all().into_iter().filter_map(|definition| definition.metadata.name) {
        match cluster.api(DEFINITION, None).get(&name).await {
            Ok(object) => found.extend(parsed(object.data)),
            Err(Error::Api(status)) if status.code == 404 => {}
            Err(error) if is_denied(&error) => {
                output::note(format_args!("you may not get CustomResourceDefinitions: they are not shown"));
                break;
            }
            Err(error) => {
                let asked = Asked { right: "get", kind: DEFINITION, namespace: None, name: &name };
                return Err(cluster.in_words(error, &asked));
            }
        }
    }
    Ok(found)
}

/// The versions in a CustomResourceDefinition. Its schemas are not looked at.
fn parsed(data: serde_json::Value) -> Option<Definition> {
    #[derive(Deserialize)]
    struct Parts {
        spec: Spec,
        #[serde(default)]
        status: Status,
    }
    #[derive(Deserialize)]
    struct Spec {
        names: Names,
        versions: Vec<Version>,
    }
    #[derive(Deserialize)]
    struct Names {
        kind: String,
    }
    #[derive(Deserialize)]
    struct Version {
        name: String,
        served: bool,
    }
    #[derive(Default, Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Status {
        #[serde(default)]
        stored_versions: Vec<String>,
    }
    let Parts { spec, status } = serde_json::from_value(data).ok()?;
    let served = spec.versions.into_iter().filter(|version| version.served).map(|version| version.name).collect();
    Some(Definition { kind: spec.names.kind, served, stored: status.stored_versions })
}

fn table(report: &Report) -> String {
    let row = |program: &str, version: &str, place: String| [program.to_owned(), version.to_owned(), place];
    let mut rows = vec![row("larder", OWN, "this command".to_owned())];
    for Mounted { dir, version } in &report.mounts {
        rows.push(row("larderd", version, dir.display().to_string()));
    }
    for Running { program, version, nodes } in &report.programs {
        let place = if nodes.len() > NAMED { output::count(nodes.len() as u64, "pod") } else { nodes.join(", ") };
        rows.push(row(program, version, place));
    }
    for Definition { kind, served, stored } in &report.definitions {
        rows.push(row(kind, &served.join(", "), format!("stored as {}", stored.join(", "))));
    }
    output::table(["PROGRAM", "VERSION", "WHERE"], &rows)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_version_of_a_container_is_the_tag_of_its_image() {
        let of = |image: &str| {
            let command = Some(vec!["larderd".to_owned()]);
            running(&Container { command, image: Some(image.to_owned()), ..Container::default() }).map(|found| found.1)
        };
        for (image, version) in [
            ("larder.invalid/larder:0.3.0", "0.3.0"),
            ("registry.example:5000/larder:v0.3.0", "0.3.0"),
            ("larder:0.3.0@sha256:12", "0.3.0"),
            ("registry.example:5000/larder@sha256:12", "unknown"),
            ("larder", "unknown"),
        ] {
            assert_eq!(of(image).as_deref(), Some(version), "{image}");
        }
        let other = Container { command: Some(vec!["kube-scheduler".to_owned()]), ..Container::default() };
        assert_eq!(running(&other), None);
    }

    #[test]
    fn mounts_of_this_machine_need_not_work_with_the_cluster() {
        let report = |mounted: &str, running: &str| Report {
            version: "0.3.0",
            mounts: vec![Mounted { dir: "/data".into(), version: mounted.to_owned() }],
            programs: vec![Running { program: "larderd".to_owned(), version: running.to_owned(), nodes: Vec::new() }],
            definitions: Vec::new(),
        };
        assert!(works_together(&report("0.2.0", "0.4.0")));
        assert!(!works_together(&report("0.1.0", "0.3.0")));
        assert!(!works_together(&report("0.3.0", "0.5.0")));
    }
}
