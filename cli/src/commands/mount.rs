//! `larder mount`: resolves the dataset in the foreground, where the progress is visible, then asks the daemon that
//! owns the cache to serve it: the service, where one runs. If no daemon runs, the command starts one, which ends with
//! its last mount.

mod announcement;
mod foreground;
mod preflight;
mod request;
mod result;
mod service;

use std::fs::OpenOptions;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::{BufRead, BufReader};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::process::{Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use larder_cachenode::Home;
use larder_cachenode::process::doubt_cache_size;
use larder_daemon_api::socket::SERVICE_RUN_DIR;
use larder_daemon_api::v1;
use tokio::runtime::Runtime;

use crate::args::{MountArgs, ORIGIN_DIR};
use crate::{daemon, output, source};
use announcement::Announcement;
use request::{cache_dir, credentials, request, serving_args};
pub(crate) use request::{default_cache_dir, run_dir};
pub(crate) use service::{has_own_home, serving};

/// How long the command retries while the process that owns the cache does not answer.
const BUSY_TIMEOUT: Duration = Duration::from_secs(10);

pub(crate) fn run(args: &MountArgs) -> anyhow::Result<ExitCode> {
    if args.foreground { foreground::run(args) } else { background(args) }
}

fn background(args: &MountArgs) -> anyhow::Result<ExitCode> {
    preflight::check(args)?;
    let runtime = source::runtime()?;
    let dataset = source::resolve(&args.src, &args.origin, args.refresh, &runtime)?;
    if let Some(run_dir) = runtime.block_on(serving(args.cache_dir.as_deref(), SERVICE_RUN_DIR.as_ref()))? {
        mount_by_service(args, &dataset.path, &run_dir, &runtime)?;
        result::tell(args, &dataset)?;
        return Ok(ExitCode::SUCCESS);
    }
    let cache_dir = cache_dir(args)?;
    if let Some(doubt) = args.cache_size.and_then(|bytes| doubt_cache_size(bytes, std::slice::from_ref(&cache_dir))) {
        output::note(format_args!("warning: {doubt}"));
    }
    let run_dir = run_dir(&cache_dir)?;
    let request = request(args, &dataset.path, Some(credentials(args)?))?;
    let started = Instant::now();
    loop {
        if ask(&run_dir, &request, &runtime)? {
            warn_of_limits(args);
            break;
        }
        match start_daemon(args, &dataset.path, &cache_dir)? {
            Announcement::Ready => break,
            // Another `larder mount` started its daemon first, or the last daemon is stopping.
            Announcement::Busy(_) if started.elapsed() < BUSY_TIMEOUT => {}
            Announcement::Busy(error) | Announcement::Failed(error) => bail!("{error}"),
        }
    }
    result::tell(args, &dataset)?;
    Ok(ExitCode::SUCCESS)
}

/// Has the daemon with its sockets in `run_dir` mount. False if no daemon is there.
fn ask(run_dir: &Path, request: &v1::MountRequest, runtime: &Runtime) -> anyhow::Result<bool> {
    let asked = runtime.block_on(async {
        match daemon::of(run_dir).await? {
            Some(mut daemon) => daemon.mount(request.clone()).await,
            None => Ok(None),
        }
    })?;
    Ok(asked.is_some())
}

/// Has the service mount, which may be restarting.
fn mount_by_service(args: &MountArgs, manifest: &Path, run_dir: &Path, runtime: &Runtime) -> anyhow::Result<()> {
    // The service reads its own folder of credentials, and follows the changes of it.
    let is_of_service = args.origin.origin_credentials_dir.as_deref() == Some(Path::new(ORIGIN_DIR))
        && args.mirror.iter().all(|mirror| mirror.credentials_dir.is_none());
    let credentials = if is_of_service { None } else { Some(credentials(args)?) };
    let request = request(args, manifest, credentials)?;
    let started = Instant::now();
    while !ask(run_dir, &request, runtime)? {
        if started.elapsed() >= service::TIMEOUT {
            return Err(service::no_answer());
        }
        std::thread::sleep(service::PAUSE);
    }
    warn_of_limits(args);
    Ok(())
}

/// Says that the limits are those of the process that serves already.
fn warn_of_limits(args: &MountArgs) {
    let limits = [
        ("--origin-rate", args.origin.origin_rate),
        ("--warm-rate", args.warm_rate),
        ("--memory-target", args.memory_target),
    ];
    for (flag, given) in limits {
        if given.is_some() {
            output::note(format_args!(
                "warning: {flag} has no effect: the process that serves this cache directory was started with its own \
                 limits"
            ));
        }
    }
}

/// Starts a daemon in the background and waits for its outcome.
fn start_daemon(args: &MountArgs, manifest: &Path, cache_dir: &Path) -> anyhow::Result<Announcement> {
    let log_path = Home::of_process()?.sub_folder("logs")?.join(log_name(cache_dir));
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
    match Announcement::parse(&said) {
        Some(Announcement::Ready) => Ok(Announcement::Ready),
        ended => {
            let _ = child.wait();
            ended.with_context(|| {
                format!("the background process ended without a result: see its log {}", log_path.display())
            })
        }
    }
}

/// The name of the log; each cache folder has its own.
fn log_name(cache_dir: &Path) -> String {
    let name = cache_dir.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    let mut hash = DefaultHasher::new();
    cache_dir.hash(&mut hash);
    format!("larderd-{}-{:08x}.log", file_name(&name), hash.finish() as u32)
}

fn file_name(dataset: &str) -> String {
    dataset.chars().map(|c| if c.is_ascii_alphanumeric() || "-_.".contains(c) { c } else { '_' }).collect()
}
