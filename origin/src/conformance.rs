//! The checks that every origin must pass, as one function that the tests of each origin run.
//!
//! It writes objects below a prefix of its own and leaves them there, since an origin cannot delete. The invariant: the
//! checks do not depend on the kind of the origin.

use std::collections::BTreeSet;
use std::sync::Arc;

use bytes::Bytes;
use futures::StreamExt;

use crate::error::OriginError;
use crate::key::Key;
use crate::listing::{Depth, ObjectInfo, Page};
use crate::origin::Origin;
use crate::version::Version;

/// Names that every store can hold and that a careless client encodes wrongly.
const NAMES: [&str; 22] = [
    "plain.bin",
    "with space",
    " space at both ends ",
    "ünï çødé/日本語/ß",
    "100%",
    "a%2Fb",
    "a+b",
    "a b+c%20d",
    "hash#tag",
    "question?list-type=2&x=y",
    "=x&y=",
    "semi;colon,comma:colon@at",
    "quote'double\"back`tick",
    "brackets[1]{2}(3)<4>",
    "pipe|caret^tilde~bang!star*dollar$",
    ".hidden",
    "..dots..",
    "...",
    "deep/er/and/deeper/still",
    "prefix",
    "prefix.d/x",
    "prefix0",
];

/// Runs all checks. The seed determines the prefix, so that runs on the same store do not collide. `many` is the number
/// of objects that the check of long listings writes. It should exceed 1,000, a full page, unless the store is too slow
/// for that.
///
/// # Panics
/// If the origin fails a check, with a description of the failure.
pub async fn conformance(origin: Arc<dyn Origin>, seed: u64, many: usize) {
    let prefix = format!("conformance-{seed:016x}/");
    let suite = Suite { origin, prefix };
    suite.names_come_back_as_they_were().await;
    suite.ranges_are_exact().await;
    suite.versions_bind_reads().await;
    suite.what_is_not_there_is_not_found().await;
    suite.what_is_removed_is_gone().await;
    suite.streams_of_any_size_are_whole().await;
    suite.listings_are_whole_and_ordered(many).await;
}

struct Suite {
    origin: Arc<dyn Origin>,
    prefix: String,
}

impl Suite {
    fn key(&self, name: &str) -> Vec<u8> {
        format!("{}{name}", self.prefix).into_bytes()
    }

    async fn put(&self, name: &str, bytes: impl Into<Bytes>) -> Version {
        let put = self.origin.put(&self.key(name), bytes.into()).await;
        put.unwrap_or_else(|error| panic!("put {name:?}: {error:?}"))
    }

    async fn read(&self, name: &str, range: std::ops::Range<u64>, version: &Version) -> Bytes {
        let read = self.origin.read(&self.key(name), range.clone(), Some(version)).await;
        read.unwrap_or_else(|error| panic!("read {range:?} of {name:?}: {error:?}"))
    }

    /// Collects all pages of a listing. Panics if they are not in order.
    async fn list(&self, below: &str, depth: Depth) -> Page {
        let prefix = self.key(below);
        let mut whole = Page::default();
        let mut after: Option<Vec<u8>> = None;
        loop {
            let page = self.origin.list(&prefix, after.as_deref(), depth).await;
            let page = page.unwrap_or_else(|error| panic!("list {below:?} after {after:?}: {error:?}"));
            assert!(page.files.is_sorted_by(|a, b| a.key < b.key), "the files of a page are in order: {page:?}");
            assert!(page.prefixes.is_sorted_by(|a, b| a < b), "the prefixes of a page are in order: {page:?}");
            if let (Some(last), Some(first)) = (whole.files.last(), page.files.first()) {
                assert!(last.key < first.key, "pages are in order: {} then {}", shown(&last.key), shown(&first.key));
            }
            whole.files.extend(page.files);
            whole.prefixes.extend(page.prefixes);
            whole.skipped.extend(page.skipped);
            match page.next {
                Some(next) => {
                    assert!(after.as_ref() < Some(&next), "a listing makes progress: {after:?} then {next:?}");
                    after = Some(next);
                }
                None => return whole,
            }
        }
    }

