//! Plans: programs say what they are going to read, and it is there when they do.

use std::fs::File;
use std::io::Write;
use std::process::{Child, Stdio};

use larder_e2e::{Lab, Mount, ioctl};
use larder_testkit::seeded_bytes;
use rand::SeedableRng;
use rand::rngs::StdRng;
use rand::seq::SliceRandom;

const FILES: u64 = 200;
const FILE_BYTES: u64 = 10_000;

/// The numbers of the ioctls, and their sizes.
const OPEN: (u32, u32) = (16, 64);
const ROWS: (u32, u32) = (17, 16_000);
const PATHS: (u32, u32) = (18, 16_000);
const RANGES: (u32, u32) = (19, 16_000);
const AT: (u32, u32) = (20, 64);
const CLOSE: (u32, u32) = (21, 64);

const ID: [u8; 16] = [7; 16];

fn name(file: u64) -> String {
    format!("d/{file:03}")
}

/// A mount of which the cache keeps so many bytes.
fn mounted(lab: &Lab, cache_bytes: u64) -> Mount {
    for file in 0..FILES {
        lab.put(&name(file), seeded_bytes(file, FILE_BYTES));
    }
    let mount = lab.mount("m", &lab.url(), &["--cache-size", &cache_bytes.to_string()]);
    lab.server.reset_counters();
    mount
}

fn shuffled(seed: u64) -> Vec<u64> {
    let mut order: Vec<u64> = (0..FILES).collect();
    order.shuffle(&mut StdRng::seed_from_u64(seed));
    order
}

/// Starts `larder plan` for these files of the folder `d`.
fn plan(lab: &Lab, mount: &Mount, order: &[u64]) -> Child {
    let folder = mount.path("d");
    let mut command = lab.command(&["plan", folder.to_str().unwrap(), "--from", "-"]);
    let mut plan = command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    let lines: String = order.iter().map(|file| format!("{file:03}\n")).collect();
    plan.stdin.take().unwrap().write_all(lines.as_bytes()).unwrap();
    plan
}

fn end(mut plan: Child) {
    plan.kill().unwrap();
    plan.wait().unwrap();
}

fn read_all(mount: &Mount, order: &[u64]) {
    for &file in order {
        assert_eq!(mount.read_fresh(name(file)).unwrap(), seeded_bytes(file, FILE_BYTES), "file {file}");
    }
}

/// Waits until the plans hold so many files.
fn wait_until_held(mount: &Mount, files: u64) {
    mount.wait_until("the plan's files are here", |mount| {
        mount.metric("fs_plan_bytes") == files * FILE_BYTES && mount.metric("fs_fetches_running") == 0
    });
}

fn metrics<const N: usize>(mount: &Mount, names: [&str; N]) -> [u64; N] {
    names.map(|name| mount.metric(&format!("fs_plan_{name}_total")))
}

/// The head of an ioctl with items.
fn head(position: u64, count: u32, flags: u32) -> Vec<u8> {
    [&ID[..], &position.to_le_bytes(), &[0; 8], &count.to_le_bytes(), &flags.to_le_bytes()].concat()
}

/// The errno of an ioctl; 0 if it succeeds.
fn errno(node: &File, (number, size): (u32, u32), bytes: &[u8]) -> i32 {
    ioctl(node, number, size, bytes).map_or_else(|error| error.raw_os_error().unwrap(), |_| 0)
}

// SEMANTICS: C27
#[test]
fn planned_files_are_here_when_they_are_read_and_cost_one_get_each_and_the_plan_ends_with_them() {
    let lab = Lab::new();
    // Half of them are kept.
    let mount = mounted(&lab, FILES * FILE_BYTES / 2);
    for epoch in 0..2 {
        let order = shuffled(epoch);
        let missing = FILES - mount.stats()["cache"]["blocks"].as_u64().unwrap();
        order.iter().for_each(|&file| mount.drop_pages(name(file)));
        lab.server.reset_counters();
        let names = ["blocks_in_time", "blocks_late", "blocks_wasted", "blocks_in_page_cache"];
        let [in_time, late, wasted, cached] = metrics(&mount, names);
        let mut plan = plan(&lab, &mount, &order);
        // The kernel may keep a page that it was asked to drop.
        let mut fetched = 0;
        mount.wait_until("all that is missing was fetched", |mount| {
            fetched = lab.server.counters().gets;
            let [now_cached] = metrics(mount, ["blocks_in_page_cache"]);
            fetched + now_cached - cached == missing
        });
        wait_until_held(&mount, fetched);
        read_all(&mount, &order);
        assert_eq!(lab.server.counters().gets, missing, "no reader fetched a planned file again");
        assert_eq!(metrics(&mount, names)[..3], [in_time + fetched, late, wasted]);
        assert!(plan.wait().unwrap().success());
        assert_eq!((mount.metric("fs_plans"), mount.metric("fs_plan_bytes")), (0, 0));
        mount.settle();
    }
    let shown = lab.larder_ok(&["stats", mount.dir().to_str().unwrap()]);
    assert!(shown.contains("plans     0 open; of planned blocks"), "{shown}");
    let kept = mount.stats()["cache"]["blocks"].as_u64().unwrap();
    assert!((90..=100).contains(&kept), "{kept} of 100");
}

