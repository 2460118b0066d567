use std::borrow::Cow;

use larder_dataset::VersionTag;
use proptest::prelude::*;

use super::*;

const DAY: Duration = Duration::from_secs(24 * 3600);

fn identity() -> JournalIdentity {
    JournalIdentity::new(JournalKind::Import, &[b"s3://bucket/data"])
}

fn reopen(dir: &Path, identity: JournalIdentity) -> (Journal, Vec<Vec<u8>>) {
    let mut seen = Vec::new();
    let journal = Journal::open(dir, identity, DAY, false, |payload| {
        seen.push(payload.to_vec());
        Ok(())
    });
    (journal.unwrap(), seen)
}

#[test]
fn records_come_back_in_order_and_new_ones_follow() {
    let dir = tempfile::tempdir().unwrap();
    let (mut journal, seen) = reopen(dir.path(), identity());
    assert!(seen.is_empty());
    journal.append(b"one").unwrap();
    journal.append(b"two").unwrap();
    drop(journal);
    let (mut journal, seen) = reopen(dir.path(), identity());
    assert_eq!(seen, [b"one", b"two"]);
    journal.append(b"three").unwrap();
    drop(journal);
    let (journal, seen) = reopen(dir.path(), identity());
    assert_eq!(seen.last().unwrap(), b"three");
    let path = journal.path().to_path_buf();
    journal.discard().unwrap();
    assert!(!path.exists());
    assert!(reopen(dir.path(), identity()).1.is_empty());
}

#[test]
fn a_journal_torn_anywhere_gives_its_whole_frames_and_can_be_gone_on_with() {
    let dir = tempfile::tempdir().unwrap();
    let (mut journal, _) = reopen(dir.path(), identity());
    let mut ends = vec![HEADER_BYTES];
    for payload in [&b"first"[..], b"second", b"third"] {
        journal.append(payload).unwrap();
        ends.push(ends[ends.len() - 1] + FRAME_HEAD_BYTES + payload.len());
    }
    let path = journal.path().to_path_buf();
    drop(journal);
    let whole = std::fs::read(&path).unwrap();
    assert_eq!(whole.len(), *ends.last().unwrap());
    for len in 0..=whole.len() {
        // A torn write may leave nothing, zeroes, or other bytes.
        for tail in [&[][..], &[0; 40], &[0xa5; 40]] {
            std::fs::write(&path, [&whole[..len], tail].concat()).unwrap();
            let (mut journal, seen) = reopen(dir.path(), identity());
            assert_eq!(seen.len(), ends.iter().filter(|&&end| end <= len).count().saturating_sub(1), "{len} bytes");
            journal.append(b"later").unwrap();
            drop(journal);
            let (_, again) = reopen(dir.path(), identity());
            assert_eq!(again.len(), seen.len() + 1, "{len} bytes");
            assert_eq!(again.last().unwrap(), b"later");
        }
    }
}

#[test]
fn a_flipped_bit_ends_the_journal_there() {
    let dir = tempfile::tempdir().unwrap();
    let (mut journal, _) = reopen(dir.path(), identity());
    journal.append(b"first").unwrap();
    journal.append(b"second").unwrap();
    let path = journal.path().to_path_buf();
    drop(journal);
    let whole = std::fs::read(&path).unwrap();
    for at in 0..whole.len() {
        let mut broken = whole.clone();
        broken[at] ^= 4;
        std::fs::write(&path, &broken).unwrap();
        let kept = if at < HEADER_BYTES + FRAME_HEAD_BYTES + 5 { 0 } else { 1 };
        assert_eq!(reopen(dir.path(), identity()).1.len(), kept, "byte {at}");
    }
}

#[test]
fn a_journal_in_use_is_refused_and_free_again_when_its_run_ends() {
    let dir = tempfile::tempdir().unwrap();
    let (journal, _) = reopen(dir.path(), identity());
    let second = Journal::open(dir.path(), identity(), DAY, true, |_| Ok(()));
    assert!(matches!(&second, Err(JournalError::InUse { .. })), "{second:?}");
    assert!(second.unwrap_err().to_string().contains("running already"));
    reopen(dir.path(), JournalIdentity::new(JournalKind::Import, &[b"s3://bucket/other"]));
    reopen(dir.path(), JournalIdentity::new(JournalKind::Pack, &[b"s3://bucket/data"]));
    drop(journal);
    reopen(dir.path(), identity());
}