    async fn names_come_back_as_they_were(&self) {
        let long = "n".repeat(255);
        let names: Vec<&str> = NAMES.into_iter().chain([long.as_str()]).collect();
        for (number, name) in names.iter().enumerate() {
            let bytes = pattern(number as u64, 100 + number);
            let version = self.put(&format!("names/{name}"), bytes.clone()).await;
            let read = self.read(&format!("names/{name}"), 0..bytes.len() as u64, &version).await;
            assert_eq!(read, bytes, "{name:?} reads back unchanged");
        }
        let mut expected: Vec<Vec<u8>> = names.iter().map(|name| self.key(&format!("names/{name}"))).collect();
        expected.sort();
        let page = self.list("names/", Depth::All).await;
        assert_eq!(keys(&page.files), shown_all(&expected), "every name is listed once and unchanged");
        assert!(page.prefixes.is_empty() && page.skipped.is_empty(), "{page:?}");
        for file in page.files {
            let read = self.origin.read(&file.key, 0..file.size, Some(&file.version)).await;
            let read = read.unwrap_or_else(|error| panic!("read the listed object {}: {error:?}", shown(&file.key)));
            assert_eq!(read.len() as u64, file.size, "{}", shown(&file.key));
            let head = self.origin.head(&file.key).await;
            let head = head.unwrap_or_else(|error| panic!("head of {}: {error:?}", shown(&file.key)));
            assert_eq!(
                (&head.key, head.size, &head.version),
                (&file.key, file.size, &file.version),
                "head agrees with the listing"
            );
            let seconds = |ns: i64| ns.div_euclid(1_000_000_000);
            assert!((seconds(head.mtime_ns) - seconds(file.mtime_ns)).abs() <= 1, "the times agree: {head:?} {file:?}");
        }
    }

    async fn ranges_are_exact(&self) {
        let bytes = pattern(7, 5 * 1024 * 1024 + 3);
        let size = bytes.len() as u64;
        let version = self.put("ranges", bytes.clone()).await;
        let ranges = [
            0..1,
            0..4096,
            1..2,
            4095..4097,
            size / 2..size / 2 + 100_000,
            size - 1..size,
            size - 100..size,
            0..size,
            5..5,
            size..size,
        ];
        for range in ranges {
            let read = self.read("ranges", range.clone(), &version).await;
            assert_eq!(read, bytes[range.start as usize..range.end as usize], "{range:?}");
        }
        let key = self.key("ranges");
        assert_eq!(self.origin.read(&key, 3..9, None).await.expect("read of the current version"), bytes[3..9]);
        for range in [size - 1..size + 1, size..size + 1, size + 10..size + 20] {
            match self.origin.read(&key, range.clone(), Some(&version)).await {
                Err(OriginError::Truncated { expected, got, .. }) => {
                    assert_eq!(expected, range.end - range.start, "{range:?}");
                    assert!(got < expected, "{range:?}");
                }
                other => panic!("a read of {range:?}, past the end, must be Truncated, not {other:?}"),
            }
        }
        let (whole, got) = self.origin.read_all(&key, size).await.expect("read_all at its limit");
        assert_eq!((&whole, &got), (&bytes, &version));
        match self.origin.read_all(&key, size - 1).await {
            Err(OriginError::TooLarge { size: reported, limit, .. }) => assert_eq!((reported, limit), (size, size - 1)),
            other => panic!("read_all above its limit must be TooLarge, not {other:?}"),
        }
        let empty = self.put("empty", Bytes::new()).await;
        assert_eq!(self.read("empty", 0..0, &empty).await, Bytes::new());
        assert_eq!(self.origin.read_all(&self.key("empty"), 0).await.expect("an empty object"), (Bytes::new(), empty));
    }

    async fn versions_bind_reads(&self) {
        let key = self.key("changing");
        let first = self.put("changing", "the first one").await;
        let second = self.put("changing", "the other one, longer").await;
        assert_ne!(first, second, "two versions differ");
        match self.origin.read(&key, 0..5, Some(&first)).await {
            Err(OriginError::Stale { expected, got, .. }) => {
                assert_eq!(expected, first);
                assert!(got.is_none_or(|got| got == second), "the error reports the current version");
            }
            other => panic!("a read of an overwritten version must be Stale, not {other:?}"),
        }
        assert_eq!(self.read("changing", 4..9, &second).await, "other");
        assert_eq!(self.origin.head(&key).await.expect("head").version, second);
    }

    async fn what_is_not_there_is_not_found(&self) {
        let key = self.key("not/there");
        let etag = Version::ETag("\"00000000000000000000000000000000\"".into());
        assert!(matches!(self.origin.read(&key, 0..1, None).await, Err(OriginError::NotFound { .. })));
        let bound = self.origin.read(&key, 0..1, Some(&etag)).await;
        assert!(matches!(bound, Err(OriginError::NotFound { .. } | OriginError::Stale { .. })), "{bound:?}");
        assert!(matches!(self.origin.head(&key).await, Err(OriginError::NotFound { .. })));
        assert!(matches!(self.origin.read_all(&key, 1).await, Err(OriginError::NotFound { .. })));
        for depth in [Depth::One, Depth::All] {
            assert_eq!(self.list("not/there/", depth).await, Page::default(), "{depth:?}");
        }
    }

    async fn what_is_removed_is_gone(&self) {
        let (key, kept) = (self.key("removed/with space+%"), self.key("removed/kept"));
        self.put("removed/with space+%", "x").await;
        self.put("removed/kept", "y").await;
        for _ in 0..2 {
            self.origin.delete(&key).await.expect("remove an object, if it is there");
        }
        assert!(matches!(self.origin.head(&key).await, Err(OriginError::NotFound { .. })));
        assert_eq!(keys(&self.list("removed/", Depth::All).await.files), [shown(&kept)]);
        self.origin.delete(&self.key("never/there")).await.expect("remove an object that never existed");
    }

