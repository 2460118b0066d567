//! Imports: keys per second, memory and disk space of the importing process, and the cost of mounting the manifest.
//!
//! The cast: [`run`] imports generated objects from a listing server, with one call at a time and with many, lists them
//! without keeping anything, imports them again after some were replaced, mounts the manifest, and imports a folder;
//! `process` runs the command `larder`; `outcome` has the figures and their table.
//!
//! Invariants: each import is a separate process, so its memory can be measured. An incomplete listing and a wrong
//! number of changed objects are errors, not figures.

mod outcome;
mod process;

use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use larder_import::count;
use larder_origin::{Origin, OriginConfig};
use larder_s3_server::{ListingConfig, ListingFault, ListingServer, MadeUpKeys};

use crate::side_by_side::{Progress, Scratch};
use crate::systems::{Stop, child};
pub use outcome::{ImportsConfig, ImportsOutcome, MountRow, Row, Work};
use process::Larder;

/// The bucket of the listing server.
const URL: &str = "s3://made-up";

/// Generated objects per prefix, and files per directory on the disk.
const PER_FOLDER: u64 = 1000;

/// Number of concurrent LIST calls of an import.
const CALLS: usize = 16;

/// One in this many objects is replaced before an import is repeated.
const REPLACED_ONE_OF: u64 = 100;

/// Measures everything. Must be called as root, on the main thread. Errors stop the run.
pub fn run(config: &ImportsConfig, progress: &dyn Progress) -> anyhow::Result<ImportsOutcome> {
    child::own_mounts()?;
    let (_scratch, folder) = Scratch::new(&config.folder, "imports-")?;
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().context("start the runtime")?;
    let _in_runtime = runtime.enter();
    let stop = Stop::on_signals(runtime.handle())?;
    let mut outcome = ImportsOutcome { config: config.clone(), rows: Vec::new(), mounts: Vec::new() };
    let of_keys = 5 - u64::from(config.skip_one_call);
    let steps = of_keys * u64::from(config.keys > 0) + u64::from(config.folder_entries > 0);
    progress.steps(u64::from(config.rounds) * steps);
    let entries = folder.join("entries");
    if config.folder_entries > 0 {
        progress.doing(&format!("making a folder of {} entries", config.folder_entries));
        make_entries(&entries, config.folder_entries, &stop)?;
    }
    let keys = MadeUpKeys { count: config.keys, per_folder: PER_FOLDER };
    let page_time = Duration::from_millis(config.page_ms);
    let start = ListingServer::start(ListingConfig { keys, page_time, fault: ListingFault::None });
    let bucket = Bucket { server: runtime.block_on(start).context("start the listing server")?, keys };
    for round in 0..config.rounds {
        let home = folder.join(format!("round-{round}"));
        let larder = Larder { binary: config.binary.clone(), home: home.clone(), variables: bucket.server.env() };
        let measured = |row: &Row| progress.measured(&format!("round {}: {row}", round + 1));
        if config.keys > 0 {
            if !config.skip_one_call {
                progress.doing("importing, one call at a time");
                outcome.take(bucket.import(&larder, Work::OneLister, round)?, measured);
                stop.check()?;
                larder.forget()?;
            }
            progress.doing("listing, many calls at a time");
            outcome.take(runtime.block_on(bucket.count(round))?, measured);
            stop.check()?;
            progress.doing("importing, many calls at a time");
            outcome.take(bucket.import(&larder, Work::Parallel, round)?, measured);
            stop.check()?;
            progress.doing("importing again");
            bucket.server.replace_one_of(REPLACED_ONE_OF);
            let again = bucket.import(&larder, Work::Again, round);
            bucket.server.replace_one_of(0);
            outcome.take(again?, measured);
            stop.check()?;
            progress.doing("mounting");
            let mounted = larder.mount(URL, &bucket.last_key(), &folder, round, &stop)?;
            progress.measured(&format!("round {}: {mounted}", round + 1));
            outcome.mounts.push(mounted);
        }
        if config.folder_entries > 0 {
            stop.check()?;
            progress.doing("importing a folder");
            outcome.take(import_folder(&larder, &entries, config.folder_entries, round)?, measured);
        }
        std::fs::remove_dir_all(&home).with_context(|| format!("remove {}", home.display()))?;
        stop.check()?;
    }
    Ok(outcome)
}

/// The generated objects and the server that lists them.
struct Bucket {
    server: ListingServer,
    keys: MadeUpKeys,
}

impl Bucket {
    fn import(&self, larder: &Larder, work: Work, round: u32) -> anyhow::Result<Row> {
        let one_call: &[&str] = if work == Work::OneLister { &["--origin-concurrency", "1"] } else { &[] };
        let imported = larder.import(URL, one_call)?;
        let expected = self.keys.count;
        ensure!(imported.files == expected, "an import of {expected} objects has {} files", imported.files);
        let changed = (work == Work::Again).then(|| expected.div_ceil(REPLACED_ONE_OF));
        ensure!(imported.changed == changed, "{changed:?} objects changed, and the import says {:?}", imported.changed);
        Ok(imported.row(work, round))
    }

    /// Lists all objects as an import does, without keeping anything.
    async fn count(&self, round: u32) -> anyhow::Result<Row> {
        let config = OriginConfig { env: self.server.env().into_iter().collect(), ..OriginConfig::default() };
        let origin: Arc<dyn Origin> = larder_origin::open(&URL.parse()?, &config)?;
        let started = Instant::now();
        let counted = count(origin, CALLS).await?;
        let seconds = started.elapsed().as_secs_f64();
        ensure!(counted.keys == self.keys.count, "a listing of {} objects has {}", self.keys.count, counted.keys);
        let (files, list_requests) = (counted.keys, counted.list_requests);
        Ok(Row { list_requests, ..Row::new(Work::Listing, round, files, seconds) })
    }

    fn last_key(&self) -> String {
        let mut key = Vec::new();
        self.keys.put_key(self.keys.count - 1, &mut key);
        String::from_utf8_lossy(&key).into_owned()
    }
}

fn import_folder(larder: &Larder, entries: &Path, count: u64, round: u32) -> anyhow::Result<Row> {
    let imported = larder.import(&format!("file://{}", entries.display()), &[])?;
    ensure!(imported.files == count, "an import of {count} entries has {} files", imported.files);
    Ok(imported.row(Work::Folder, round))
}

/// Creates empty files, [`PER_FOLDER`] per directory.
fn make_entries(folder: &Path, count: u64, stop: &Stop) -> anyhow::Result<()> {
    let mut below = PathBuf::new();
    for entry in 0..count {
        if entry.is_multiple_of(PER_FOLDER) {
            stop.check()?;
            below = folder.join(format!("{:06}", entry / PER_FOLDER));
            std::fs::create_dir_all(&below).with_context(|| format!("create the directory {}", below.display()))?;
        }
        let path = below.join(format!("{entry:09}.jpg"));
        File::create(&path).with_context(|| format!("make {}", path.display()))?;
    }
    Ok(())
}
