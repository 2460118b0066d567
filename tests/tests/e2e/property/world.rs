//! [`World`]: the node, its disk and its datasets, and the steps that change them.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::PathBuf;

use larder_e2e::{Lab, Larderd};
use larder_testkit::Fault;
use proptest::prelude::*;
use rustix::io::Errno;
use rustix::mount::{MountFlags, UnmountFlags};

use super::dataset::Dataset;
use super::drawn::{Cache, DATASETS, Event, Pick, Setup, Step, Trouble};
use super::model::Allowed;

/// The cache's disk.
const DISK_BYTES: u64 = 96 << 20;

/// What the paths of files with blocks contain: segments, large files, and the tables of their pages.
const BLOCKS: [&str; 3] = [".seg", "/files/", "/pages"];

/// The node, its disk and its datasets. They are dropped in this order.
pub(super) struct World {
    datasets: Vec<Dataset>,
    larderd: Larderd,
    disk: Disk,
    cache: Cache,
    lab: Lab,
}

/// A file system in memory.
struct Disk(PathBuf);

impl Disk {
    fn new(dir: PathBuf) -> Self {
        std::fs::create_dir_all(&dir).unwrap();
        let options = std::ffi::CString::new(format!("size={DISK_BYTES}")).unwrap();
        rustix::mount::mount("larder-test", &dir, "tmpfs", MountFlags::empty(), options.as_c_str()).unwrap();
        Self(dir)
    }

    /// A file that takes all the room there is.
    fn ballast(&self) -> PathBuf {
        self.0.join("ballast")
    }

    fn fill(&self) {
        let file = File::create(self.ballast()).unwrap();
        // In steps, because one that does not fit takes nothing.
        let mut step = DISK_BYTES;
        let mut len = 0;
        while step >= 4096 {
            match rustix::fs::fallocate(&file, rustix::fs::FallocateFlags::empty(), len, step) {
                Ok(()) => len += step,
                Err(_) => step /= 2,
            }
        }
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        let _ = rustix::mount::unmount(&self.0, UnmountFlags::DETACH);
    }
}

fn flags(cache: Cache) -> Vec<String> {
    vec![format!("--cache-size={}", cache.bytes)]
}

impl World {
    pub(super) fn new(setup: &Setup) -> Self {
        let lab = Lab::new();
        let disk = Disk::new(lab.folder().join("node-m/cache"));
        let flags = flags(setup.cache);
        let larderd = Larderd::start(&lab, "m", &flags.iter().map(String::as_str).collect::<Vec<_>>());
        larderd.wait_until_it_answers();
        let tree = |nth: usize| Dataset::new(&lab, &larderd, nth, &setup.trees[nth], setup.cache.policies[nth]);
        let datasets = (0..DATASETS).map(tree).collect();
        Self { datasets, larderd, disk, cache: setup.cache, lab }
    }

    /// Starts the daemon again and mounts everything where it was.
    fn start_again(&mut self, cache: Cache) {
        self.cache = cache;
        self.larderd.set_flags(&flags(cache));
        self.larderd.restart();
        self.larderd.wait_until_it_answers();
        for (dataset, policy) in self.datasets.iter_mut().zip(cache.policies) {
            dataset.mount_again(&self.lab, &self.larderd, policy);
        }
    }

