use super::*;

fn known() -> Known {
    Known {
        key: None,
        name: "images".into(),
        payer: String::new(),
        reservation: Some(Reservation { bytes: 1, disk_bytes: 2, wanted_bytes: 3 }),
        policy: PolicyKind::Fifo,
        connections: Some(["ab".to_owned(), "c".to_owned()].into()),
        last_use_unix_s: 4,
        adopted_disk_bytes: 0,
        used_bytes: None,
    }
}

const GOLDEN: &[u8] = b"LARDERRV\x01\x02\x02\0\0\0\0\0\x01\0\0\0\0\0\0\0\x02\0\0\0\0\0\0\0\x03\0\0\0\0\0\0\0\
    \x04\0\0\0\0\0\0\0\x02ab\x01cimages";

#[test]
fn the_file_is_still_written_and_read_as_version_1() {
    let file = encode(&known());
    assert_eq!(file[..file.len() - 4], *GOLDEN);
    assert_eq!(decode(&file), Some(known()));
}

#[test]
fn the_adopted_bytes_are_where_earlier_versions_write_zeros() {
    for pages in [1, 0x0123_4567_89ab, 0xff_ffff_ffff] {
        let known = Known { adopted_disk_bytes: pages % (1 << 40) * 4096, ..known() };
        let file = encode(&known);
        assert_eq!((decode(&file), &file[16..file.len() - 4]), (Some(known), &GOLDEN[16..]));
    }
}

#[test]
fn damaged_bytes_decode_to_nothing_and_never_panic() {
    let file = encode(&known());
    for cut in 0..file.len() {
        assert_eq!(decode(&file[..cut]), None);
        // The checksum is valid, so the decoder must reject the content itself.
        let mut sealed = file[..cut].to_vec();
        sealed.extend(larder_dataset::crc32c(&sealed).to_le_bytes());
        let _ = decode(&sealed);
    }
    for at in 0..file.len() {
        let mut flipped = file.clone();
        flipped[at] ^= 1;
        assert_eq!(decode(&flipped), None);
    }
}

const SNAPSHOT: CacheId = CacheId([1; 32]);

// SEMANTICS: C10
#[test]
fn a_reservation_that_cannot_be_written_leaves_no_file_that_says_something_else() {
    let folder = tempfile::tempdir().unwrap();
    let reservations = Reservations::default();
    let put = |connections: &[&str]| {
        let connections = connections.iter().map(|&name| name.to_owned()).collect();
        reservations.put(&SNAPSHOT, Some(folder.path()), |it| *it = Known { connections: Some(connections), ..known() })
    };
    let before = put(&[]);
    assert_eq!(read(&file_in(folder.path())), Some(before));
    // A folder blocks the path of the temporary file, so the write fails.
    std::fs::create_dir(folder.path().join("reservation.new")).unwrap();
    let now = put(&["a"]);
    assert_eq!(reservations.get(&SNAPSHOT), Some(now), "in memory it is known");
    let load = || Reservations::load([(SNAPSHOT, folder.path().to_owned())], []).unwrap().get(&SNAPSHOT).unwrap();
    assert_eq!(load().connections, None, "a start must not take it for a dataset without connections");
    std::fs::remove_dir(folder.path().join("reservation.new")).unwrap();
    let after = put(&["a", "b"]);
    assert_eq!(load(), after);
}

#[test]
fn what_only_changes_the_time_of_the_last_use_is_written_later_and_everything_else_at_once() {
    let folder = tempfile::tempdir().unwrap();
    let (id, path) = (&SNAPSHOT, Some(folder.path()));
    let load = || Reservations::load([(SNAPSHOT, folder.path().to_owned())], []).unwrap();
    let stored = || read(&file_in(folder.path()));
    let reservations = load();
    reservations.put_news(id, path, |it| *it = known());
    assert_eq!(stored(), Some(known()), "there was no file");
    let next = load();
    let hold = |it: &mut Known| {
        it.last_use_unix_s += 1;
        it.connections.get_or_insert_default().insert("c".to_owned());
    };
    assert_eq!(next.put_news(id, path, hold).last_use_unix_s, 5);
    assert_eq!(stored(), Some(known()), "the connection was in the file");
    next.put_use(id, path);
    assert_eq!(stored().unwrap().last_use_unix_s, 5);
    next.put_news(id, path, |it| it.connections = Some(["d".to_owned()].into()));
    assert_eq!(stored().unwrap().connections, Some(["d".to_owned()].into()));
    // A folder blocks the path of the temporary file, so the write fails, and the next call tries again.
    std::fs::create_dir(folder.path().join("reservation.new")).unwrap();
    next.put(id, path, hold);
    std::fs::remove_dir(folder.path().join("reservation.new")).unwrap();
    next.put_news(id, path, hold);
    assert_eq!(stored().unwrap().connections, Some(["c".to_owned(), "d".to_owned()].into()));
}