#[test]
fn an_old_or_unwanted_journal_is_begun_anew() {
    let dir = tempfile::tempdir().unwrap();
    let write = || {
        let (mut journal, seen) = reopen(dir.path(), identity());
        journal.append(b"old").unwrap();
        seen.len()
    };
    let forget = |max_age, restart| {
        let mut seen = 0;
        let open = Journal::open(dir.path(), identity(), max_age, restart, |_| {
            seen += 1;
            Ok(())
        });
        drop(open.unwrap());
        seen
    };
    assert_eq!(write(), 0);
    assert_eq!(forget(DAY, true), 0);
    assert_eq!(write(), 0, "restart emptied it");
    std::thread::sleep(Duration::from_millis(5));
    assert_eq!(forget(Duration::from_millis(1), false), 0);
    assert_eq!(write(), 0, "it was emptied because of its age");
    assert_eq!(forget(DAY, false), 1);
}

// SEMANTICS: I10
#[test]
fn old_journals_of_imports_are_removed_unless_they_are_in_use() {
    let dir = tempfile::tempdir().unwrap();
    let of = |name: &str| JournalIdentity::new(JournalKind::Import, &[name.as_bytes()]);
    let old = |journal: &Journal| {
        let long_ago = std::time::SystemTime::now() - 2 * DAY;
        File::options().write(true).open(journal.path()).unwrap().set_modified(long_ago).unwrap();
        journal.path().to_owned()
    };
    let journals = ["abandoned", "in use", "new"].map(|name| reopen(dir.path(), of(name)).0);
    let pack = reopen(dir.path(), JournalIdentity::new(JournalKind::Pack, &[b"p"])).0;
    let packed = old(&pack);
    drop(pack);
    let [abandoned, in_use, new] = journals;
    let (gone, held, fresh) = (old(&abandoned), old(&in_use), new.path().to_owned());
    drop((abandoned, new));
    remove_old_journals(dir.path(), DAY);
    assert_eq!([&gone, &held, &fresh, &packed].map(|path| path.exists()), [false, true, true, true]);
    drop(in_use);
    remove_old_journals(dir.path(), DAY);
    assert!(!held.exists());
    remove_old_journals(&dir.path().join("none"), DAY);
}

#[test]
fn a_record_that_is_refused_is_cut_off() {
    let dir = tempfile::tempdir().unwrap();
    let (mut journal, _) = reopen(dir.path(), identity());
    journal.append(b"good").unwrap();
    journal.append(b"odd").unwrap();
    drop(journal);
    let check = |payload: &[u8]| if payload == b"odd" { Err(Refused::Bad) } else { Ok(()) };
    drop(Journal::open(dir.path(), identity(), DAY, false, check).unwrap());
    assert_eq!(reopen(dir.path(), identity()).1, [b"good"]);
}

// SEMANTICS: I1
#[test]
fn a_replay_that_the_disk_stops_is_an_error_that_says_so_and_the_journal_stays() {
    let dir = tempfile::tempdir().unwrap();
    let (mut journal, _) = reopen(dir.path(), identity());
    journal.append(b"one").unwrap();
    journal.append(b"two").unwrap();
    drop(journal);
    let stop = |payload: &[u8]| match payload {
        b"two" => Err(Refused::Stop(io::ErrorKind::StorageFull.into())),
        _ => Ok(()),
    };
    let error = Journal::open(dir.path(), identity(), DAY, false, stop).unwrap_err();
    let JournalError::Io { source, .. } = &error else { panic!("{error:?}") };
    assert_eq!(source.kind(), io::ErrorKind::StorageFull, "{error}");
    let (journal, seen) = reopen(dir.path(), identity());
    assert_eq!((seen, journal.note()), (vec![b"one".to_vec(), b"two".to_vec()], None));
}

