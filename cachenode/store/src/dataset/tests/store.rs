//! The store around a dataset: its list of datasets, its folder, and its shutdown.

use super::*;

#[test]
fn datasets_are_listed_and_a_released_one_is_gone() {
    let mut bed = Bed::new(PolicyKind::Lru, 1 << 30);
    bed.put_all(0..10);
    let other = SnapshotId([0x22; 32]);
    let cache =
        bed.store().dataset(CacheConfig { key: other.into(), name: "text".into(), ..bed.config.clone() }).unwrap();
    assert!(put(&cache, 4));
    drop(cache);
    let list = |bed: &Bed| -> Vec<_> {
        bed.store().datasets().into_iter().map(|info| (info.name, info.policy, info.open.is_some())).collect()
    };
    let images = ("images".to_owned(), PolicyKind::Lru, true);
    assert_eq!(list(&bed), [images.clone(), ("text".to_owned(), PolicyKind::Lru, false)]);
    assert!(matches!(bed.store().release(&SNAPSHOT.into()), Err(StoreError::DatasetInUse { .. })));
    assert!(bed.store().release(&other.into()).unwrap() && !bed.store().release(&other.into()).unwrap());
    assert_eq!(list(&bed), [images]);
    assert!(!bed.dir.join("datasets").join(other.to_string()).exists());
    let cache = bed.store().dataset(CacheConfig { key: other.into(), ..bed.config.clone() }).unwrap();
    assert!(!get(&cache, 4));
    drop(cache);
    bed.drop_all();
    bed.open();
    assert_eq!(bed.hits(0..10), 10, "a release changes no other dataset");
    let infos = bed.store().datasets();
    let promised = Some(Reservation::exactly(1 << 30));
    assert!(infos.iter().all(|info| info.last_use_unix_s > 1_600_000_000 && info.reservation == promised));
}

// SEMANTICS: C3
#[test]
fn opening_a_dataset_walks_over_the_files_of_no_other() {
    let mut bed = Bed::new(PolicyKind::Nr, 1 << 20);
    let config = |byte| CacheConfig { key: SnapshotId([byte; 32]).into(), ..bed.config.clone() };
    let configs: Vec<CacheConfig> = (100..130).map(config).collect();
    for config in &configs {
        assert!(put(&bed.store().dataset(config.clone()).unwrap(), 4));
    }
    bed.close();
    bed.open();
    let disk_bytes = |bed: &Bed, config: &CacheConfig| {
        let all = bed.store().datasets_under(&[], Some(&config.key));
        assert_eq!(all.len(), configs.len() + 1);
        all.into_iter().find(|info| info.cache() == config.key.id()).unwrap().disk_bytes
    };
    let before: Vec<u64> = configs.iter().map(|config| disk_bytes(&bed, config)).collect();
    // Files that the store does not know of: a walk would count them.
    for config in &configs {
        let folder = bed.dir.join("datasets").join(config.key.id().to_string());
        fs::write(folder.join("unknown"), vec![1; 256 << 10]).unwrap();
    }
    let mut open = Vec::new();
    for count in 1..=5 {
        let cache = bed.store().dataset(configs[count - 1].clone()).unwrap();
        assert!(cache.wait_rebuilt(TIMEOUT));
        open.push(cache);
        for (number, config) in configs.iter().enumerate() {
            let has_walked = disk_bytes(&bed, config) > before[number] + (128 << 10);
            assert_eq!(has_walked, number < count, "dataset {number} after {count} were opened");
        }
    }
}

#[test]
fn the_disk_use_of_a_dataset_follows_its_writes_and_evictions() {
    let bed = Bed::new(PolicyKind::Fifo, 2 << 20);
    let disk_bytes = || bed.store().datasets()[0].disk_bytes;
    for block in 0..300 {
        let before = disk_bytes();
        bed.put_all([block]);
        let measured = crate::folder::disk_use(vec![bed.dataset_dir()]).bytes;
        assert_eq!(disk_bytes(), measured, "{block}, from {before}");
    }
}

