//! Larder in a cluster: the image, and what a user applies.

use std::process::Command;

use larder_testkit::{Cluster, built, repository};

use crate::certificates::Authority;

/// The programs of the image.
const PROGRAMS: [&str; 9] = [
    "larder",
    "larderd",
    "larder-csi",
    "cachenode",
    "larder-controller",
    "larder-scheduler-ext",
    "larder-devices",
    "static/larder-agent",
    "static/larder-rdma-limit",
];

/// The ways in which tests deploy Larder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Deployment {
    /// As the README says: `kubectl apply -k deploy`.
    Plain,
    /// With the component `sharing`, and certificates of an authority of the test's own.
    Sharing,
    /// With the components `datasets` and `jobs`.
    Datasets,
    /// With both charts, the component `datasets` and the startup taint.
    Chart,
}

impl Deployment {
    /// Deploys Larder this way, unless an earlier test did.
    pub(super) fn ensure(self, cluster: &Cluster) {
        let (note, name) = (cluster.note("deployed"), format!("{self:?}"));
        match std::fs::read_to_string(&note) {
            Ok(deployed) if deployed == name => return,
            Ok(_) => {
                cluster.kubectl_ok(&["delete", "-k", deploy().to_str().unwrap()]);
            }
            // The image outlives a chart that is uninstalled.
            Err(_) => cluster.once("larder", || load_larder(cluster)),
        }
        match self {
            Self::Plain => apply(cluster, ""),
            Self::Sharing => {
                make_certificates(cluster);
                apply(cluster, "components: [../deploy/components/sharing]");
            }
            Self::Datasets => deploy_with(cluster, &["datasets", "jobs"]),
            Self::Chart => helm_upgrade(cluster, &[]),
        }
        std::fs::write(note, name).unwrap();
    }
}

/// Deploys Larder with these components, of which `jobs` is one.
pub fn deploy_with(cluster: &Cluster, components: &[&str]) {
    // The definitions must be served before there are objects of them.
    cluster.kubectl_ok(&["apply", "--server-side", "-k", deploy().join("crds").to_str().unwrap()]);
    cluster.kubectl_ok(&["wait", "--for=condition=Established", "crd", "--all"]);
    let folders: Vec<String> = components.iter().map(|name| format!("../deploy/components/{name}")).collect();
    apply(cluster, &format!("components: [{}]", folders.join(", ")));
    // No test of programs is about quota.
    let without = r#"{"spec":{"jobsWithoutQueue":true}}"#;
    cluster.kubectl_ok(&["patch", "lardersettings", "larder", "--type=merge", "-p", without]);
}

fn deploy() -> std::path::PathBuf {
    repository().join("deploy")
}

/// Applies `deploy` with an overlay that has these lines.
fn apply(cluster: &Cluster, lines: &str) {
    // An overlay names its base by a relative path.
    let overlay = tempfile::tempdir().unwrap();
    let copied = Command::new("cp").arg("-r").arg(deploy()).arg(overlay.path().join("deploy")).status();
    assert!(copied.unwrap().success(), "copy deploy");
    let ours = overlay.path().join("ours");
    std::fs::create_dir(&ours).unwrap();
    // A test may run on a disk that is almost full, and on two CPUs. It waits for every update of a DaemonSet, so that is
    // made on both nodes at once.
    let text = format!(
        r#"resources: [../deploy]
{lines}
patches:
  - target: {{kind: DaemonSet, name: larderd}}
    patch: |
      - {{op: add, path: /spec/template/spec/containers/0/args/-, value: "--keep-free=0%"}}
      - {{op: replace, path: /spec/template/spec/containers/0/resources/requests/cpu, value: 250m}}
      - {{op: replace, path: /spec/updateStrategy/rollingUpdate/maxUnavailable, value: 2}}
  - target: {{kind: DaemonSet, name: larder-csi}}
    patch: |
      - {{op: replace, path: /spec/updateStrategy/rollingUpdate/maxUnavailable, value: 2}}
"#
    );
    std::fs::write(ours.join("kustomization.yaml"), text).unwrap();
    cluster.kubectl_ok(&["apply", "-k", ours.to_str().unwrap()]);
}

/// Runs helm in a cluster, which must succeed.
fn helm(cluster: &Cluster, args: &[&str]) {
    let script = repository().join("tests/cluster/helm.sh");
    let done = cluster.exec(&[&[script.to_str().unwrap()][..], args].concat());
    assert!(done.status.success(), "helm {args:?}: {}", String::from_utf8_lossy(&done.stderr));
}

/// Installs the charts, or upgrades them: `larder` to these settings beside those of all tests.
pub(super) fn helm_upgrade(cluster: &Cluster, settings: &[&str]) {
    let upgrade = |chart: &str, more: &[&str]| {
        let folder = deploy().join("charts").join(chart);
        let mut args = vec!["upgrade", "--install", chart, folder.to_str().unwrap()];
        args.extend(["--namespace", "larder-system", "--create-namespace"]);
        // An earlier test may have left some of the objects.
        args.push("--take-ownership");
        helm(cluster, &[&args, more].concat());
    };
    upgrade("larder-crds", &["--wait"]);
    let always = [
        // A test may run on a disk that is almost full, and on two CPUs.
        "cache.keepFree=0%",
        "larderd.resources.requests.cpu=250m",
        "datasets.enabled=true",
        "startupTaint.enabled=true",
    ];
    let flags: Vec<&str> = always.iter().chain(settings).flat_map(|&setting| ["--set", setting]).collect();
    upgrade("larder", &flags);
}

/// Removes what the chart `larder` has installed. The next test deploys Larder anew.
pub(super) fn helm_uninstall(cluster: &Cluster) {
    helm(cluster, &["uninstall", "larder", "--namespace", "larder-system", "--wait"]);
    std::fs::remove_file(cluster.note("deployed")).unwrap();
}

fn make_certificates(cluster: &Cluster) {
    let authority = Authority::new("nodes");
    let papers = tempfile::tempdir().unwrap();
    let path = |name: &str| papers.path().join(name);
    authority.issue("larderd").write(&path("tls.crt"), &path("tls.key"));
    std::fs::write(path("ca.crt"), authority.pem()).unwrap();
    cluster.kubectl_ok(&["apply", "-f", deploy().join("namespace.yaml").to_str().unwrap()]);
    cluster.kubectl_ok(&[
        "create",
        "secret",
        "generic",
        "larder-peers",
        "--namespace=larder-system",
        &format!("--from-file={}", papers.path().display()),
    ]);
}

/// Gives Larder's image to all nodes.
pub fn load_larder(cluster: &Cluster) {
    let folder = tempfile::tempdir().unwrap();
    let image = folder.path().join("larder.tar");
    let bin = PROGRAMS.map(built)[0].parent().expect("programs are in a folder").to_owned();
    // Half a minute is saved: the programs of tests are large.
    let mut build = Command::new(deploy().join("images/build"));
    let made = build.arg("--uncompressed").arg("--bin").arg(bin).arg(&image).output().unwrap();
    assert!(made.status.success(), "build the image: {}", String::from_utf8_lossy(&made.stderr));
    cluster.load_image(&image);
}