/// The journals whose bytes are checked in: one of each kind, with every field in use.
fn golden() -> [(&'static str, &'static [u8], Vec<u8>); 3] {
    let etag = VersionTag::ETag("\"0123456789abcdef0123456789abcdef\"".into());
    let odd = VersionTag::ETag("W/\"odd\"".into());
    let local = VersionTag::MtimeSize { mtime_ns: -1, size: 2 };
    let file = |key: &[u8], version: &VersionTag<'static>| PageFile {
        key: key.to_vec(),
        size: 2,
        mtime_ns: 7,
        version: version.clone(),
    };
    let root = PageRecord {
        prefix: Vec::new(),
        recursive: false,
        after: None,
        files: vec![file(b"a", &etag), file(b"\xff", &local)],
        prefixes: vec![b"train/".to_vec(), b"val/".to_vec()],
        skipped: vec![(b"pipe".to_vec(), Cow::Borrowed("not a regular file"))],
        links: Vec::new(),
        next: None,
    };
    let train = PageRecord {
        prefix: b"train/".to_vec(),
        recursive: true,
        after: Some(b"train/0".to_vec()),
        files: vec![file(b"train/1", &etag), file(b"train/10", &odd)],
        prefixes: Vec::new(),
        skipped: Vec::new(),
        links: Vec::new(),
        next: Some(b"train/1".to_vec()),
    };
    let pack = PackRecord {
        pack: 1,
        key: b"packs/000001-89abcdef.pack".to_vec(),
        size: 5 << 20,
        version: etag.clone(),
        first_file: 3,
        end_file: 5,
        block_crcs: vec![1, 2, u32::MAX],
    };
    let copied = CopiedRecord { copies: vec![(0, etag.clone()), (7, odd.clone()), (u32::MAX, local.clone())] };
    let journal = |kind, payloads: &[Vec<u8>]| {
        let mut bytes = encode_header(JournalIdentity::new(kind, &[b"s3://bucket/data"]), 42).to_vec();
        payloads.iter().for_each(|payload| bytes.extend(encode_frame(payload).unwrap()));
        bytes
    };
    [
        (
            "v2-import.journal",
            include_bytes!("../../golden/v2-import.journal"),
            journal(JournalKind::Import, &[root.encode(), train.encode()]),
        ),
        (
            "v2-pack.journal",
            include_bytes!("../../golden/v2-pack.journal"),
            journal(JournalKind::Pack, &[pack.encode()]),
        ),
        (
            "v2-sync.journal",
            include_bytes!("../../golden/v2-sync.journal"),
            journal(JournalKind::Sync, &[copied.encode()]),
        ),
    ]
}

#[test]
fn golden_files_are_still_written_and_read() {
    let kinds = [JournalKind::Import, JournalKind::Pack, JournalKind::Sync];
    for ((name, checked_in, made), kind) in golden().into_iter().zip(kinds) {
        if std::env::var_os("LARDER_WRITE_GOLDEN").is_some() {
            std::fs::write(format!("{}/golden/{name}", std::env::var("CARGO_MANIFEST_DIR").unwrap()), &made).unwrap();
        }
        assert_eq!(checked_in, made, "{name}: the format changed: raise the version and add a golden file beside it");
        let (header, mut frames) = checked_in.split_first_chunk().unwrap();
        assert_eq!(decode_header(header, JournalIdentity::new(kind, &[b"s3://bucket/data"])), Ok(42));
        let mut read = 0;
        let mut frames = Frames::new(&mut frames);
        while let Some(payload) = frames.next_frame().unwrap() {
            match kind {
                JournalKind::Import => assert_eq!(PageRecord::decode(payload).unwrap().encode(), payload),
                JournalKind::Pack => assert_eq!(PackRecord::decode(payload).unwrap().encode(), payload),
                JournalKind::Sync => assert_eq!(CopiedRecord::decode(payload).unwrap().encode(), payload),
            }
            read += FRAME_HEAD_BYTES + payload.len();
        }
        assert_eq!(HEADER_BYTES + read, checked_in.len());
    }
}

