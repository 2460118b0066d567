//! `larder mount`: resolves the dataset in the foreground, where the progress is visible, then has the daemon that owns the
//! cache serve it. If no daemon runs, one is started; it ends with its last mount.

use std::fs::OpenOptions;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::{BufRead, BufReader};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, anyhow, bail};
use larder_cachenode::node::NodeConfig;
use larder_cachenode::process::raise_file_limit;
use larder_daemon_api::v1;
use larder_fs::daemon::{Daemon, DaemonConfig, origin_variables};
use larder_store::StoreError;
use tokio::runtime::Runtime;
use tokio::signal::unix::{SignalKind, signal};
use tracing::warn;

use crate::args::MountArgs;
use crate::{daemon, home, source};

/// The line that a background process prints when it is ready.
const READY: &str = "ready";

/// Prefix of its error line if another process owns the cache.
const BUSY: &str = "busy: ";

/// How long the process that owns the cache may fail to answer.
const BUSY_TIMEOUT: Duration = Duration::from_secs(10);

pub(crate) fn run(args: &MountArgs) -> anyhow::Result<ExitCode> {
    if args.foreground { foreground(args) } else { background(args) }
}

fn background(args: &MountArgs) -> anyhow::Result<ExitCode> {
    let runtime = source::runtime()?;
    let dataset = source::resolve(&args.src, &args.origin, &runtime)?;
    let (name, _) = dataset.manifest.name_and_origin()?;
    let cache_dir = cache_dir(args)?;
    let request = request(args, &dataset.path, Some(origin_variables()))?;
    let started = Instant::now();
    loop {
        let asked = runtime.block_on(async {
            match daemon::of(&cache_dir).await? {
                Some(mut daemon) => daemon.mount(request.clone()).await,
                None => Ok(None),
            }
        })?;
        if asked.is_some() {
            break;
        }
        match start_daemon(args, &dataset.path, &cache_dir)? {
            Started::Ready => break,
            // Another `larder mount` started its daemon first, or the last daemon is stopping.
            Started::Busy(_) if started.elapsed() < BUSY_TIMEOUT => {}
            Started::Busy(error) => bail!("{error}"),
        }
    }
    println!("{} is mounted at {}", name, args.dir.display());
    Ok(ExitCode::SUCCESS)
}

/// The outcome of starting a daemon.
enum Started {
    /// The daemon serves the mount.
    Ready,
    /// Another process owns the cache.
    Busy(String),
}

fn start_daemon(args: &MountArgs, manifest: &Path, cache_dir: &Path) -> anyhow::Result<Started> {
    let log_path = home::sub_folder("logs")?.join(log_name(cache_dir));
    let log = OpenOptions::new()
        .create(true)
        .append(true)
        .mode(0o600)
        .open(&log_path)
        .with_context(|| format!("open the log {}", log_path.display()))?;
    let mut child = Command::new(std::env::current_exe().context("find this program")?)
        .args(serving_args(args, manifest))
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(log)
        .spawn()
        .context("start the background process")?;
    let mut said = String::new();
    let stdout = child.stdout.take().context("read the output of the background process")?;
    BufReader::new(stdout).read_line(&mut said).context("read the output of the background process")?;
    if said.trim() == READY {
        return Ok(Started::Ready);
    }
    let _ = child.wait();
    match (said.trim(), said.trim().strip_prefix(BUSY)) {
        (_, Some(error)) => Ok(Started::Busy(error.trim().to_owned())),
        ("", _) => bail!("the background process ended without a result: see its log {}", log_path.display()),
        (error, _) => bail!("{error}"),
    }
}

/// One log for each cache folder.
fn log_name(cache_dir: &Path) -> String {
    let name = cache_dir.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    let mut hash = DefaultHasher::new();
    cache_dir.hash(&mut hash);
    format!("larderd-{}-{:08x}.log", file_name(&name), hash.finish() as u32)
}

fn cache_dir(args: &MountArgs) -> anyhow::Result<PathBuf> {
    match &args.cache_dir {
        // The daemon may have another working directory.
        Some(dir) => std::path::absolute(dir).with_context(|| format!("--cache-dir {}", dir.display())),
        None => Ok(home::home()?.dir().join("store")),
    }
}

fn request(
    args: &MountArgs,
    manifest: &Path,
    credentials: Option<v1::Credentials>,
) -> anyhow::Result<v1::MountRequest> {
    let text = |path: PathBuf| {
        path.into_os_string()
            .into_string()
            .map_err(|path| anyhow!("{} is not UTF-8: use another path", path.to_string_lossy()))
    };
    let absolute =
        |path: &Path| std::path::absolute(path).with_context(|| format!("find {}", path.display())).and_then(text);
    let milliseconds = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
    Ok(v1::MountRequest {
        dataset: Some(v1::Dataset {
            source: absolute(manifest)?,
            endpoint: args.origin.endpoint.clone().unwrap_or_default(),
            region: args.origin.region.clone().unwrap_or_default(),
            anonymous: args.origin.anonymous,
            snapshot: String::new(),
            cache_bytes: args.cache_size,
            policy: args.policy.map(|policy| policy.to_string()).unwrap_or_default(),
            credentials,
            attempt_timeout_ms: milliseconds(args.origin.attempt_timeout),
            read_deadline_ms: milliseconds(args.origin.read_deadline),
            origin_concurrency: args.origin.origin_concurrency,
            placement: args.placement.map(|placement| placement.to_string()).unwrap_or_default(),
        }),
        dir: absolute(&args.dir)?,
        allow_other: args.allow_other,
        threads: args.threads,
        read_ahead_bytes: args.read_ahead,
    })
}

