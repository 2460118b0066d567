//! systemd's descriptor store, which keeps the mounts of a service while no process of it runs: over `kill -9`, a
//! restart and an upgrade. systemd passes the descriptors to each new process of the service.
//!
//! A mount is three descriptors in the store: what was mounted ([`KeptMount`]), the memory of its unanswered requests,
//! and its FUSE connection, which is sent last. A descriptor counts as kept once it was sent, since it is then in the
//! queue of systemd's socket.
//!
//! Invariants: a mount whose connection is in the store has its two other descriptors there, too. The descriptors of a
//! number are of one mount: a number is free again once systemd was asked to remove all of them. Credentials are in
//! memory only.
#![expect(unsafe_code, reason = "systemd passes descriptors by their numbers")]

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, IoSlice};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::Context;
use larder_daemon_api::handover::request_memory;
use larder_daemon_api::v1::KeptMount;
use rustix::io::FdFlags;
use rustix::net::{
    AddressFamily, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType,
    sockopt,
};
use tracing::{info, warn};

use crate::mount::detach;

/// The parts of a mount in the store, in the order in which they are sent.
const PARTS: [&str; 3] = ["mount", "requests", "fuse"];

/// The most mounts of a store. systemd passes the names of all descriptors in one variable, of which the kernel takes
/// 128 KiB: a service with more could not start again.
const MOUNTS_MOST: usize = 1500;

/// The limit for sending a message to systemd.
const SEND_TIMEOUT: Duration = Duration::from_secs(5);

/// The first descriptor that systemd passes.
const FIRST: RawFd = 3;

/// The descriptor store of the service that this process belongs to.
#[derive(Debug)]
pub struct DescriptorStore {
    unit: String,
    socket: OwnedFd,
    /// The most mounts that it holds.
    most: usize,
    /// The numbers of the mounts that it holds, and of those that could not be removed.
    numbers: Mutex<BTreeSet<u64>>,
}

/// A mount that an earlier process of the service left in the store.
#[derive(Debug)]
pub struct LeftMount {
    pub(super) own: OwnMount,
    pub(super) fuse: OwnedFd,
    pub(super) memory: OwnedFd,
    pub(super) mount: KeptMount,
}

/// A mount of this daemon's own that is in the store.
#[derive(Clone, Debug)]
pub(super) struct OwnMount {
    /// The folder where it is mounted.
    pub(super) dir: PathBuf,
    /// The most threads that serve it at the same time.
    pub(super) threads: usize,
    /// Whether the kernel may not read cached files by itself.
    pub(super) verify_always: bool,
    number: u64,
    store: Arc<DescriptorStore>,
}

impl OwnMount {
    /// Removes the mount from the store. It has ended, or was not made.
    pub(super) fn forget(&self) {
        self.store.remove(self.number);
    }
}

impl DescriptorStore {
    /// The store of the service `unit`, and the mounts that are in it. Called once in a process. Errors: systemd did
    /// not start this process as a service with a store.
    pub fn of_process(unit: &str) -> anyhow::Result<(Arc<Self>, Vec<LeftMount>)> {
        let variable = |name: &str| {
            std::env::var(name).with_context(|| {
                format!(
                    "--systemd-unit {unit}: {name} is not set; it is for a service with Type=notify, \
                     FileDescriptorStoreMax=N and, before systemd 254, Environment=FDSTORE=N"
                )
            })
        };
        let (path, most) = (variable("NOTIFY_SOCKET")?, variable("FDSTORE")?);
        let socket = connect(&path).with_context(|| format!("connect to systemd at {path} (NOTIFY_SOCKET)"))?;
        let most: usize = most.parse().with_context(|| format!("FDSTORE={most}: use a number"))?;
        Ok(Self::new(unit, socket, (most / PARTS.len()).min(MOUNTS_MOST), passed()))
    }

