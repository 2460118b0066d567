//! Opening the database of the index.

use std::path::Path;
use std::{fs, io};

use rocksdb::{BlockBasedOptions, Cache, ColumnFamilyDescriptor, DB, ErrorKind, Options};
use tracing::warn;

use super::rows::{BLOCKS, DATASETS};

/// A column family of earlier versions. RocksDB can open a database only with all of its families.
const EPOCHS: &str = "epochs";

/// Options that keep RocksDB's memory small: the index is written constantly and read only after a loss.
fn options() -> Options {
    let mut table = BlockBasedOptions::default();
    table.set_block_cache(&Cache::new_lru_cache(1 << 20));
    let mut options = Options::default();
    options.set_block_based_table_factory(&table);
    options.create_if_missing(true);
    options.create_missing_column_families(true);
    options.set_max_open_files(64);
    options.set_write_buffer_size(2 << 20);
    options.set_db_write_buffer_size(8 << 20);
    options.set_max_total_wal_size(8 << 20);
    options.set_max_background_jobs(2);
    options.set_keep_log_file_num(1);
    options.set_max_log_file_size(1 << 20);
    options.set_log_level(rocksdb::LogLevel::Warn);
    options
}

pub(super) fn open_or_create(path: &Path) -> Result<DB, rocksdb::Error> {
    open(path).or_else(|error| {
        // An index that is damaged, unreadable or not a database is replaced: blocks are found through their slots. An
        // index that fails because the disk is full, or because the process reached a limit, is intact and kept.
        if SHORTAGES.iter().any(|shortage| error.as_ref().contains(shortage)) || set_aside(path).is_err() {
            return Err(error);
        }
        warn!(%error, "the index cannot be used and is replaced by an empty one");
        open(path)
    })
}

/// Fragments of system errors that do not mean that the index is damaged.
const SHORTAGES: [&str; 5] =
    ["No space left", "Disk quota exceeded", "Too many open files", "Cannot allocate memory", "Read-only file system"];

/// Moves the index aside, then removes it. Fails if it cannot be moved.
fn set_aside(path: &Path) -> io::Result<()> {
    let aside = path.with_extension("damaged");
    let remove = || fs::remove_dir_all(&aside).or_else(|_| fs::remove_file(&aside));
    // An earlier run may have left a folder under this name.
    let _ = remove();
    fs::rename(path, &aside)?;
    let _ = remove();
    Ok(())
}

fn open(path: &Path) -> Result<DB, rocksdb::Error> {
    let has_epochs = match DB::list_cf(&options(), path) {
        Ok(names) => names.iter().any(|name| name == EPOCHS),
        // The disk or a process limit is the cause; the index is intact.
        Err(error) if error.kind() == ErrorKind::IOError && path.join("CURRENT").exists() => return Err(error),
        // The index is new or damaged; opening it distinguishes the two.
        Err(_) => false,
    };
    let families = [DATASETS, BLOCKS].into_iter().chain(has_epochs.then_some(EPOCHS));
    let families = families.map(|name| ColumnFamilyDescriptor::new(name, options()));
    let mut db = DB::open_cf_descriptors(&options(), path, families)?;
    if has_epochs && let Err(error) = db.drop_cf(EPOCHS) {
        warn!(%error, "cannot drop the unused family `epochs` of the index");
    }
    Ok(db)
}