// SEMANTICS: C28
#[test]
fn what_the_kernel_has_in_its_page_cache_is_not_fetched() {
    let lab = Lab::new();
    let mount = mounted(&lab, 0);
    let order = shuffled(1);
    read_all(&mount, &order);
    let dropped = &order[..50];
    dropped.iter().for_each(|&file| mount.drop_pages(name(file)));
    lab.server.reset_counters();
    let plan = plan(&lab, &mount, &order);
    mount.wait_until("all files were looked at", |mount| {
        let [cached] = metrics(mount, ["blocks_in_page_cache"]);
        cached + lab.server.counters().gets == FILES && mount.metric("fs_fetches_running") == 0
    });
    let [cached] = metrics(&mount, ["blocks_in_page_cache"]);
    // The kernel may have dropped further pages.
    assert!(cached > FILES / 2 && cached <= FILES - dropped.len() as u64, "{cached} are in the page cache");
    let fetched = dropped.iter().filter(|&&file| lab.gets_of(&name(file)) == 1).count();
    assert!(fetched > dropped.len() / 2, "{fetched} of those that were dropped are fetched");
    end(plan);
}

// SEMANTICS: C27
#[test]
fn a_plan_that_is_not_followed_or_left_costs_no_more_than_what_it_holds() {
    let lab = Lab::new();
    let mount = mounted(&lab, 0);
    let folder = File::open(mount.path("d")).unwrap();
    let rows: Vec<u8> = (0..50_u32).flat_map(u32::to_le_bytes).collect();
    assert_eq!(ioctl(&folder, OPEN.0, OPEN.1, &ID).unwrap(), 65_536);
    assert_eq!(ioctl(&folder, ROWS.0, ROWS.1, &[head(0, 50, 0), rows].concat()).unwrap(), 65_486);
    wait_until_held(&mount, 50);
    // The reader wants others, and reads right bytes without an error.
    let others: Vec<u64> = shuffled(2).into_iter().filter(|file| (100..150).contains(file)).collect();
    read_all(&mount, &others);
    assert_eq!(ioctl(&folder, CLOSE.0, CLOSE.1, &ID).unwrap(), 0);
    assert_eq!((mount.metric("fs_plans"), mount.metric("fs_plan_bytes")), (0, 0));
    assert_eq!(metrics(&mount, ["wasted_bytes"]), [50 * FILE_BYTES]);
    let planned: Vec<u64> = shuffled(3).into_iter().filter(|file| *file < 50).collect();
    read_all(&mount, &planned);
    assert_eq!((lab.server.counters().gets, mount.metric("fs_errors_total")), (150, 0));
}

/// Two jobs with a plan each, of which one does not read.
// SEMANTICS: C27
#[test]
fn a_plan_that_nobody_reads_takes_nothing_from_another() {
    let lab = Lab::new();
    let mount = mounted(&lab, 0);
    let order = shuffled(4);
    let (left, read) = order.split_at(FILES as usize / 2);
    let other = plan(&lab, &mount, left);
    wait_until_held(&mount, left.len() as u64);
    let own = plan(&lab, &mount, read);
    wait_until_held(&mount, FILES);
    read_all(&mount, read);
    assert_eq!(metrics(&mount, ["blocks_in_time", "blocks_late", "blocks_wasted"]), [read.len() as u64, 0, 0]);
    assert_eq!(mount.metric("fs_plan_bytes"), left.len() as u64 * FILE_BYTES, "the other is as far ahead as before");
    assert_eq!(lab.server.counters().gets, FILES);
    end(own);
    end(other);
}