    /// The store at the other end of `socket`, with what it has passed.
    pub(super) fn new(
        unit: &str,
        socket: OwnedFd,
        most: usize,
        passed: Vec<(String, OwnedFd)>,
    ) -> (Arc<Self>, Vec<LeftMount>) {
        let mut found: BTreeMap<u64, BTreeMap<String, OwnedFd>> = BTreeMap::new();
        let mut doubtful = BTreeSet::new();
        for (name, fd) in passed {
            let Some((number, part)) = parse(&name) else {
                warn!(name, "systemd passed a descriptor that is not a mount's");
                continue;
            };
            if found.entry(number).or_default().insert(part.to_owned(), fd).is_some() {
                doubtful.insert(number);
            }
        }
        let numbers = found.keys().copied().collect();
        let store = Arc::new(Self { unit: unit.to_owned(), socket, most, numbers: Mutex::new(numbers) });
        let mut left = Vec::new();
        for (number, mut parts) in found {
            if doubtful.contains(&number) {
                // Readers of one of them would get the files of the other.
                warn!(number, "systemd passed the descriptors of two mounts under one number: both end");
                store.remove(number);
                continue;
            }
            let [mount, memory, fuse] = PARTS.map(|part| parts.remove(part));
            let (Some(mount), Some(memory), Some(fuse)) = (mount, memory, fuse) else {
                // The mount has ended, or the earlier process was killed before it had sent the connection.
                store.remove(number);
                continue;
            };
            match KeptMount::from_memory(&mount) {
                Ok(mount) => left.push(LeftMount { own: store.own(number, &mount), fuse, memory, mount }),
                Err(error) => {
                    warn!(number, %error, "an earlier larderd left a mount that this one cannot read: it ends");
                    store.remove(number);
                }
            }
        }
        info!(unit, mounts = left.len(), most, "systemd keeps the mounts of this service");
        (store, left)
    }

    fn own(self: &Arc<Self>, number: u64, mount: &KeptMount) -> OwnMount {
        let request = mount.request.clone().unwrap_or_default();
        OwnMount {
            dir: PathBuf::from(request.dir),
            threads: request.threads as usize,
            verify_always: request.verify_always,
            number,
            store: Arc::clone(self),
        }
    }

    /// Puts a mount into the store, with new memory for its requests, which it returns. Blocks while systemd takes no
    /// messages, for 5 s each at most. Errors: the store is full, or systemd does not take it; no later process gets
    /// the mount then.
    pub(super) fn keep(self: &Arc<Self>, fuse: &OwnedFd, mount: &KeptMount) -> io::Result<(OwnMount, OwnedFd)> {
        let memory = request_memory()?;
        let description = mount.to_memory()?;
        let number = self.take_number()?;
        // Without FDPOLL=0, systemd would poll the connection, and wake at each request of its readers.
        let sent = PARTS.into_iter().zip([&description, &memory, fuse]).try_for_each(|(part, fd)| {
            self.send(&format!("FDSTORE=1\nFDPOLL=0\nFDNAME={}", name_of(number, part)), &[fd.as_fd()])
        });
        if let Err(error) = sent {
            self.remove(number);
            return Err(error);
        }
        Ok((self.own(number, mount), memory))
    }

    fn take_number(&self) -> io::Result<u64> {
        let mut numbers = self.lock();
        if numbers.len() >= self.most {
            let what = format!(
                "the service keeps {} mounts at most: unmount another, or raise FileDescriptorStoreMax= and FDSTORE= \
                 of {} alike (three descriptors each, for {MOUNTS_MOST} mounts at most)",
                self.most, self.unit
            );
            return Err(io::Error::new(io::ErrorKind::QuotaExceeded, what));
        }
        // The first gap.
        let gap = numbers.iter().zip(0..).find(|&(&taken, free)| taken != free).map(|(_, free)| free);
        let number = gap.unwrap_or(numbers.len() as u64);
        numbers.insert(number);
        Ok(number)
    }

    /// Removes a mount. Its number stays taken if systemd does not take that: the next process would mix up its
    /// descriptors with those of a later mount.
    fn remove(&self, number: u64) {
        // The connection goes first: without it, the rest is removed at the next start.
        let removed = PARTS
            .into_iter()
            .rev()
            .try_for_each(|part| self.send(&format!("FDSTOREREMOVE=1\nFDNAME={}", name_of(number, part)), &[]));
        match removed {
            Ok(()) => _ = self.lock().remove(&number),
            Err(error) => {
                warn!(number, %error, "cannot remove a mount that has ended from systemd's descriptor store");
            }
        }
    }

    /// Reports to systemd that the service answers.
    pub(super) fn ready(&self) {
        if let Err(error) = self.send("READY=1", &[]) {
            warn!(%error, "cannot report to systemd that larderd is ready");
        }
    }

