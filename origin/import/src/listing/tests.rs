use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Mutex;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use futures::stream::BoxStream;
use larder_origin::{ObjectInfo, OriginError, OriginUrl, Version};
use proptest::prelude::*;

use super::*;
use crate::memory::MemoryOrigin;

/// Records the pages that it receives.
struct Collector {
    walk: Walk,
    keys: BTreeMap<Vec<u8>, u32>,
    pages: u64,
}

impl Collector {
    fn new(scheme: Scheme) -> Self {
        Self { walk: Walk::new(scheme), keys: BTreeMap::new(), pages: 0 }
    }
}

impl PageOwner for Collector {
    type Error = ListError;

    fn walk(&mut self) -> &mut Walk {
        &mut self.walk
    }

    async fn take(&mut self, mut page: PageRecord) -> Result<(), ListError> {
        self.walk.accept(&mut page)?;
        self.pages += 1;
        for file in page.files {
            *self.keys.entry(file.key).or_default() += 1;
        }
        Ok(())
    }
}

async fn collect(origin: Arc<dyn Origin>, concurrency: usize) -> Result<(Collector, u64), ListError> {
    let mut collector = Collector::new(origin.url().scheme());
    let mut requests = 0;
    drive(&origin, &mut collector, LinkObjects::AreFiles, concurrency, &mut requests).await?;
    Ok((collector, requests))
}

/// An origin of simulated keys that answers each page after 20 ms.
#[derive(Debug)]
struct MadeUp {
    url: OriginUrl,
    count: u64,
    key: fn(u64) -> String,
    /// Changes a page before it is returned.
    spoil: fn(&mut Page, nth: u64),
    answered: Mutex<u64>,
}

impl MadeUp {
    fn new(count: u64, key: fn(u64) -> String) -> Self {
        let url = "s3://bucket/data".parse().unwrap();
        Self { url, count, key, spoil: |_, _| {}, answered: Mutex::default() }
    }
}

#[async_trait]
impl Origin for MadeUp {
    fn url(&self) -> &OriginUrl {
        &self.url
    }

    async fn list(&self, _: &[u8], after: Option<&[u8]>, depth: Depth) -> Result<Page, OriginError> {
        assert_eq!(depth, Depth::All);
        tokio::time::sleep(Duration::from_millis(20)).await;
        let (mut low, mut high) = (0, self.count);
        while low < high {
            let middle = low + (high - low) / 2;
            let before = after.is_some_and(|after| (self.key)(middle).as_bytes() <= after);
            (low, high) = if before { (middle + 1, high) } else { (low, middle) };
        }
        let end = self.count.min(low + 1000);
        let file = |n: u64| {
            let version = Version::ETag(format!("\"{n:032x}\""));
            ObjectInfo { key: (self.key)(n).into_bytes(), size: n, mtime_ns: 0, version }
        };
        let mut page = Page { files: (low..end).map(file).collect(), ..Page::default() };
        if end < self.count {
            page.next = page.files.last().map(|file| file.key.clone());
        }
        let nth = {
            let mut answered = self.answered.lock().unwrap();
            *answered += 1;
            *answered
        };
        (self.spoil)(&mut page, nth);
        Ok(page)
    }

    async fn read(&self, _: &[u8], _: Range<u64>, _: Option<&Version>) -> Result<Bytes, OriginError> {
        unreachable!("an import reads nothing")
    }

    async fn head(&self, _: &[u8]) -> Result<ObjectInfo, OriginError> {
        unreachable!("an import reads nothing")
    }

    async fn read_all(&self, _: &[u8], _: u64) -> Result<(Bytes, Version), OriginError> {
        unreachable!("an import reads nothing")
    }

    async fn put(&self, _: &[u8], _: Bytes) -> Result<Version, OriginError> {
        unreachable!("an import writes nothing")
    }

    async fn put_stream(&self, _: &[u8], _: BoxStream<'_, Result<Bytes, OriginError>>) -> Result<Version, OriginError> {
        unreachable!("an import writes nothing")
    }
}