// SEMANTICS: C29
#[test]
fn junk_in_the_ioctls_is_an_errno() {
    let lab = Lab::new();
    let mount = mounted(&lab, 0);
    let (folder, file) = (File::open(mount.dir()).unwrap(), File::open(mount.path("d/000")).unwrap());
    for node in [&folder, &file] {
        for command in [ROWS, RANGES, AT, CLOSE] {
            assert_eq!(errno(node, command, &ID), libc::ENOENT, "no plan is open: {command:?}");
        }
        assert_eq!(errno(node, OPEN, &[&ID[..], &[1; 32]].concat()), libc::ESTALE, "another snapshot");
        for (number, size) in [(15, 64), (22, 64), (16, 65), (17, 64), (20, 16_000), (2, 16_000)] {
            assert_eq!(errno(node, (number, size), &ID), libc::ENOTTY, "no ioctl of ours: {number}");
        }
    }
    // An ioctl that asks, on a mount that does not: its number has another direction.
    assert_eq!(errno(&folder, (22, 2_000), &ID), libc::ENOTTY);
    assert_eq!(errno(&folder, OPEN, &ID), 0);
    assert_eq!(errno(&folder, ROWS, &[head(0, 1, 0), (FILES as u32).to_le_bytes().to_vec()].concat()), libc::EINVAL);
    assert_eq!(errno(&folder, ROWS, &head(0, 3_991, 0)), libc::EINVAL, "a count that lies");
    assert_eq!(errno(&folder, PATHS, &head(0, 15_961, 0)), libc::EINVAL);
    assert_eq!(errno(&folder, RANGES, &head(0, u32::MAX, 0)), libc::EINVAL);
    assert_eq!(errno(&folder, ROWS, &head(u64::MAX, 1, 0)), libc::EINVAL);
    assert_eq!(errno(&folder, ROWS, &head(0, 1, 2)), libc::EINVAL, "an unknown flag");
    assert_eq!(errno(&file, PATHS, &[head(0, 1, 0), b"000\0".to_vec()].concat()), libc::ENOTDIR);
    assert_eq!(errno(&folder, PATHS, &[head(0, 1, 0), b"../../etc/passwd\0".to_vec()].concat()), 0, "no such file");
    let opened = (0..10_000_u32).filter(|n| {
        let id = [&n.to_le_bytes()[..], &[1; 12]].concat();
        errno(&folder, OPEN, &id) == 0
    });
    let opened = opened.count();
    // The second if the kernel does not say the user.
    assert!(opened == 31 || opened == 63, "{opened} of 10,000 plans");
    assert_eq!(mount.read_fresh("d/000").unwrap(), seeded_bytes(0, FILE_BYTES));
    assert_eq!(lab.server.counters().gets, 1, "nothing was planned");
}

#[test]
fn a_list_has_paths_as_find_prints_them_or_absolute_ones_and_others_are_an_error() {
    let lab = Lab::new();
    let mount = mounted(&lab, 0);
    let (folder, list) = (mount.path("d").join(""), lab.folder().join("list"));
    let args = ["plan", folder.to_str().unwrap(), "--from", list.to_str().unwrap()];
    std::fs::write(&list, format!("# the first\n./000\n{}001\n", folder.display())).unwrap();
    let mut command = lab.command(&args);
    let plan = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    wait_until_held(&mount, 2);
    end(plan);
    for elsewhere in ["d/000".to_owned(), list.display().to_string()] {
        std::fs::write(&list, format!("{elsewhere}\n")).unwrap();
        let error = lab.larder_fails(1, &args);
        assert!(error.contains(&elsewhere) && error.contains("use paths below"), "{error}");
    }
}

/// The Python package at a real mount. `make python` runs its own tests.
// SEMANTICS: C27
#[test]
fn a_python_program_plans_what_it_reads_and_its_threads_go_on_while_the_mount_does_not_answer() {
    let lab = Lab::new();
    let mount = mounted(&lab, 0);
    let package = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../python");
    let mut live = std::process::Command::new("python3");
    live.arg(package.join("tests/live.py")).arg(mount.dir()).arg(mount.pid().to_string());
    live.env("PYTHONPATH", package.join("src")).env("PYTHONDONTWRITEBYTECODE", "1");
    let output = live.output().expect("python3 runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(mount.metric("fs_errors_total"), 0);
}