    /// True if systemd is stopping the service, so that no later process gets its mounts; false if it restarts it, or
    /// if that is not known. Blocks, as long as systemd takes to answer.
    pub(super) fn is_stopped_for_good(&self) -> bool {
        // All jobs, since it would take the name for a pattern.
        let asked = Command::new("systemctl").args(["list-jobs", "--no-legend"]).output();
        match asked {
            Ok(jobs) if jobs.status.success() => has_stop_job(&String::from_utf8_lossy(&jobs.stdout), &self.unit),
            Ok(jobs) => {
                let error = String::from_utf8_lossy(&jobs.stderr);
                warn!(%error, "systemctl cannot say whether the service restarts");
                false
            }
            Err(error) => {
                warn!(%error, "cannot run systemctl, which says whether the service restarts");
                false
            }
        }
    }

    /// Unmounts what an earlier process left, if the service is stopped before this one could serve it. Blocks.
    pub fn end_left(&self, left: &[LeftMount]) {
        if left.is_empty() || !self.is_stopped_for_good() {
            return;
        }
        left.iter().for_each(|left| detach(&left.own.dir));
    }

    fn send(&self, text: &str, fds: &[BorrowedFd<'_>]) -> io::Result<()> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        if !fds.is_empty() && !ancillary.push(SendAncillaryMessage::ScmRights(fds)) {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "a message to systemd has one descriptor at most"));
        }
        rustix::net::sendmsg(&self.socket, &[IoSlice::new(text.as_bytes())], &mut ancillary, SendFlags::NOSIGNAL)?;
        Ok(())
    }

    fn lock(&self) -> MutexGuard<'_, BTreeSet<u64>> {
        self.numbers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn name_of(number: u64, part: &str) -> String {
    format!("larder-{number}-{part}")
}

fn parse(name: &str) -> Option<(u64, &str)> {
    let (number, part) = name.strip_prefix("larder-")?.split_once('-')?;
    let number = number.parse().ok()?;
    // Another spelling of a number, such as 007, could not be removed by its name.
    (PARTS.contains(&part) && name_of(number, part) == name).then_some((number, part))
}

/// True if the output of `systemctl list-jobs` has a job that stops `unit`. A restart is a job of another type.
fn has_stop_job(jobs: &str, unit: &str) -> bool {
    jobs.lines().any(|line| line.split_whitespace().skip(1).take(2).eq([unit, "stop"]))
}

fn connect(path: &str) -> io::Result<OwnedFd> {
    let address = match path.strip_prefix('@') {
        Some(name) => SocketAddrUnix::new_abstract_name(name.as_bytes())?,
        None => SocketAddrUnix::new(Path::new(path))?,
    };
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::DGRAM, SocketFlags::CLOEXEC, None)?;
    sockopt::set_socket_timeout(&socket, sockopt::Timeout::Send, Some(SEND_TIMEOUT))?;
    rustix::net::connect(&socket, &address)?;
    Ok(socket)
}

/// The descriptors that systemd passed to this process, with their names.
fn passed() -> Vec<(String, OwnedFd)> {
    let number = |name: &str| std::env::var(name).ok()?.parse::<u32>().ok();
    // A process that a service starts inherits the variables, but not the descriptors.
    if number("LISTEN_PID") != Some(std::process::id()) {
        return Vec::new();
    }
    let count = number("LISTEN_FDS").and_then(|count| RawFd::try_from(count).ok()).unwrap_or(0);
    let names = std::env::var("LISTEN_FDNAMES").unwrap_or_default();
    let own = |(name, fd): (&str, RawFd)| {
        // SAFETY: it is borrowed for a call that fails if no descriptor of this number is open.
        let borrowed = unsafe { BorrowedFd::borrow_raw(fd) };
        if let Err(errno) = rustix::io::fcntl_setfd(borrowed, FdFlags::CLOEXEC) {
            warn!(name, error = %io::Error::from(errno), "systemd passed a descriptor that is not open");
            return None;
        }
        // SAFETY: systemd passed this many descriptors, from the first on, to this very process, and `of_process` is
        // called once.
        Some((name.to_owned(), unsafe { OwnedFd::from_raw_fd(fd) }))
    };
    names.split(':').zip(FIRST..FIRST.saturating_add(count)).filter_map(own).collect()
}