fn bytes() -> impl Strategy<Value = Vec<u8>> {
    prop::collection::vec(any::<u8>(), 0..20)
}

fn version() -> impl Strategy<Value = VersionTag<'static>> {
    prop_oneof![
        (any::<[u8; 16]>(), 0..1_u32 << 24).prop_map(|(md5, parts)| VersionTag::from_md5(&md5, parts)),
        ".{0,40}".prop_map(|etag| VersionTag::ETag(Cow::Owned(etag))),
        (any::<i64>(), any::<u64>()).prop_map(|(mtime_ns, size)| VersionTag::MtimeSize { mtime_ns, size }),
    ]
}

fn page() -> impl Strategy<Value = PageRecord> {
    let file = (bytes(), any::<u64>(), any::<i64>(), version()).prop_map(|(key, size, mtime_ns, version)| PageFile {
        key,
        size,
        mtime_ns,
        version,
    });
    let skipped = (bytes(), ".{0,20}").prop_map(|(key, reason)| (key, Cow::Owned(reason)));
    let link = (bytes(), bytes(), any::<i64>()).prop_map(|(key, target, mtime_ns)| PageLink { key, target, mtime_ns });
    (
        bytes(),
        any::<bool>(),
        prop::collection::vec(file, 0..5),
        prop::collection::vec(bytes(), 0..5),
        prop::collection::vec(skipped, 0..3),
        prop::collection::vec(link, 0..3),
        prop::option::of(bytes()),
        prop::option::of(bytes()),
    )
        .prop_map(|(prefix, recursive, files, prefixes, skipped, links, after, next)| PageRecord {
            prefix,
            recursive,
            after,
            files,
            prefixes,
            skipped,
            links,
            next,
        })
}

proptest! {
    #[test]
    fn pages_come_back_as_they_were(page in page()) {
        let payload = page.encode();
        prop_assert_eq!(PageRecord::decode(&payload), Ok(page.clone()));
        // A page of a version that knew no links ends before them.
        let without_links = PageRecord { links: Vec::new(), ..page };
        let end = without_links.encode().len();
        for len in 0..payload.len() {
            let expected = if len == end { Ok(without_links.clone()) } else { Err(BadRecord) };
            prop_assert_eq!(PageRecord::decode(&payload[..len]), expected);
        }
    }

    #[test]
    fn packs_come_back_as_they_were(
        numbers in any::<(u32, u64, u32, u32)>(), key in bytes(), version in version(),
        block_crcs in prop::collection::vec(any::<u32>(), 0..9),
    ) {
        let (pack, size, first_file, end_file) = numbers;
        let record = PackRecord { pack, key, size, version, first_file, end_file, block_crcs };
        let payload = record.encode();
        prop_assert_eq!(PackRecord::decode(&payload), Ok(record));
        for len in 0..payload.len() {
            prop_assert_eq!(PackRecord::decode(&payload[..len]), Err(BadRecord));
        }
    }

    #[test]
    fn copies_come_back_as_they_were(copies in prop::collection::vec((any::<u32>(), version()), 0..9)) {
        let record = CopiedRecord { copies };
        let payload = record.encode();
        prop_assert_eq!(CopiedRecord::decode(&payload), Ok(record));
        for len in 0..payload.len() {
            prop_assert_eq!(CopiedRecord::decode(&payload[..len]), Err(BadRecord));
        }
    }

    #[test]
    fn garbage_never_panics(
        garbage in prop::collection::vec(any::<u8>(), 0..300), page in page(), at in any::<usize>(),
    ) {
        let _ = (PageRecord::decode(&garbage), PackRecord::decode(&garbage), CopiedRecord::decode(&garbage));
        let mut payload = page.encode();
        let at = at % payload.len();
        payload[at] ^= 0x81;
        let _ = PageRecord::decode(&payload);
        let mut frames = Frames::new(garbage.as_slice());
        while let Ok(Some(payload)) = frames.next_frame() {
            let _ = payload;
        }
    }
}
