//! `larder plan`: passes the names of the files that a program is going to read to a mount, as the mount wants them.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, anyhow, bail};
use larder_cachenode::plan::command::{AT_IOCTL, ITEMS_BYTES, OPEN_IOCTL, Open, PATHS_IOCTL, PlanId, Put, encode_at};
use larder_dataset::selection::path_of_line;
use rustix::io::Errno;

use crate::args::PlanArgs;
use crate::{ioctl, mount_stats, output};

/// The pause before the mount is asked again whether it wants more files.
const POLL: Duration = Duration::from_millis(200);

/// No path is longer. The mount looks for one that is cut off, and finds none.
const PATH_MOST: usize = 8_000;

pub(crate) fn run(args: &PlanArgs) -> anyhow::Result<ExitCode> {
    let from = || format!("{} (--from)", args.from.display());
    let lines: Box<dyn Read> = match args.from.to_str() {
        Some("-") => Box::new(io::stdin().lock()),
        _ => Box::new(File::open(&args.from).with_context(|| format!("open {}", from()))?),
    };
    let mut lines = BufReader::new(lines);
    let mut plan = Plan::open(&args.dir)?;
    // With one slash at its end, whether or not DIR has one.
    let root = std::path::absolute(args.dir.join(""))?;
    let (mut part, mut line) = (Part::default(), Vec::new());
    while lines.read_until(b'\n', &mut line).with_context(|| format!("read {}", from()))? > 0 {
        let path = path_of_line(line.strip_suffix(b"\n").unwrap_or(&line)).unwrap_or_default();
        // Absolute paths of the mounted files are accepted too.
        let path = path.strip_prefix(root.as_os_str().as_bytes()).unwrap_or(path);
        let path = &path[..path.len().min(PATH_MOST)];
        let is_first = plan.position == 0 && part.count == 0 && !path.is_empty();
        if is_first && (path.starts_with(b"/") || !args.dir.join(OsStr::from_bytes(path)).exists()) {
            let path = String::from_utf8_lossy(path);
            bail!("{} begins with {path}, which is not there: use paths below {}", from(), args.dir.display());
        }
        if !part.has_room(path) {
            plan.put(&mut part)?;
        }
        part.push(path);
        // The next line may take a while.
        if lines.buffer().is_empty() {
            plan.put(&mut part)?;
        }
        line.clear();
    }
    plan.put(&mut part)?;
    if plan.position == 0 {
        bail!("no line of {} names a file: use paths below {}", from(), args.dir.display());
    }
    plan.wait_until_read()?;
    output::note(format_args!("{} files were planned", plan.position));
    Ok(ExitCode::SUCCESS)
}

/// Paths that are put into the plan together.
#[derive(Debug, Default)]
struct Part {
    /// With a NUL behind each.
    paths: Vec<u8>,
    count: u32,
}

impl Part {
    fn has_room(&self, path: &[u8]) -> bool {
        self.paths.len() + path.len() < ITEMS_BYTES
    }

    /// Adds a path. An empty one is none, and neither is one with a NUL, which no file has.
    fn push(&mut self, path: &[u8]) {
        if !path.is_empty() && !path.contains(&0) {
            self.paths.extend_from_slice(path);
            self.paths.push(0);
            self.count += 1;
        }
    }
}

/// The plan at a mount.
struct Plan<'a> {
    dir: &'a Path,
    folder: File,
    id: PlanId,
    /// The number of files that were put.
    position: u64,
    /// The number of files that the mount wants.
    wanted: u32,
}

impl<'a> Plan<'a> {
    fn open(dir: &'a Path) -> anyhow::Result<Self> {
        let folder = File::open(dir).map_err(|error| mount_stats::unreadable(dir, error))?;
        let mut id = [0; 16];
        File::open("/dev/urandom").and_then(|mut random| random.read_exact(&mut id)).context("choose a random id")?;
        let mut plan = Self { dir, folder, id: PlanId(id), position: 0, wanted: 0 };
        plan.renew(None)?;
        Ok(plan)
    }

    /// Opens the plan, which may be open. `count`: the number of all files, if it is known.
    fn renew(&mut self, count: Option<u64>) -> anyhow::Result<()> {
        let open = Open { id: self.id, snapshot: None, count };
        let wanted = ioctl::plan(&self.folder, OPEN_IOCTL, &open.encode());
        self.wanted = wanted.map_err(|error| self.failed(error))?;
        Ok(())
    }

    /// Puts files into the plan once it wants them.
    fn put(&mut self, part: &mut Part) -> anyhow::Result<()> {
        while part.count > 0 {
            let is_wanted = part.count <= self.wanted;
            let answer = if is_wanted {
                let put = Put { id: self.id, position: self.position, passed: 0, replaces: false };
                ioctl::plan(&self.folder, PATHS_IOCTL, &put.encode_paths(&part.paths)[..])
            } else {
                std::thread::sleep(POLL);
                ioctl::plan(&self.folder, AT_IOCTL, &encode_at(self.id, 0))
            };
            match answer {
                Ok(wanted) => {
                    self.wanted = wanted;
                    if is_wanted {
                        self.position += u64::from(part.count);
                        *part = Part::default();
                    }
                }
                // The process that serves the mount was restarted. It goes on with the files that come now.
                Err(error) if Errno::from_io_error(&error) == Some(Errno::NOENT) => self.renew(None)?,
                Err(error) => return Err(self.failed(error)),
            }
        }
        Ok(())
    }

    /// Keeps the plan alive until it ends, because all of its files were read or the process that serves the mount was
    /// restarted.
    fn wait_until_read(&mut self) -> anyhow::Result<()> {
        self.renew(Some(self.position))?;
        loop {
            std::thread::sleep(POLL);
            match ioctl::plan(&self.folder, AT_IOCTL, &encode_at(self.id, 0)) {
                Ok(_) => {}
                Err(error) if Errno::from_io_error(&error) == Some(Errno::NOENT) => return Ok(()),
                Err(error) => return Err(self.failed(error)),
            }
        }
    }

    fn failed(&self, error: io::Error) -> anyhow::Error {
        let dir = self.dir.display();
        match Errno::from_io_error(&error) {
            Some(Errno::NOTTY) => {
                anyhow!("{dir} is no directory of a Larder mount, or an earlier version serves it: mount it again")
            }
            Some(Errno::NOSPC) => anyhow!("too many plans of {dir} are open: end others, or wait for a minute"),
            _ => anyhow::Error::new(error).context(format!("plan the files of {dir}")),
        }
    }
}