#[cfg(test)]
mod tests {
    use larder_daemon_api::v1::MountRequest;
    use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};

    use super::*;

    /// systemd's end of the socket, and what it keeps.
    struct Systemd {
        socket: OwnedFd,
        kept: BTreeMap<String, OwnedFd>,
    }

    impl Systemd {
        fn pair() -> (Self, OwnedFd) {
            let (ours, theirs) =
                rustix::net::socketpair(AddressFamily::UNIX, SocketType::DGRAM, SocketFlags::CLOEXEC, None).unwrap();
            (Self { socket: ours, kept: BTreeMap::new() }, theirs)
        }

        /// Takes all messages that were sent. Returns those that say nothing about descriptors.
        fn take(&mut self) -> Vec<String> {
            let mut others = Vec::new();
            loop {
                let mut bytes = [0; 4096];
                let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
                let mut ancillary = RecvAncillaryBuffer::new(&mut space);
                let mut parts = [io::IoSliceMut::new(&mut bytes)];
                let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
                let Ok(received) = recvmsg(&self.socket, &mut parts, &mut ancillary, flags) else { return others };
                let fd = ancillary.drain().find_map(|message| match message {
                    RecvAncillaryMessage::ScmRights(mut fds) => fds.next(),
                    _ => None,
                });
                let text = String::from_utf8(bytes[..received.bytes].to_vec()).unwrap();
                match (text.split_once("\nFDNAME="), fd) {
                    (Some(("FDSTORE=1\nFDPOLL=0", name)), Some(fd)) => _ = self.kept.insert(name.to_owned(), fd),
                    (Some(("FDSTOREREMOVE=1", name)), None) => _ = self.kept.remove(name),
                    _ => others.push(text.clone()),
                }
            }
        }

        /// The descriptors that it passes to the next process.
        fn pass(&self) -> Vec<(String, OwnedFd)> {
            self.kept.iter().map(|(name, fd)| (name.clone(), fd.try_clone().unwrap())).collect()
        }
    }

    fn mount(dir: &str) -> KeptMount {
        let request = MountRequest { dir: dir.to_owned(), threads: 5, ..MountRequest::default() };
        KeptMount { mount: format!("id of {dir}"), init: vec![7], request: Some(request) }
    }

    fn fuse() -> OwnedFd {
        std::io::pipe().unwrap().0.into()
    }

    // SEMANTICS: P12
    #[test]
    fn a_mount_is_kept_until_it_ends_and_the_next_process_gets_it() {
        let (mut systemd, socket) = Systemd::pair();
        let (store, left) = DescriptorStore::new("u", socket.try_clone().unwrap(), 9, Vec::new());
        assert!(left.is_empty());
        let (_, a_memory) = store.keep(&fuse(), &mount("/a")).unwrap();
        let (b, _) = store.keep(&fuse(), &mount("/b")).unwrap();
        std::fs::write(format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&a_memory)), b"taken").unwrap();
        b.forget();
        store.ready();
        assert_eq!(systemd.take(), ["READY=1"]);
        assert_eq!(systemd.kept.len(), 3);

        let (next, left) = DescriptorStore::new("u", socket, 9, systemd.pass());
        let [a] = <[LeftMount; 1]>::try_from(left).unwrap();
        assert_eq!((&a.mount, a.own.dir.as_path(), a.own.threads), (&mount("/a"), Path::new("/a"), 5));
        let requests = std::fs::read(format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&a.memory))).unwrap();
        assert_eq!(requests, b"taken");
        // A new mount takes no descriptor of an older one away.
        next.keep(&fuse(), &mount("/c")).unwrap();
        systemd.take();
        assert_eq!(systemd.kept.len(), 6);
        a.own.forget();
        systemd.take();
        assert!(systemd.kept.keys().all(|name| name.starts_with("larder-1-")), "{:?}", systemd.kept.keys());
    }

    // SEMANTICS: P12
    #[test]
    fn what_is_left_of_a_mount_that_is_not_whole_is_removed() {
        for missing in PARTS {
            let (mut systemd, socket) = Systemd::pair();
            let (store, _) = DescriptorStore::new("u", socket.try_clone().unwrap(), 9, Vec::new());
            store.keep(&fuse(), &mount("/a")).unwrap();
            systemd.take();
            systemd.kept.remove(&name_of(0, missing)).unwrap();
            let (_, left) = DescriptorStore::new("u", socket, 9, systemd.pass());
            systemd.take();
            assert!(left.is_empty() && systemd.kept.is_empty(), "{missing}");
        }
    }

    // SEMANTICS: P12
    #[test]
    fn descriptors_of_two_mounts_are_never_taken_for_those_of_one() {
        let (mut systemd, socket) = Systemd::pair();
        let (store, _) = DescriptorStore::new("u", socket.try_clone().unwrap(), 9, Vec::new());
        let (a, _) = store.keep(&fuse(), &mount("/a")).unwrap();
        store.keep(&fuse(), &mount("/b")).unwrap();
        systemd.take();
        let mut passed = systemd.pass();
        passed.push((name_of(a.number, "fuse"), fuse()));
        let (_, left) = DescriptorStore::new("u", socket, 9, passed);
        assert_eq!(left.iter().map(|left| left.own.dir.as_path()).collect::<Vec<_>>(), [Path::new("/b")]);
        systemd.take();
        assert_eq!(systemd.kept.len(), 3);
    }

    #[test]
    fn a_number_that_systemd_may_still_have_is_not_used_again() {
        let (systemd, socket) = Systemd::pair();
        let (store, _) = DescriptorStore::new("u", socket, 9, Vec::new());
        let (first, _) = store.keep(&fuse(), &mount("/a")).unwrap();
        let (second, _) = store.keep(&fuse(), &mount("/b")).unwrap();
        first.forget();
        assert_eq!(store.take_number().unwrap(), first.number);
        drop(systemd);
        second.forget();
        assert_eq!(store.take_number().unwrap(), 2);
    }

    #[test]
    fn only_names_that_are_spelt_as_this_program_spells_them_are_a_mounts() {
        assert_eq!(parse("larder-12-fuse"), Some((12, "fuse")));
        assert_eq!(parse(&name_of(u64::MAX, "mount")), Some((u64::MAX, "mount")));
        for name in ["stored", "larder-1", "larder-1-other", "larder-01-fuse", "larder-+1-fuse", "larder--1-fuse", ""] {
            assert_eq!(parse(name), None, "{name}");
        }
        // It may be the last number there is.
        let (_systemd, socket) = Systemd::pair();
        let description = mount("/a").to_memory().unwrap();
        let passed = PARTS.into_iter().zip([description, fuse(), fuse()]);
        let passed = passed.map(|(part, fd)| (name_of(u64::MAX, part), fd)).collect();
        let (store, left) = DescriptorStore::new("u", socket, 9, passed);
        assert_eq!((left.len(), store.take_number().unwrap()), (1, 0));
    }

    #[test]
    fn a_full_store_refuses_a_mount_and_says_what_to_do() {
        let (mut systemd, socket) = Systemd::pair();
        let (store, _) = DescriptorStore::new("larderd.service", socket, 1, Vec::new());
        let (first, _) = store.keep(&fuse(), &mount("/a")).unwrap();
        let error = store.keep(&fuse(), &mount("/b")).unwrap_err().to_string();
        assert!(error.contains("FileDescriptorStoreMax= and FDSTORE= of larderd.service"), "{error}");
        systemd.take();
        assert_eq!(systemd.kept.len(), 3);
        first.forget();
        store.keep(&fuse(), &mount("/b")).unwrap();
    }

    #[test]
    fn the_names_of_a_full_store_fit_into_a_variable() {
        let of_one: usize = PARTS.iter().map(|part| name_of(u64::from(u32::MAX), part).len() + 1).sum();
        assert!(MOUNTS_MOST * of_one < (128 << 10) - "LISTEN_FDNAMES=".len());
    }

    #[test]
    fn only_a_stop_ends_the_mounts_of_a_service() {
        let jobs = |kind: &str| format!(" 312 larderd.service {kind} running\n 313 other.service stop waiting\n");
        assert!(has_stop_job(&jobs("stop"), "larderd.service"));
        for kind in ["restart", "start", "try-restart"] {
            assert!(!has_stop_job(&jobs(kind), "larderd.service"), "{kind}");
        }
        assert!(!has_stop_job("", "larderd.service"));
    }
}
