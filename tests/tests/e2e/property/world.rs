//! [`World`]: the bucket, the mount and the model, and the steps that change them.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::time::Duration;

use larder_e2e::{BUCKET, Lab, Mount};
use larder_testkit::{Fault, seeded_bytes};
use proptest::prelude::*;
use rustix::io::Errno;

use super::drawn::{Cache, Event, Pick, Setup, Step, Trouble};
use super::model::{Allowed, FileModel};

/// The bucket, the mount and the model of both.
pub(super) struct World {
    lab: Lab,
    pub(super) mount: Mount,
    source: String,
    pub(super) packed: bool,
    pub(super) files: Vec<FileModel>,
    /// The names in each folder.
    pub(super) folders: BTreeMap<String, BTreeSet<String>>,
    replaced: u64,
}

fn flags(cache: Cache) -> [String; 8] {
    // The deadline is far away, so that a slow machine is no fault. The attempts are short, so that a stall passes.
    let flags = [
        "--cache-size",
        &cache.bytes.to_string(),
        "--policy",
        cache.policy,
        "--attempt-timeout",
        "500ms",
        "--read-deadline",
        "60s",
    ];
    flags.map(str::to_owned)
}

fn mount(lab: &Lab, source: &str, cache: Cache) -> Mount {
    let flags = flags(cache);
    lab.mount("m", source, &flags.each_ref().map(String::as_str))
}

impl World {
    pub(super) fn new(setup: &Setup) -> Self {
        let lab = Lab::new();
        let mut kept = BTreeMap::<&str, u64>::new();
        for (key, size) in &setup.files {
            let shadows = |other: &str| {
                other == key || other.starts_with(&format!("{key}/")) || key.starts_with(&format!("{other}/"))
            };
            if !kept.keys().any(|other| shadows(other)) {
                kept.insert(key, *size);
            }
        }
        let mut folders = BTreeMap::<String, BTreeSet<String>>::new();
        let mut files = Vec::new();
        for (nth, (key, size)) in kept.into_iter().enumerate() {
            let bytes = seeded_bytes(nth as u64, size);
            let etag = lab.server.put(BUCKET, &format!("data/{key}"), bytes.clone());
            files.push(FileModel { key: key.to_owned(), bytes, etag, lost: None });
            let mut path = key;
            loop {
                let (folder, name) = path.rsplit_once('/').unwrap_or(("", path));
                folders.entry(folder.to_owned()).or_default().insert(name.to_owned());
                if folder.is_empty() {
                    break;
                }
                path = folder;
            }
        }
        let mut source = lab.url();
        if setup.packed {
            source = format!("s3://{BUCKET}/packed");
            lab.larder_ok(&["pack", &lab.url(), &source, "--pack-size", "1MiB"]);
        }
        let mount = mount(&lab, &source, setup.cache);
        Self { mount, source, packed: setup.packed, files, folders, replaced: 0, lab }
    }

    /// Mounts again at the folder of the last mount.
    fn mount_again(&mut self, cache: Cache) {
        let mount = mount(&self.lab, &self.source, cache);
        // Dropping the old one would unmount the new one.
        std::mem::forget(std::mem::replace(&mut self.mount, mount));
    }

    pub(super) fn step(&mut self, step: &Step) -> Result<(), TestCaseError> {
        let mut allowed = Allowed::default();
        match &step.event {
            Event::Nothing => {}
            Event::Restart(cache) => {
                self.lab.larder_ok(&["umount", self.mount.dir().to_str().unwrap()]);
                let proc = format!("/proc/{}/stat", self.mount.pid());
                while std::fs::read_to_string(&proc).is_ok_and(|stat| !stat.contains(") Z ")) {
                    std::thread::sleep(Duration::from_millis(5));
                }
                self.mount_again(*cache);
            }
            Event::Kill(_) => allowed.anything = true,
            Event::Faults(trouble) => {
                allowed.errnos = trouble.errnos();
                self.set_trouble(*trouble);
            }
            Event::Rot(segment, at) => self.spoil(".seg", *segment, |file, len| {
                let at = at.of(len);
                let mut byte = [0];
                if file.read_exact_at(&mut byte, at).is_ok() {
                    file.write_all_at(&[!byte[0]], at).unwrap();
                }
            }),
            Event::Tear(segment, at) => self.spoil(".seg", *segment, |file, len| file.set_len(at.of(len)).unwrap()),
            Event::RotSlots(at) => self.spoil("/slots", Pick(0), |file, len| {
                file.write_all_at(&[at.0 as u8], 4096 + at.of(len.saturating_sub(4096)).min(8 * 40)).unwrap();
            }),
            Event::Replace(file) => self.lose(*file, Errno::STALE),
            Event::Delete(file) => self.lose(*file, Errno::NOENT),
        }
        let (world, is_killed) = (&*self, matches!(step.event, Event::Kill(_)));
        let results: Vec<Result<(), String>> = std::thread::scope(|scope| {
            let readers: Vec<_> = step
                .readers
                .iter()
                .map(|ops| {
                    let allowed = &allowed;
                    scope.spawn(move || {
                        ops.iter().try_for_each(|op| world.run(op, allowed).map_err(|e| format!("{op:?}: {e}")))
                    })
                })
                .collect();
            if is_killed {
                world.mount.kill();
            }
            readers
                .into_iter()
                .map(|reader| reader.join().unwrap_or_else(|_| Err("a reader panicked".into())))
                .collect()
        });
        for result in results {
            result.map_err(|error| TestCaseError::fail(format!("{error}, in {step:?}")))?;
        }
        self.lab.proxy.set_hook(|_| Fault::None);
        if let Event::Kill(cache) = &step.event {
            self.mount_again(*cache);
        }
        // The kernel reads ahead: no request made during a fault may be in flight after it.
        self.mount.settle();
        let stats = self.mount.stats();
        prop_assert_eq!(&stats["metrics"]["fs_panics_total"], 0, "{:#}", stats);
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
    fn spoil(&self, ending: &str, which: Pick, change: impl FnOnce(&File, u64)) {
        let mut folders = vec![self.lab.cache_dir("m").join("datasets")];
        let mut found = Vec::new();
        while let Some(folder) = folders.pop() {
            for entry in std::fs::read_dir(folder).unwrap() {
                let path = entry.unwrap().path();
                if path.is_dir() {
                    folders.push(path);
                } else if path.to_str().unwrap().ends_with(ending) {
                    found.push(path);
                }
            }
        }
        found.sort();
        if found.is_empty() {
            return;
        }
        let file = OpenOptions::new().read(true).write(true).open(&found[which.of(found.len() as u64) as usize]);
        // An evicting policy may have deleted it meanwhile.
        if let Ok(file) = file {
            let len = file.metadata().unwrap().len();
            change(&file, len);
        }
    }

    fn lose(&mut self, file: Pick, errno: Errno) {
        let (which, packed) = (file.of(self.files.len() as u64) as usize, self.packed);
        let file = &mut self.files[which];
        // A pack still has the bytes of an object that was packed, and an empty object is never requested.
        if packed || file.bytes.is_empty() {
            return;
        }
        let key = format!("data/{}", file.key);
        if errno == Errno::NOENT {
            self.lab.server.delete(BUCKET, &key);
        } else {
            self.replaced += 1;
            self.lab.server.put(BUCKET, &key, seeded_bytes(u64::MAX - self.replaced, file.bytes.len() as u64));
        }
        file.lost = Some(errno);
    }
}