    async fn streams_of_any_size_are_whole(&self) {
        // The sizes: no bytes, less than one part, and more than two parts of an upload. The chunks do not divide a
        // part evenly.
        for (name, size) in [("stream-0", 0), ("stream-1", 1_000_003), ("stream-2", 35_000_017)] {
            let bytes = pattern(size as u64, size);
            let chunks: Vec<_> = bytes.chunks(777_777).map(|chunk| Ok(Bytes::copy_from_slice(chunk))).collect();
            let key = self.key(name);
            let put = self.origin.put_stream(&key, futures::stream::iter(chunks).boxed()).await;
            let version = put.unwrap_or_else(|error| panic!("put_stream of {size} bytes: {error:?}"));
            let (whole, got) = self.origin.read_all(&key, 64 << 20).await.expect("read the streamed object");
            assert!(whole == bytes, "{size} streamed bytes read back unchanged");
            assert_eq!(got, version);
            let listed = self.list("", Depth::One).await.files.into_iter().find(|file| file.key == key);
            let listed = listed.unwrap_or_else(|| panic!("{name} is listed"));
            assert_eq!(
                (listed.size, &listed.version),
                (size as u64, &version),
                "{name} is listed with its size and version"
            );
        }
        let key = self.key("stream-broken");
        let broken: [Result<Bytes, OriginError>; 2] =
            [Ok(Bytes::from(vec![1; 20_000_000])), Err(OriginError::Unavailable { source: "injected".into() })];
        let result = self.origin.put_stream(&key, futures::stream::iter(broken).boxed()).await;
        assert!(matches!(result, Err(OriginError::Unavailable { .. })), "{result:?}");
        let head = self.origin.head(&key).await;
        assert!(matches!(head, Err(OriginError::NotFound { .. })), "a broken stream leaves no object: {head:?}");
    }

    async fn listings_are_whole_and_ordered(&self, many: usize) {
        // Files and folders alternate, so that some pages end at a file and some at a folder.
        let names: Vec<String> = (0..many)
            .map(|n| if n % 3 == 0 { format!("many/{n:05}") } else { format!("many/{:05}.d/{n:05}", n - n % 3) })
            .collect();
        let puts = futures::stream::iter(names.clone()).map(|name| async move {
            self.put(&name, "x").await;
        });
        puts.buffer_unordered(16).collect::<Vec<_>>().await;

        let mut expected: Vec<Vec<u8>> = names.iter().map(|name| self.key(name)).collect();
        expected.sort();
        let deep = self.list("many/", Depth::All).await;
        assert_eq!(keys(&deep.files), shown_all(&expected), "a deep listing contains every key once");

        let strip = self.key("many/").len();
        let is_direct = |key: &&Vec<u8>| !key[strip..].contains(&b'/');
        let direct: Vec<Vec<u8>> = expected.iter().filter(is_direct).cloned().collect();
        let folders: BTreeSet<Vec<u8>> = expected
            .iter()
            .filter_map(|key| Some(key[..=strip + key[strip..].iter().position(|byte| *byte == b'/')?].to_vec()))
            .collect();
        let one = self.list("many/", Depth::One).await;
        assert_eq!(keys(&one.files), shown_all(&direct), "a listing of one level contains each of its files once");
        let folders: Vec<Vec<u8>> = folders.into_iter().collect();
        assert_eq!(shown_all(&one.prefixes), shown_all(&folders), "a listing of one level contains each prefix once");

        let half = &expected[many / 2];
        let prefix = self.key("many/");
        let page = self.origin.list(&prefix, Some(half), Depth::All).await.expect("list from the middle");
        assert_eq!(page.files.first().map(|file| shown(&file.key)), expected.get(many / 2 + 1).map(|key| shown(key)));
        let last = &expected[many - 1];
        let page = self.origin.list(&prefix, Some(last), Depth::All).await.expect("list after the last");
        assert_eq!(page.files, [], "no key comes after the last one");
    }
}

fn shown(key: &[u8]) -> String {
    Key::from(key).to_string()
}

fn shown_all(keys: &[Vec<u8>]) -> Vec<String> {
    keys.iter().map(|key| shown(key)).collect()
}

fn keys(files: &[ObjectInfo]) -> Vec<String> {
    files.iter().map(|file| shown(&file.key)).collect()
}

/// Random bytes, so that no two ranges are equal.
fn pattern(seed: u64, size: usize) -> Bytes {
    use rand::{Rng, SeedableRng};
    let mut bytes = vec![0; size];
    rand::rngs::SmallRng::seed_from_u64(seed).fill_bytes(&mut bytes);
    bytes.into()
}