// SEMANTICS: C10
#[test]
fn a_release_does_not_wait_until_its_bytes_are_deleted_and_tells_how_many_are_left() {
    let bed = Bed::new(PolicyKind::Nr, 1 << 30);
    let other = CacheConfig { key: SnapshotId([0x22; 32]).into(), ..bed.config.clone() };
    let folder = bed.store().base.folder.as_ref().unwrap();
    let removing = folder.removing.lock().unwrap();
    let mut left = 0;
    for _ in 0..2 {
        let cache = bed.store().dataset(other.clone()).unwrap();
        assert!(!get(&cache, 4) && put(&cache, 4) && get(&cache, 4));
        drop(cache);
        assert!(bed.store().release(&other.key.id()).unwrap());
        assert!(!folder.dataset(&other.key.id()).exists());
        assert_eq!(bed.store().datasets().len(), 1);
        let more = bed.store().dropped_bytes();
        assert!(more >= left + u64::from(len_of(BlockIndex(4))), "{more} after {left}");
        left = more;
    }
    drop(removing);
    let begun = Instant::now();
    while bed.store().dropped_bytes() > 0 || bed.dir.join("dropped").exists() {
        assert!(begun.elapsed() < TIMEOUT, "its room is given back");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn a_dataset_is_open_once_and_given_again_to_who_wants_the_same() {
    let bed = Bed::new(PolicyKind::Nr, 1 << 20);
    let again = bed.store().dataset(bed.config.clone()).unwrap();
    assert!(std::ptr::eq(&*again, bed.cache()));
    let other = CacheConfig { policy: PolicyKind::Lru, ..bed.config.clone() };
    assert!(matches!(bed.store().dataset(other), Err(StoreError::AlreadyOpen { .. })));
    // An adoption may have raised its reservation a moment ago.
    let before = CacheConfig { reservation_bytes: 1 << 21, ..bed.config.clone() };
    let again = bed.store().dataset(before).unwrap();
    assert!(std::ptr::eq(&*again, bed.cache()));
    assert_eq!(again.usage().capacity_bytes, 1 << 20);
}

#[test]
fn a_closed_store_goes_on_serving_what_it_has_and_admits_nothing() {
    let bed = Bed::new(PolicyKind::Nr, 1 << 20);
    bed.put_all([4]);
    let permit = bed.cache().admit(BlockIndex(5), len_of(BlockIndex(5))).unwrap();
    bed.store().close().unwrap();
    assert!(bed.get(4) && !bed.put(6));
    let record = bed.cache().record(BlockIndex(5), &bytes_of(BlockIndex(5), len_of(BlockIndex(5))));
    bed.cache().write(permit, &record).unwrap();
    assert!(bed.get(5));
    assert!(matches!(bed.store().dataset(bed.config.clone()), Err(StoreError::Closed)));
}

#[test]
fn a_folder_in_use_is_refused_with_the_process_and_the_remedy() {
    let bed = Bed::new(PolicyKind::Nr, 1 << 20);
    let error = bed.try_open().unwrap_err();
    let said = error.to_string();
    assert!(said.contains(&format!("process {}", std::process::id())) && said.contains("--cache-dir"), "{said}");
}

// SEMANTICS: C4
#[test]
fn a_folder_of_something_else_is_refused_and_left_alone() {
    let temp = tempfile::tempdir().unwrap();
    let open = || Store::open(StoreConfig::new(temp.path()), Arc::default());
    fs::write(temp.path().join("thesis.tex"), b"years of work").unwrap();
    assert!(matches!(open(), Err(StoreError::NotAStore { .. })));
    assert_eq!(fs::read_dir(temp.path()).unwrap().count(), 1, "nothing was made");
    // A folder with names like a cache's is not necessarily a cache.
    for (folder, file) in [("datasets", "imagenet"), ("index", "a")] {
        fs::create_dir(temp.path().join(folder)).unwrap();
        fs::write(temp.path().join(folder).join(file), b"").unwrap();
    }
    fs::write(temp.path().join("format"), b"LARD").unwrap();
    assert!(matches!(open(), Err(StoreError::NotAStore { .. })));
    fs::remove_file(temp.path().join("thesis.tex")).unwrap();
    assert!(matches!(open(), Err(StoreError::NotAStore { .. })));
    assert!(temp.path().join("datasets/imagenet").exists() && temp.path().join("index/a").exists());
}

#[test]
fn a_folder_that_has_only_sockets_yet_becomes_a_cache() {
    let temp = tempfile::tempdir().unwrap();
    // The keeper of mounts may start before the daemon.
    let _socket = std::os::unix::net::UnixListener::bind(temp.path().join("lender.sock")).unwrap();
    Store::open(StoreConfig::new(temp.path()), Arc::default()).unwrap();
}

// SEMANTICS: C4
#[test]
fn a_cache_of_an_earlier_version_is_emptied_and_used() {
    let mut bed = Bed::new(PolicyKind::Nr, 1 << 30);
    bed.put_all(0..10);
    bed.close();
    let format = bed.dir.join("format");
    let mut marker = fs::read(&format).unwrap();
    assert_eq!(marker, b"LARDERST\x01\0\0\0\xf1\x10\x46\xf7", "the format changed: raise the version");
    marker[8] = 0;
    fs::write(&format, &marker).unwrap();
    // Sockets of the process that has the folder open are ignored.
    let _socket = std::os::unix::net::UnixListener::bind(bed.dir.join("larderd.sock")).unwrap();
    bed.open();
    assert_eq!((bed.hits(0..10), bed.cache().usage().blocks_cached), (0, 0));
    let begun = Instant::now();
    while bed.dir.join("dropped").exists() {
        assert!(begun.elapsed() < TIMEOUT, "its room is given back");
        std::thread::sleep(Duration::from_millis(5));
    }
    bed.put_all(0..10);
    bed.close();
    bed.open();
    assert_eq!(bed.hits(0..10), 10);
}

// SEMANTICS: C4
#[test]
fn a_cache_of_a_later_version_is_refused_and_left_as_it_is() {
    let mut bed = Bed::new(PolicyKind::Nr, 1 << 30);
    bed.put_all(0..10);
    bed.close();
    let format = bed.dir.join("format");
    let ours = fs::read(&format).unwrap();
    let mut later = ours.clone();
    later[8] += 1;
    let crc = larder_dataset::crc32c(&later[..12]);
    later[12..].copy_from_slice(&crc.to_le_bytes());
    fs::write(&format, &later).unwrap();
    let refused = Store::open(StoreConfig::new(&bed.dir), Arc::default()).unwrap_err();
    assert!(matches!(refused, StoreError::Newer { .. }), "{refused}");
    assert!(refused.to_string().contains("run that version"), "{refused}");
    assert_eq!(fs::read(&format).unwrap(), later);
    // The later version finds everything.
    fs::write(&format, &ours).unwrap();
    bed.open();
    assert_eq!(bed.hits(0..10), 10);
    bed.close();
    // A flipped bit is damage, and no version.
    let mut damaged = ours.clone();
    damaged[8] ^= 8;
    fs::write(&format, &damaged).unwrap();
    bed.open();
    assert_eq!(bed.hits(0..10), 10);
    assert_eq!(fs::read(&format).unwrap(), ours);
}

// SEMANTICS: C4
#[test]
fn a_format_marker_that_is_damaged_or_lost_is_written_anew_and_costs_no_hit() {
    let spoil: [&dyn Fn(&Path); 4] = [
        &|format| fs::write(format, b"LARD").unwrap(),
        &|format| fs::write(format, b"LARDERST\x01\0\0\0\xf1\x10\x46\x00").unwrap(),
        &|format| fs::write(format, b"").unwrap(),
        &|format| fs::remove_file(format).unwrap(),
    ];
    let mut bed = Bed::new(PolicyKind::Nr, 1 << 30);
    bed.put_all(0..10);
    for spoil in spoil {
        bed.close();
        spoil(&bed.dir.join("format"));
        bed.open();
        assert_eq!(bed.hits(0..10), 10);
        assert_eq!(fs::read(bed.dir.join("format")).unwrap().len(), 16);
    }
}