/// The description of a kind of bucket, and its keys by their numbers.
type Shape = (&'static str, fn(u64) -> String);

/// Kinds of buckets. Each is in order, and keys that count with digits all have the same length.
const SHAPES: [Shape; 7] = [
    ("the last letter first", |n| format!("train/{:06}/{n:09}.JPEG", n / 1300)),
    ("flat", |n| format!("images/{n:09}.jpg")),
    ("classes", |n| format!("train/n{:05}/n{:05}_{n:08}.JPEG", n / 1300 * 7, n / 1300)),
    ("hashes", |n| {
        let spread = n * ((1 << 44) / 600_000);
        format!("{:03x}/{spread:011x}", spread >> 32)
    }),
    ("one folder has nearly all", |n| match n {
        0..20_000 => format!("a/{n:06}"),
        20_000..580_000 => format!("middle/of/the/road/{n:08}/data"),
        _ => format!("z/{n:06}"),
    }),
    ("days", |n| format!("year=2024/month={:02}/day={:02}/part-{n:09}.parquet", n / 50_400 + 1, n / 1_800 % 28 + 1)),
    ("not ASCII", |n| format!("データ/{}/{n:08}", ["あ", "日", "本", "語"][(n / 150_000) as usize])),
];

// SEMANTICS: I6
#[tokio::test(start_paused = true)]
async fn sixteen_calls_at_a_time_list_at_least_six_times_as_fast_as_one() {
    for (what, key) in SHAPES {
        assert!((1..600_000).all(|n| key(n - 1) < key(n)), "{what}: the keys must ascend");
        let start = tokio::time::Instant::now();
        let (all, requests) = collect(Arc::new(MadeUp::new(600_000, key)), 16).await.unwrap();
        let parallel = start.elapsed();
        assert_eq!(all.keys.len(), 600_000, "{what}");
        assert!(all.keys.values().all(|times| *times == 1), "{what}");
        let one = Duration::from_millis(20 * 600);
        // With a year's days it takes a third of these 600 pages until the ranges are even. After that it is as fast as
        // the others.
        let times = if what == "days" { 6 } else { 8 };
        assert!(parallel * times <= one, "{what}: {parallel:?} instead of {one:?}, {requests} requests");
        assert!(requests <= 600 * 5 / 3, "{what}: {requests} requests");
    }
}

#[tokio::test(start_paused = true)]
async fn one_call_at_a_time_makes_no_call_for_nothing() {
    let (all, requests) = collect(Arc::new(MadeUp::new(50_000, SHAPES[1].1)), 1).await.unwrap();
    assert_eq!((all.keys.len(), requests), (50_000, 50));
}

/// Each contradiction in an origin's answers has an error message of its own.
// SEMANTICS: I7
#[tokio::test(start_paused = true)]
async fn an_origin_that_contradicts_itself_is_an_error_that_says_so() {
    type Spoil = fn(&mut Page, u64);
    let cases: [(&str, Spoil); 5] = [
        ("with keys out of order", |page, nth| {
            if nth >= 20 && page.files.len() > 700 {
                page.files.swap(600, 700);
            }
        }),
        ("with a key twice", |page, nth| {
            if nth >= 20 && page.files.len() > 700 {
                let twice = page.files[600].clone();
                page.files.insert(600, twice);
            }
        }),
        ("with keys before the one to begin after", |page, nth| {
            if nth > 5 && !page.files.is_empty() {
                page.files[0].key = b"a".to_vec();
            }
        }),
        ("with a page that does not advance", |page, nth| {
            if nth > 5 {
                page.files.clear();
                page.next = Some(b"a".to_vec());
            }
        }),
        ("changed at the origin while it was being listed", |page, nth| {
            for file in &mut page.files {
                file.version = Version::ETag(format!("\"{nth}\""));
            }
        }),
    ];
    for (what, spoil) in cases {
        let origin = MadeUp { spoil, ..MadeUp::new(200_000, SHAPES[1].1) };
        let error = collect(Arc::new(origin), 16).await.map(|_| ()).expect_err(what);
        assert!(error.to_string().contains(what), "{what}: {error}");
    }
}

fn key() -> impl Strategy<Value = String> {
    let part = prop::sample::select(
        &[
            "a",
            "b",
            "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
            "/",
            "//",
            "\u{1}",
            "\u{7f}",
            "\u{80}",
            "ÿ",
            "é",
            "\u{ffff}",
            "\u{10ffff}",
            " ",
            "0",
            "9",
            "~",
        ][..],
    );
    prop::collection::vec(part, 1..7).prop_map(|parts| parts.concat())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]
    // SEMANTICS: I6
    #[test]
    fn no_key_is_lost_or_listed_twice_wherever_the_ranges_are_split(
        keys in prop::collection::btree_set(key(), 0..300), page in 1..9_usize, concurrency in 1..20_usize,
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let origin = MemoryOrigin::new("s3://bucket/data", page);
        for key in &keys {
            origin.set(key, "x");
        }
        let (all, _) = runtime.block_on(collect(Arc::new(origin), concurrency)).unwrap();
        let expected: BTreeMap<_, _> = keys.iter().map(|key| (key.as_bytes().to_vec(), 1)).collect();
        prop_assert_eq!(all.keys, expected);
    }

    #[test]
    fn a_guess_is_between_its_bounds(keys in prop::collection::btree_set(key(), 2..20), odd in key()) {
        let mut alphabet = between::Alphabet::default();
        keys.iter().for_each(|key| alphabet.learn(key.as_bytes()));
        let keys: Vec<_> = keys.iter().map(String::as_bytes).chain([odd.as_bytes()]).collect();
        for after in &keys {
            for until in keys.iter().map(|key| Some(*key)).chain([None]) {
                if until.is_none_or(|until| *after < until)
                    && let Some(guess) = alphabet.between(after, until)
                {
                    prop_assert!(guess.as_slice() > *after);
                    prop_assert!(until.is_none_or(|until| guess.as_slice() < until));
                }
            }
        }
    }
}
