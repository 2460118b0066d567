//! `larder mount`: resolves the dataset in the foreground, where the progress is visible, then has the daemon that owns
//! the cache serve it. If no daemon runs, one is started; it ends with its last mount.

mod announcement;
mod foreground;
mod request;

use std::fs::OpenOptions;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::{BufRead, BufReader, ErrorKind};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::process::{Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use larder_cachenode::kept_listing::age_of;
use larder_cachenode::process::doubt_cache_size;
use larder_cachenode::source::ResolvedSource;
use larder_cachenode::{CacheStats, Home};
use larder_dataset::size::{show_bytes, show_duration};
use larder_fs::daemon::origin_variables;
use larder_store::probe::try_to_write;
use serde_json::json;

use crate::args::MountArgs;
use crate::{daemon, mount_stats, output, source};
use announcement::Announcement;
pub(crate) use request::default_cache_dir;
use request::{cache_dir, request, run_dir, serving_args};

/// How long the process that owns the cache may fail to answer.
const BUSY_TIMEOUT: Duration = Duration::from_secs(10);

pub(crate) fn run(args: &MountArgs) -> anyhow::Result<ExitCode> {
    if args.foreground { foreground::run(args) } else { background(args) }
}

fn background(args: &MountArgs) -> anyhow::Result<ExitCode> {
    check_home(&Home::of_process()?)?;
    let runtime = source::runtime()?;
    let dataset = source::resolve(&args.src, &args.origin, args.refresh, &runtime)?;
    let cache_dir = cache_dir(args)?;
    if let Some(doubt) = args.cache_size.and_then(|bytes| doubt_cache_size(bytes, &cache_dir)) {
        output::note(format_args!("warning: {doubt}"));
    }
    let run_dir = run_dir(&cache_dir)?;
    let request = request(args, &dataset.path, Some(origin_variables()))?;
    let hides_files = hides_files(&args.dir);
    let started = Instant::now();
    loop {
        let asked = runtime.block_on(async {
            match daemon::of(&run_dir).await? {
                Some(mut daemon) => daemon.mount(request.clone()).await,
                None => Ok(None),
            }
        })?;
        if asked.is_some() {
            break;
        }
        match start_daemon(args, &dataset.path, &cache_dir)? {
            Announcement::Ready => break,
            // Another `larder mount` started its daemon first, or the last daemon is stopping.
            Announcement::Busy(_) if started.elapsed() < BUSY_TIMEOUT => {}
            Announcement::Busy(error) | Announcement::Failed(error) => bail!("{error}"),
        }
    }
    if hides_files {
        output::note(format_args!(
            "warning: {} was not empty: its files are hidden until `larder umount`",
            args.dir.display()
        ));
    }
    tell(args, &dataset)?;
    Ok(ExitCode::SUCCESS)
}

/// True if there are files in the folder that a mount hides. A dead mount is replaced. The kernel may still list it,
/// but asks it for its size.
fn hides_files(dir: &Path) -> bool {
    rustix::fs::statfs(dir).is_ok() && std::fs::read_dir(dir).is_ok_and(|mut entries| entries.next().is_some())
}

/// Says what is mounted: which snapshot, how old its listing is, and what of it cannot be cached.
fn tell(args: &MountArgs, dataset: &ResolvedSource) -> anyhow::Result<()> {
    // A user who may mount is not always allowed to read it.
    let cache = mount_stats::read(&args.dir).ok().map(|stats| stats.cache);
    if let Some(warning) = cache.as_ref().and_then(doubt_cache) {
        output::note(format_args!("warning: {warning}"));
    }
    let (name, origin) = dataset.manifest.name_and_origin()?;
    let (snapshot, listed_ns) = (dataset.manifest.snapshot().to_string(), dataset.manifest.created_ns());
    if args.json {
        return output::json(&json!({
            "mount": args.dir,
            "name": name,
            "origin": origin,
            "snapshot": snapshot,
            "files": dataset.manifest.totals().files,
            "bytes": dataset.manifest.totals().bytes,
            "listed_unix_seconds": listed_ns / 1_000_000_000,
            "age_seconds": age_of(listed_ns).as_secs(),
            "refresh_failed": dataset.refresh_failed,
            "cache": cache,
        }));
    }
    let made = if dataset.manifest.is_packed() { "packed" } else { "listed" };
    output::line(format_args!("{name} is mounted at {}", args.dir.display()))?;
    let age = show_duration(age_of(listed_ns));
    output::line(format_args!("snapshot {}, {made} {age} ago", &snapshot[..12]))
}

/// A warning about the dataset's part of the cache, if a user should know one.
fn doubt_cache(cache: &CacheStats) -> Option<String> {
    if let Some(why) = &cache.degraded {
        return Some(format!("caching is suspended: {why} (see `larder stats`)"));
    }
    let shortage = cache.shortage.as_deref()?;
    Some(match cache.capacity_bytes {
        0 => format!("nothing is cached, and every read goes to the origin: {shortage}"),
        bytes => {
            let (bytes, wanted) = (show_bytes(bytes), show_bytes(cache.wanted_bytes));
            format!("at most {bytes} of {wanted} are cached: {shortage}")
        }
    })
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

/// Checks that manifests and logs can be kept. Errors say what to do.
fn check_home(home: &Home) -> anyhow::Result<()> {
    match try_to_write(home.dir()) {
        Err(error) if matches!(error.kind(), ErrorKind::ReadOnlyFilesystem | ErrorKind::PermissionDenied) => {
            let home = home.dir().display();
            let what =
                format!("write to {home}, where manifests and logs are kept: set LARDER_HOME to a writable directory");
            Err(error).context(what)
        }
        // A full disk may have the manifest and the log already.
        _ => Ok(()),
    }
}

/// One log for each cache folder.
fn log_name(cache_dir: &Path) -> String {
    let name = cache_dir.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    let mut hash = DefaultHasher::new();
    cache_dir.hash(&mut hash);
    format!("larderd-{}-{:08x}.log", file_name(&name), hash.finish() as u32)
}

fn file_name(dataset: &str) -> String {
    dataset.chars().map(|c| if c.is_ascii_alphanumeric() || "-_.".contains(c) { c } else { '_' }).collect()
}