/// The flags of the serving process: those of this command, with the dataset already resolved.
fn serving_args(args: &MountArgs, manifest: &Path) -> Vec<std::ffi::OsString> {
    let mut flags: Vec<std::ffi::OsString> =
        vec!["mount".into(), "--verbose".into(), "--foreground".into(), "--announce".into()];
    let mut flag = |name: &str, value: &dyn std::fmt::Display| flags.push(format!("--{name}={value}").into());
    if let Some(policy) = args.policy {
        flag("policy", &policy);
    }
    if let Some(placement) = args.placement {
        flag("placement", &placement);
    }
    flag("threads", &args.threads);
    flag("read-ahead", &args.read_ahead);
    flag("attempt-timeout", &format_args!("{}ms", args.origin.attempt_timeout.as_millis()));
    flag("read-deadline", &format_args!("{}ms", args.origin.read_deadline.as_millis()));
    flag("origin-concurrency", &args.origin.origin_concurrency);
    if let Some(bytes) = args.cache_size {
        flag("cache-size", &bytes);
    }
    for (name, value) in [("endpoint", &args.origin.endpoint), ("region", &args.origin.region)] {
        if let Some(value) = value {
            flag(name, value);
        }
    }
    for (name, given) in [("--anonymous", args.origin.anonymous), ("--allow-other", args.allow_other)] {
        if given {
            flags.push(name.into());
        }
    }
    if let Some(dir) = &args.cache_dir {
        flags.push("--cache-dir".into());
        flags.push(dir.into());
    }
    flags.extend(["--".into(), manifest.into(), args.dir.clone().into()]);
    flags
}

fn foreground(args: &MountArgs) -> anyhow::Result<ExitCode> {
    if args.announce {
        rustix::process::setsid()?;
    }
    raise_file_limit();
    let runtime = source::runtime()?;
    let _in_runtime = runtime.enter();
    let daemon = match start(args, &runtime) {
        Ok(daemon) => daemon,
        Err(error) => {
            if args.announce {
                // One line for the waiting command; the log has it too.
                let busy = matches!(error.downcast_ref(), Some(StoreError::InUse { .. }));
                let prefix = if busy { BUSY } else { "" };
                println!("{prefix}{}", format!("{error:#}").replace('\n', " "));
            }
            return Err(error);
        }
    };
    if args.announce {
        println!("{READY}");
    }
    runtime.block_on(async {
        let signals = tokio::spawn(stop_on_signal(Arc::clone(&daemon)));
        let outcome = Arc::clone(&daemon).run().await;
        signals.abort();
        daemon.stop().await?;
        outcome
    })?;
    Ok(ExitCode::SUCCESS)
}

async fn stop_on_signal(daemon: Arc<Daemon>) {
    let (Ok(mut terminate), Ok(mut interrupt)) = (signal(SignalKind::terminate()), signal(SignalKind::interrupt()))
    else {
        warn!("cannot listen for signals; end the mount with `larder umount`");
        return;
    };
    tokio::select! {
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
    }
    daemon.stopping().cancel();
}

/// Starts a daemon with its first mount.
fn start(args: &MountArgs, runtime: &Runtime) -> anyhow::Result<Arc<Daemon>> {
    let found = source::resolve(&args.src, &args.origin, runtime)?;
    let cache_dir = cache_dir(args)?;
    let daemon = Daemon::open(DaemonConfig {
        run_dir: cache_dir.clone(),
        node: NodeConfig {
            cache_dir,
            cache_bytes: None,
            home: home::home()?,
            origin: args.origin.config(),
            peers: None,
            socket: None,
        },
        admin: None,
        threads: args.threads as usize,
        stop_when_idle: true,
    })
    .context("open the cache (--cache-dir)")?;
    runtime.block_on(daemon.mount(request(args, &found.path, None)?))?;
    Ok(daemon)
}

fn file_name(dataset: &str) -> String {
    dataset.chars().map(|c| if c.is_ascii_alphanumeric() || "-_.".contains(c) { c } else { '_' }).collect()
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::args::{Cli, Command};

    fn mount_args(args: &[&str]) -> MountArgs {
        match Cli::try_parse_from([&["larder"], args].concat()).unwrap().command {
            Command::Mount(args) => args,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn the_serving_process_gets_every_flag_that_was_given() {
        let given = mount_args(&[
            "mount",
            "s3://b/p",
            "/mnt/-odd",
            "--cache-dir",
            "/c",
            "--cache-size",
            "3MiB",
            "--policy",
            "lru",
            "--allow-other",
            "--threads",
            "3",
            "--read-ahead",
            "2MiB",
            "--endpoint",
            "http://h:1",
            "--region",
            "r",
            "--anonymous",
            "--attempt-timeout",
            "7s",
            "--read-deadline",
            "9s",
            "--origin-concurrency",
            "5",
        ]);
        let served: Vec<_> =
            serving_args(&given, Path::new("/m")).into_iter().map(|arg| arg.into_string().unwrap()).collect();
        let mut got = mount_args(&served.iter().map(String::as_str).collect::<Vec<_>>());
        assert!(got.foreground && got.announce);
        assert_eq!(got.src, "/m");
        (got.foreground, got.announce, got.src) = (false, false, given.src.clone());
        assert_eq!(format!("{got:?}"), format!("{given:?}"));
    }
}
