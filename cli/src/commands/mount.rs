//! `larder mount`: resolves the dataset in the foreground, where its progress shows, then serves it in a process of its own.

use std::fs::OpenOptions;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::sync::Arc;

use anyhow::{Context, bail};
use larder_fs::{CacheSpec, Dataset, DatasetConfig, MappedManifest, MountConfig, Mounted};
use larder_store::{Store, StoreConfig, StoreCounters};
use tokio::runtime::Runtime;
use tokio::signal::unix::{SignalKind, signal};
use tracing::{info, warn};

use crate::args::MountArgs;
use crate::{home, source};

/// What a background mount says once it is ready.
const READY: &str = "ready";

/// Share of the free disk that a cache without a stated size leaves alone.
const LEAVE_FREE: u64 = 5;

pub(crate) fn run(args: &MountArgs) -> anyhow::Result<ExitCode> {
    if args.foreground { foreground(args) } else { background(args) }
}

fn background(args: &MountArgs) -> anyhow::Result<ExitCode> {
    let runtime = source::runtime()?;
    let dataset = source::resolve(&args.src, &args.origin, &runtime)?;
    let (name, _) = dataset.manifest.name_and_origin()?;
    let log_path = home::sub_folder("logs")?.join(format!("{}.log", file_name(name)));
    let log = OpenOptions::new()
        .create(true)
        .append(true)
        .mode(0o600)
        .open(&log_path)
        .with_context(|| format!("open the log {}", log_path.display()))?;
    let mut child = Command::new(std::env::current_exe().context("find this program")?)
        .args(serving_args(args, &dataset.path))
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(log)
        .spawn()
        .context("start the background process")?;
    let mut said = String::new();
    let stdout = child.stdout.take().context("listen to the background process")?;
    BufReader::new(stdout).read_line(&mut said).context("listen to the background process")?;
    if said.trim() == READY {
        println!("{} is mounted at {}", name, args.dir.display());
        return Ok(ExitCode::SUCCESS);
    }
    let _ = child.wait();
    match said.trim() {
        "" => bail!("the background process ended early; its log is {}", log_path.display()),
        error => bail!("{error}"),
    }
}

/// The flags of the process that serves: those given, with the dataset already found.
fn serving_args(args: &MountArgs, manifest: &Path) -> Vec<std::ffi::OsString> {
    let mut flags: Vec<std::ffi::OsString> =
        vec!["mount".into(), "--verbose".into(), "--foreground".into(), "--announce".into()];
    let mut flag = |name: &str, value: &dyn std::fmt::Display| flags.push(format!("--{name}={value}").into());
    flag("policy", &args.policy);
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
    let served = if args.announce {
        rustix::process::setsid().map_err(Into::into).and_then(|_| start(args))
    } else {
        start(args)
    };
    let Served { runtime, store, dataset, mounted } = match served {
        Ok(served) => served,
        Err(error) => {
            if args.announce {
                // One line, for the command that waits; the log has it as well.
                println!("{}", format!("{error:#}").replace('\n', " "));
            }
            return Err(error);
        }
    };
    if args.announce {
        println!("{READY}");
    }
    let path = mounted.path().to_owned();
    let stop = runtime.block_on(wait(&mounted))?;
    if stop {
        info!(path = %path.display(), "stopping");
        // Files may be in use: the mount goes out of sight, and its readers get to the end of what they have open.
        larder_fs::mount::unmount(&path, true)?;
    }
    mounted.wait().context("serve the mount")?;
    runtime.block_on(dataset.drain());
    store.close().context("close the cache")?;
    info!(path = %path.display(), "unmounted");
    Ok(ExitCode::SUCCESS)
}

/// Until a signal (true) or an unmount (false).
async fn wait(mounted: &Mounted) -> anyhow::Result<bool> {
    let mut terminate = signal(SignalKind::terminate()).context("listen for signals")?;
    let mut interrupt = signal(SignalKind::interrupt()).context("listen for signals")?;
    let mut look = tokio::time::interval(std::time::Duration::from_millis(100));
    loop {
        tokio::select! {
            _ = terminate.recv() => return Ok(true),
            _ = interrupt.recv() => return Ok(true),
            _ = look.tick() => if mounted.is_over() { return Ok(false) },
        }
    }
}

struct Served {
    runtime: Runtime,
    store: Store,
    dataset: Arc<Dataset>,
    mounted: Mounted,
}

fn start(args: &MountArgs) -> anyhow::Result<Served> {
    raise_file_limit();
    let runtime = source::runtime()?;
    let found = source::resolve(&args.src, &args.origin, &runtime)?;
    let cache_dir = match &args.cache_dir {
        Some(dir) => dir.clone(),
        None => home::sub_folder("stores")?.join(found.manifest.snapshot().to_string()),
    };
    let counters = Arc::new(StoreCounters::default());
    let store = Store::open(StoreConfig::new(&cache_dir), counters).context("open the cache (--cache-dir)")?;
    let reservation_bytes = match args.cache_size {
        Some(bytes) => bytes,
        None => default_reservation(&cache_dir, &found.manifest)?,
    };
    info!(cache_dir = %cache_dir.display(), reservation_bytes, policy = %args.policy, "store open");
    let config = DatasetConfig {
        read_deadline: args.origin.read_deadline,
        fetch_concurrency: args.origin.origin_concurrency as usize,
        ..DatasetConfig::DEFAULT
    };
    let spec = CacheSpec { reservation_bytes, policy: args.policy, seed: u64::from(std::process::id()) };
    let dataset = Dataset::open(found.manifest, &store, spec, found.origin, runtime.handle(), config)?;
    let mut mount = MountConfig::new(args.dir.clone());
    mount.allow_other |= args.allow_other;
    mount.threads = args.threads as usize;
    mount.read_ahead_bytes = args.read_ahead;
    let mounted = larder_fs::mount::mount(Arc::clone(&dataset), &mount)?;
    Ok(Served { runtime, store, dataset, mounted })
}

/// The whole dataset, if the disk then keeps a fifth of what is free now or already holds the cache.
fn default_reservation(cache_dir: &Path, manifest: &MappedManifest) -> anyhow::Result<u64> {
    let disk =
        rustix::fs::statvfs(cache_dir).with_context(|| format!("look at the disk of {}", cache_dir.display()))?;
    let free = disk.f_bavail * disk.f_frsize + folder_bytes(cache_dir);
    let wanted = manifest.totals().bytes;
    let most = free - free / LEAVE_FREE;
    if wanted > most {
        warn!(wanted, most, "the disk cannot hold the dataset: the cache keeps a part (--cache-size, --cache-dir)");
    }
    Ok(wanted.min(most))
}

fn folder_bytes(folder: &Path) -> u64 {
    use std::os::unix::fs::MetadataExt;
    let mut bytes = 0;
    let mut folders: Vec<PathBuf> = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
            match entry.metadata() {
                Ok(found) if found.is_dir() => folders.push(entry.path()),
                Ok(found) => bytes += found.blocks() * 512,
                Err(_) => {}
            }
        }
    }
    bytes
}

/// Segments, sockets and RocksDB take file descriptors; the soft limit is often 1,024.
fn raise_file_limit() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Nofile);
    if let Err(error) = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum }) {
        warn!(%error, "cannot raise the limit of open files");
    }
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
