//! The hook that limits RDMA objects. The container runtime runs it once for each container with an HCA.

use std::fmt;
use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Instant;

use anyhow::{Context, ensure};
use serde::Serialize;
use serde_json::json;

use larder_epochs::figures::Latencies;

/// The times of the hook in one round.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct HookRow {
    pub round: u32,
    /// From the start of the process to its end.
    pub times: Latencies,
}

impl fmt::Display for HookRow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the hook: {}", self.times.milliseconds())
    }
}

/// Runs the hook for a container in a fake cgroup hierarchy.
pub(super) fn measure(round: u32, program: &Path, calls: u32) -> anyhow::Result<HookRow> {
    let folder = tempfile::tempdir().context("make a temporary folder")?;
    let (cgroups, processes) = (folder.path().join("cgroup"), folder.path().join("proc"));
    let (group, process) = (cgroups.join("rdma/kubepods/container"), processes.join("42"));
    for made in [&group, &process] {
        std::fs::create_dir_all(made).with_context(|| format!("make {}", made.display()))?;
    }
    std::fs::write(process.join("cgroup"), "8:rdma:/kubepods/container\n").context("make a process's cgroups up")?;
    let state = json!({"ociVersion": "1.0.2", "id": "container", "status": "creating", "pid": 42, "bundle": "/"});
    let state = state.to_string();
    let mut times = Vec::new();
    for _ in 0..calls {
        // Emptied before each run: the kernel's file takes one line per write, but this plain file would grow.
        std::fs::write(group.join("rdma.max"), "").context("make a cgroup's limits up")?;
        let mut command = Command::new(program);
        command.args(["--max", "mlx5_0 hca_handle=2 hca_object=2000"]);
        command.arg("--cgroup-root").arg(&cgroups).arg("--proc-root").arg(&processes);
        let begun = Instant::now();
        let mut child =
            command.stdin(Stdio::piped()).spawn().with_context(|| format!("start {}", program.display()))?;
        let mut input = child.stdin.take().context("speak to the hook")?;
        input.write_all(state.as_bytes()).context("speak to the hook")?;
        drop(input);
        let ended = child.wait().context("wait for the hook")?;
        times.push(begun.elapsed());
        ensure!(ended.success(), "the hook fails: {ended}");
    }
    Ok(HookRow { round, times: Latencies::of(times.into_iter()) })
}