#[test]
fn known_usage_is_readable_while_a_reservation_is_written() {
    let folder = tempfile::tempdir().unwrap();
    // Opening a pipe for writing blocks until a reader opens it, like a hanging disk.
    let pipe = folder.path().join("reservation.new");
    rustix::fs::mknodat(rustix::fs::CWD, &pipe, rustix::fs::FileType::Fifo, rustix::fs::Mode::RWXU, 0).unwrap();
    let reservations = Reservations::default();
    std::thread::scope(|scope| {
        scope.spawn(|| reservations.put(&SNAPSHOT, Some(folder.path()), |it| *it = known()));
        let (done, finished) = std::sync::mpsc::channel();
        let reservations = &reservations;
        scope.spawn(move || {
            while reservations.get(&SNAPSHOT).is_none() {
                std::thread::yield_now();
            }
            reservations.note(&SNAPSHOT, |it| it.last_use_unix_s = 9);
            done.send(reservations.get(&SNAPSHOT)).unwrap();
        });
        let noted = finished.recv_timeout(std::time::Duration::from_secs(30));
        // Let the blocked write finish before the test ends.
        drop(File::open(&pipe).unwrap());
        assert_eq!(noted.expect("it does not wait for the disk"), Some(Known { last_use_unix_s: 9, ..known() }));
    });
}

#[test]
fn what_blocks_take_on_the_disk_is_never_more_than_is_counted() {
    for len in [1, 1024, 4096 - 68, 4096 - 67, 65_536, 65_537, 111_000, 4 << 20] {
        let counted = disk_bytes(len, 1);
        let taken = record::extent_bytes(u32::try_from(len).unwrap()) as u64;
        assert!(taken <= counted && counted < taken + 4096 + 68, "{len}: {taken} of {counted}");
    }
}

#[test]
fn what_a_dataset_is_promised_without_its_manifest_is_enough() {
    use larder_dataset::nodes::most_on_disk;
    for (files, len) in [(1_u64, 1_u64), (1000, 16 << 10), (1000, (4 << 20) + 1), (3, 100 << 20), (0, 0)] {
        let blocks = files * len.div_ceil(larder_dataset::BLOCK_BYTES);
        let (counted, total) = (disk_bytes(files * len, blocks), files * len);
        assert!(counted <= most_on_disk(total, total, files), "{files} of {len}");
        assert!(most_on_disk(total, total, files) <= counted + files * 4163, "{files} of {len}");
    }
    assert_eq!(most_on_disk(50, 100, 10), most_on_disk(100, 100, 10) / 2);
}

#[test]
fn the_usage_of_a_closed_dataset_is_known_until_it_is_opened() {
    let folder = tempfile::tempdir().unwrap();
    let load = || Reservations::load([(SNAPSHOT, folder.path().to_owned())], []).unwrap();
    let reservations = load();
    for used in [Some(7), None, None, Some(8)] {
        reservations.put_used(&SNAPSHOT, folder.path(), used);
        assert_eq!(
            (reservations.get(&SNAPSHOT).unwrap().used_bytes, load().get(&SNAPSHOT).unwrap().used_bytes),
            (used, used)
        );
    }
    let file = folder.path().join(USED);
    let mut bytes = std::fs::read(&file).unwrap();
    bytes[0] ^= 1;
    std::fs::write(&file, bytes).unwrap();
    assert_eq!(load().get(&SNAPSHOT).unwrap().used_bytes, None);
}

#[test]
fn the_namespace_that_pays_is_known_to_a_later_process() {
    let folder = tempfile::tempdir().unwrap();
    let load = || Reservations::load([(SNAPSHOT, folder.path().to_owned())], []).unwrap();
    let reservations = load();
    assert_eq!(reservations.get(&SNAPSHOT).unwrap().payer, "", "a folder of an earlier version");
    for payer in ["team-a", "team-b"] {
        reservations.put_payer(&SNAPSHOT, Some(folder.path()), payer);
        // Other changes leave it as it is.
        reservations.put(&SNAPSHOT, Some(folder.path()), |known| known.name = "images".into());
        for known in [reservations.get(&SNAPSHOT), load().get(&SNAPSHOT)] {
            assert_eq!(known.unwrap().payer, payer);
        }
    }
    std::fs::write(folder.path().join(PAYER), b"team-c").unwrap();
    assert_eq!(load().get(&SNAPSHOT).unwrap().payer, "", "damaged");
}