    pub(super) fn step(&mut self, step: &Step) -> Result<(), TestCaseError> {
        let mut allowed = Allowed::default();
        match &step.event {
            Event::Nothing => {}
            Event::Restart(cache) => {
                self.datasets.iter().for_each(|dataset| dataset.unmount(&self.lab));
                self.larderd.terminate();
                self.start_again(*cache);
            }
            Event::Remount(which) => {
                let which = which.of(DATASETS as u64) as usize;
                self.datasets[which].unmount(&self.lab);
                self.datasets[which].mount_again(&self.lab, &self.larderd, self.cache.policies[which]);
            }
            Event::NewSnapshot(which) => {
                let which = which.of(DATASETS as u64) as usize;
                self.datasets[which].unmount(&self.lab);
                self.datasets[which].mount_newest(&self.lab, &self.larderd, self.cache.policies[which]);
            }
            Event::Kill(_) => allowed.anything = true,
            Event::Faults(trouble) => {
                allowed.errnos = trouble.errnos();
                self.set_trouble(*trouble);
            }
            Event::Rot(file, at) => self.spoil(&BLOCKS, *file, |file, len| {
                let at = at.of(len);
                let mut byte = [0];
                if file.read_exact_at(&mut byte, at).is_ok() {
                    file.write_all_at(&[!byte[0]], at).unwrap();
                }
            }),
            Event::Tear(file, at) => self.spoil(&BLOCKS, *file, |file, len| file.set_len(at.of(len)).unwrap()),
            Event::RotSlots(table, at) => self.spoil(&["/slots"], *table, |file, len| {
                file.write_all_at(&[at.0 as u8], 4096 + at.of(len.saturating_sub(4096)).min(8 * 40)).unwrap();
            }),
            Event::CutSlots(table, at) => {
                self.spoil(&["/slots"], *table, |file, len| file.set_len(at.of(len)).unwrap());
            }
            Event::FullDisk => self.disk.fill(),
            Event::Wipe => {
                // The daemon may be making a file there.
                let _ = std::fs::remove_dir_all(self.disk.0.join("datasets"));
            }
            Event::Replace(dataset, file) => self.lose(*dataset, *file, Errno::STALE),
            Event::Delete(dataset, file) => self.lose(*dataset, *file, Errno::NOENT),
        }
        let is_killed = matches!(step.event, Event::Kill(_));
        let (datasets, larderd) = (&self.datasets, &mut self.larderd);
        let results: Vec<Result<(), String>> = std::thread::scope(|scope| {
            let readers: Vec<_> = step
                .readers
                .iter()
                .map(|reader| {
                    let (dataset, allowed) = (reader.dataset.among(datasets), &allowed);
                    let run = |op| dataset.run(op, allowed).map_err(|error| format!("{op:?}: {error}"));
                    scope.spawn(move || reader.ops.iter().try_for_each(run))
                })
                .collect();
            if is_killed {
                larderd.kill();
            }
            readers
                .into_iter()
                .map(|reader| reader.join().unwrap_or_else(|_| Err("a reader panicked".into())))
                .collect()
        });
        for result in results {
            let log = || self.larderd.log();
            result.map_err(|error| TestCaseError::fail(format!("{error}, in {step:?}\n{}", log())))?;
        }
        self.lab.proxy.set_hook(|_| Fault::None);
        let _ = std::fs::remove_file(self.disk.ballast());
        if let Event::Kill(cache) = &step.event {
            self.start_again(*cache);
        }
        let mut promised = 0;
        for dataset in &self.datasets {
            // The kernel reads ahead: no request made during a fault may be in flight after it.
            dataset.mount.settle();
            let stats = dataset.mount.stats();
            prop_assert_eq!(&stats["metrics"]["fs_panics_total"], 0, "{:#}", stats);
            promised += stats["cache"]["capacity_bytes"].as_u64().unwrap();
        }
        prop_assert!(promised <= self.cache.bytes, "{} bytes are promised of {}", promised, self.cache.bytes);
        Ok(())
    }

    fn set_trouble(&self, trouble: Trouble) {
        self.lab.proxy.set_hook(move |head| match trouble {
            Trouble::Errors if head.seq % 2 == 0 => Fault::Status { status: 500, code: "InternalError" },
            Trouble::SlowDown if head.seq % 2 == 0 => Fault::Status { status: 503, code: "SlowDown" },
            Trouble::Truncation if head.seq % 2 == 0 => Fault::Truncate { after: head.seq * 777 % 100_000 },
            Trouble::Resets if head.seq % 2 == 0 => Fault::Reset,
            Trouble::WrongLength if head.seq % 3 == 0 => Fault::WrongLength { delta: -1 },
            Trouble::WrongLength if head.seq % 3 == 1 => Fault::WrongLength { delta: 100 },
            Trouble::Stalls if head.seq % 4 == 0 => Fault::Stall,
            Trouble::Stalls if head.seq % 4 == 1 => Fault::StallBeforeHead,
            Trouble::Denied => Fault::Status { status: 403, code: "AccessDenied" },
            Trouble::Missing => Fault::Status { status: 404, code: "NoSuchKey" },
            _ => Fault::None,
        });
    }

    /// Changes a file of the cache, if there is one.
    fn spoil(&self, kinds: &[&str], which: Pick, change: impl FnOnce(&File, u64)) {
        let mut folders = vec![self.disk.0.join("datasets")];
        let mut found = Vec::new();
        while let Some(folder) = folders.pop() {
            // It was wiped.
            for entry in std::fs::read_dir(folder).into_iter().flatten() {
                let path = entry.unwrap().path();
                if path.is_dir() {
                    folders.push(path);
                } else if kinds.iter().any(|kind| path.to_str().unwrap().contains(kind)) {
                    found.push(path);
                }
            }
        }
        found.sort();
        if found.is_empty() {
            return;
        }
        // An evicting policy may have deleted it meanwhile.
        if let Ok(file) = OpenOptions::new().read(true).write(true).open(which.among(&found)) {
            let len = file.metadata().unwrap().len();
            change(&file, len);
        }
    }

    fn lose(&mut self, dataset: Pick, file: Pick, errno: Errno) {
        let dataset = &mut self.datasets[dataset.of(DATASETS as u64) as usize];
        dataset.lose(&self.lab, file, errno);
    }
}
