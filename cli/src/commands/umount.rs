//! `larder umount`

use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::bail;
use larder_daemon_api::mountinfo::larder_mounts;
use larder_dataset::{Chain, larder_command, shell_word};
use larder_fs::mount::unmount;

use crate::args::UmountArgs;
use crate::{daemon, mount_stats, source};

/// How long the mount may take to say which process serves it.
const ANSWER: Duration = Duration::from_secs(5);

pub(crate) fn run(args: &UmountArgs) -> anyhow::Result<ExitCode> {
    // A dead mount cannot be resolved, but its parent folder can.
    let resolved = args.dir.canonicalize().or_else(|_| {
        let parent = args.dir.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(".".as_ref());
        Ok::<_, std::io::Error>(parent.canonicalize()?.join(args.dir.file_name().unwrap_or_default()))
    })?;
    if !larder_mounts().iter().any(|mount| mount.path == resolved) {
        bail!("{} is not a Larder mount: `larder stats` lists the mounts of this machine", args.dir.display());
    }
    // A dead mount has no stats, which would contain the id of its process, and that of a service that cannot start
    // does not answer.
    let stats = mount_stats::read_all(std::slice::from_ref(&resolved), ANSWER).pop();
    let server = stats.and_then(Result::ok).map(|stats| stats.process);
    let asked = match server.as_ref().and_then(|process| process.socket.as_deref()) {
        Some(socket) => {
            let runtime = source::runtime()?;
            runtime.block_on(async {
                match daemon::at(socket).await? {
                    Some(mut daemon) => daemon.unmount(&resolved, args.lazy).await,
                    None => Ok(None),
                }
            })
        }
        None => Ok(None),
    };
    // A process ends with its last mount, possibly before it answers.
    let is_gone = || !larder_mounts().iter().any(|mount| mount.path == resolved);
    let ended = match asked {
        Ok(Some(leaving)) => Ok(leaving),
        _ if is_gone() => Ok(true),
        // There is no daemon, or the daemon does not know this mount: the kernel unmounts it.
        Ok(None) => match unmount(&resolved, args.lazy) {
            Err(_) if is_gone() => Ok(true),
            unmounted => unmounted.map(|()| true).map_err(Into::into),
        },
        Err(error) => Err(error),
    };
    match ended {
        Ok(leaving) => {
            if let Some(process) = server.filter(|_| leaving && !args.lazy) {
                wait_for_end(process.pid);
            }
            Ok(ExitCode::SUCCESS)
        }
        Err(error) if !args.lazy => {
            bail!(
                "{}: if files are in use, stop their readers (`fuser -m {}` lists them) or run `{}`",
                Chain(&*error),
                shell_word(&args.dir.to_string_lossy()),
                larder_command(&["umount", "--lazy", &args.dir.to_string_lossy()])
            )
        }
        Err(error) => Err(error),
    }
}

/// Waits, within a timeout, until the process that served the mount has closed its cache, so that the next mount can
/// use it.
fn wait_for_end(pid: u32) {
    const TIMEOUT: Duration = Duration::from_secs(30);
    let started = Instant::now();
    // The daemon's PID namespace may differ from this one, where the id may belong to another process or to none.
    let serves = || {
        std::fs::read_to_string(format!("/proc/{pid}/stat"))
            .is_ok_and(|stat| stat.contains("(larder) ") && !stat.contains(") Z "))
    };
    while serves() && started.elapsed() < TIMEOUT {
        std::thread::sleep(Duration::from_millis(10));
    }
}
