//! JuiceFS, as shipped and with metadata cached for an hour. It cannot serve existing objects, so the data is copied in
//! once, through its own mount, and both variants mount the same volume. Its metadata is in a Redis of its own.

use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use larder_epochs::process;

use super::child::Child;
use super::corpus::Corpus;
use super::programs::version_of;
use super::served::Served;
use super::system::{AnySystem, Kind, System};

pub(super) const NAMES: [&str; 2] = ["juicefs", "juicefs tuned"];

/// Threads that copy the data in.
const COPIERS: usize = 8;

/// How long Redis may take to start.
const REDIS_TIMEOUT: Duration = Duration::from_secs(10);

/// The volume that both variants mount.
struct Volume {
    redis: Child,
    url: String,
}

struct JuiceFs {
    juicefs: PathBuf,
    redis: PathBuf,
    tuned: bool,
    served: Served,
    volume: Arc<Mutex<Option<Volume>>>,
}

pub(super) fn both(juicefs: &Path, redis: &Path) -> Vec<AnySystem> {
    let volume = Arc::default();
    let one = |tuned| -> AnySystem {
        Box::new(JuiceFs {
            juicefs: juicefs.to_owned(),
            redis: redis.to_owned(),
            tuned,
            served: Served::default(),
            volume: Arc::clone(&volume),
        })
    };
    vec![one(false), one(true)]
}

impl JuiceFs {
    fn volume(&self) -> MutexGuard<'_, Option<Volume>> {
        self.volume.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn start_redis(&self, corpus: &Corpus) -> anyhow::Result<Volume> {
        let folder = corpus.folder_of("redis")?;
        // The port was free a moment ago. If another process takes it first, Redis fails and the system is left out.
        let port =
            TcpListener::bind(("127.0.0.1", 0)).and_then(|free| free.local_addr()).context("find a port")?.port();
        let mut command = Command::new(&self.redis);
        command
            .args(["--port", &port.to_string(), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no", "--dir"])
            .arg(&folder);
        let mut redis = Child::spawn("redis-server", &mut command, &folder.join("log"))?;
        let started = Instant::now();
        while TcpStream::connect(("127.0.0.1", port)).is_err() {
            if redis.ended()?.is_some() || started.elapsed() > REDIS_TIMEOUT {
                bail!("start redis-server on port {port}: {}", redis.last_words());
            }
            corpus.stop.check()?;
            std::thread::sleep(Duration::from_millis(10));
        }
        Ok(Volume { redis, url: format!("redis://127.0.0.1:{port}/1") })
    }

    fn format(&self, corpus: &Corpus, url: &str) -> anyhow::Result<()> {
        let output = Command::new(&self.juicefs)
            .args(["format", "--storage", "s3", "--trash-days", "0", "--bucket"])
            .arg(format!("{}/{}-juicefs", corpus.endpoint, corpus.bucket))
            .args([url, "peer"])
            .env("ACCESS_KEY", &corpus.access_key)
            .env("SECRET_KEY", &corpus.secret_key)
            .stdin(std::process::Stdio::null())
            .output()
            .context("start juicefs format")?;
        if !output.status.success() {
            let words = String::from_utf8_lossy(&output.stderr);
            bail!("juicefs format: {}: {}", output.status, words.trim());
        }
        Ok(())
    }

    fn mount_command(&self, url: &str, mountpoint: &Path, cache: &Path) -> Command {
        let mut command = Command::new(&self.juicefs);
        command
            .args(["mount", url])
            .arg(mountpoint)
            // This suppresses JuiceFS's watcher process: the kernel kills only direct children when this process ends.
            .env("JFS_SUPERVISOR", "larder")
            .args(["--no-usage-report", "--backup-meta", "0", "--cache-size", "1048576", "--free-space-ratio", "0.02"])
            .arg("--cache-dir")
            .arg(cache);
        command
    }

    /// Copies all files in through a writable mount, whose cache is removed afterwards.
    fn copy_in(&mut self, corpus: &Corpus, url: &str) -> anyhow::Result<()> {
        let (mountpoint, cache) = self.served.folders(corpus, "juicefs copy")?;
        let mut command = self.mount_command(url, &mountpoint, &cache);
        self.served.start(corpus, "juicefs copy", &mut command)?;
        let next = AtomicUsize::new(0);
        let copier = || -> anyhow::Result<()> {
            while let Some(file) = corpus.files.get(next.fetch_add(1, Ordering::Relaxed)) {
                corpus.stop.check()?;
                let target = mountpoint.join(&file.path);
                let copy = || {
                    if let Some(folder) = target.parent() {
                        std::fs::create_dir_all(folder)?;
                    }
                    std::fs::copy(corpus.tree.join(&file.path), &target)
                };
                copy().with_context(|| format!("copy {} into JuiceFS", file.path.display()))?;
            }
            Ok(())
        };
        let copied: anyhow::Result<()> = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..COPIERS).map(|_| scope.spawn(copier)).collect();
            threads
                .into_iter()
                .try_for_each(|thread| thread.join().unwrap_or_else(|_| bail!("a copying thread panicked")))
        });
        let unmounted = self.served.unmount();
        copied.and(unmounted)
    }
}

impl System for JuiceFs {
    fn name(&self) -> &str {
        NAMES[usize::from(self.tuned)]
    }

    fn kind(&self) -> Kind {
        if self.tuned { Kind::Tuned } else { Kind::Shipped }
    }

    fn version(&self) -> String {
        format!("{}; {}", version_of(&self.juicefs, "--version"), version_of(&self.redis, "--version"))
    }

    fn options(&self) -> &str {
        if self.tuned {
            "as juicefs, with attribute, entry, directory entry and open caches of 3600 s and no limit on the open \
             files kept"
        } else {
            "the data copied in through its own mount; one process without its watcher, metadata in Redis (loopback, \
             no persistence), blocks in S3, read-only, local cache without a practical limit, no backup of metadata, \
             all else default"
        }
    }

    fn prepare(&mut self, corpus: &Corpus) -> anyhow::Result<()> {
        if self.volume().is_some() {
            return Ok(());
        }
        corpus.room_for_a_copy()?;
        let volume = self.start_redis(corpus)?;
        self.format(corpus, &volume.url)?;
        self.copy_in(corpus, &volume.url)?;
        *self.volume() = Some(volume);
        Ok(())
    }

    fn mount(&mut self, corpus: &Corpus) -> anyhow::Result<PathBuf> {
        let url = self.volume().as_ref().map(|volume| volume.url.clone()).context("prepare JuiceFS first")?;
        let name = self.name().to_owned();
        let (mountpoint, cache) = self.served.folders(corpus, &name)?;
        let mut command = self.mount_command(&url, &mountpoint, &cache);
        command.arg("--read-only");
        if self.tuned {
            for option in ["--attr-cache", "--entry-cache", "--dir-entry-cache", "--open-cache"] {
                command.args([option, "3600"]);
            }
            command.args(["--open-cache-limit", "0"]);
        }
        self.served.start(corpus, &name, &mut command)
    }

    fn processes(&self) -> Vec<u32> {
        let mut processes = self.served.processes();
        if !processes.is_empty()
            && let Some(volume) = &*self.volume()
        {
            processes.extend(process::family(volume.redis.id()));
        }
        processes
    }

    fn unmount(&mut self) -> anyhow::Result<()> {
        self.served.unmount()
    }
}
