use std::borrow::Cow;

use chrono::DateTime;
use futures::TryStreamExt;
use object_store::list::{PaginatedListOptions, PaginatedListResult};
use object_store::memory::InMemory;
use object_store::{ListResult, ObjectMeta};

use super::*;
use crate::config::OriginConfig;
use crate::conformance::conformance;
use crate::limit::OriginLimit;
use crate::{azure, gcs};

fn policy() -> RetryPolicy {
    RetryPolicy::new(&OriginConfig::default(), &OriginLimit::fixed(8, None))
}

/// How a store can continue a listing.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Pages {
    /// After the offset or the token.
    Both,
    /// After the token only, as Azure does with the service version that object_store sends.
    Token,
    /// From the beginning, with a token.
    Never,
}

/// Lists a store in memory page by page.
struct Paged {
    store: Arc<InMemory>,
    pages: Pages,
}

#[async_trait]
impl PaginatedListStore for Paged {
    async fn list_paginated(
        &self,
        prefix: Option<&str>,
        options: PaginatedListOptions,
    ) -> object_store::Result<PaginatedListResult> {
        let prefix = prefix.unwrap_or_default();
        let after = match self.pages {
            Pages::Both => options.page_token.or(options.offset),
            Pages::Token => options.page_token,
            Pages::Never => None,
        };
        let mut all: Vec<ObjectMeta> = self.store.list(None).try_collect().await?;
        all.retain(|meta| meta.location.as_ref().starts_with(prefix));
        all.sort_by(|a, b| a.location.cmp(&b.location));
        let (mut objects, mut folders): (Vec<ObjectMeta>, Vec<String>) = (Vec::new(), Vec::new());
        let mut last = None;
        for meta in all {
            let below = &meta.location.as_ref()[prefix.len()..];
            let folder = below.find('/').filter(|_| options.delimiter == Some(Cow::Borrowed("/")));
            let name = match folder {
                Some(end) => format!("{prefix}{}", &below[..=end]),
                None => meta.location.to_string(),
            };
            if after.as_ref().is_some_and(|after| name <= *after) || folders.contains(&name) {
                continue;
            }
            if objects.len() + folders.len() == options.max_keys.unwrap_or(usize::MAX) {
                return Ok(listed(objects, folders, last));
            }
            last = Some(name.clone());
            if folder.is_some() { folders.push(name) } else { objects.push(meta) }
        }
        Ok(listed(objects, folders, None))
    }
}

fn listed(objects: Vec<ObjectMeta>, folders: Vec<String>, page_token: Option<String>) -> PaginatedListResult {
    let common_prefixes = folders.iter().map(|folder| Path::parse(folder).expect("a path")).collect();
    let result = ListResult { common_prefixes, objects, extensions: http::Extensions::new() };
    PaginatedListResult { result, page_token }
}

fn origin(url: &str, pages: Pages) -> ObjectOrigin {
    let url: OriginUrl = url.parse().expect("a URL");
    let store = Arc::new(InMemory::new());
    let key_prefix = keys::prefix(&url).expect("a prefix");
    let lister = Lister {
        url: url.clone(),
        key_prefix: key_prefix.clone(),
        store: Arc::new(Paged { store: Arc::clone(&store), pages }),
        policy: policy(),
        tokens: Tokens::default(),
    };
    ObjectOrigin { url, key_prefix, store, lister, policy: policy(), session: None }
}

#[tokio::test]
async fn any_object_store_conforms() {
    conformance(Arc::new(origin("gs://bucket", Pages::Both)), 1, 1100).await;
    conformance(Arc::new(origin("az://container/pre/fix", Pages::Token)), 2, 2100).await;
}

#[tokio::test]
async fn a_store_that_lists_the_same_page_for_ever_is_an_error() {
    let origin = origin("az://container", Pages::Never);
    for n in 0..1100 {
        origin.put(format!("{n:05}").as_bytes(), Bytes::new()).await.expect("put");
    }
    for depth in [Depth::One, Depth::All] {
        let first = origin.list(b"", None, depth).await.expect("the first page");
        let second = origin.list(b"", first.next.as_deref(), depth).await.expect_err("no progress");
        assert!(format!("{second:?}").contains("makes no progress"), "{second:?}");
    }
}

/// A store that sends these pages of objects and prefixes. The token of a page is its number.
struct Told(Vec<(Vec<ObjectMeta>, Vec<String>)>);

#[async_trait]
impl PaginatedListStore for Told {
    async fn list_paginated(
        &self,
        _prefix: Option<&str>,
        options: PaginatedListOptions,
    ) -> object_store::Result<PaginatedListResult> {
        let at: usize = options.page_token.map_or(0, |token| token.parse().expect("a number"));
        let page_token = (at + 1 < self.0.len()).then(|| (at + 1).to_string());
        let (objects, prefixes) = self.0[at].clone();
        Ok(listed(objects, prefixes, page_token))
    }
}

/// An origin whose store sends these pages of keys. Keys that end with `/` are markers for `Depth::All`, and prefixes
/// for `Depth::One`.
fn telling(url: &str, pages: &[&[&str]], depth: Depth) -> ObjectOrigin {
    let object = |key: &str| ObjectMeta {
        location: Path::parse(key).expect("a path"),
        last_modified: DateTime::UNIX_EPOCH,
        size: u64::from(!key.ends_with('/')),
        e_tag: None,
        version: None,
    };
    let pages = pages.iter().map(|keys| {
        let (prefixes, objects): (Vec<&str>, Vec<&str>) =
            keys.iter().partition(|key| depth == Depth::One && key.ends_with('/'));
        (objects.into_iter().map(object).collect(), prefixes.into_iter().map(str::to_owned).collect())
    });
    let mut origin = origin(url, Pages::Both);
    origin.lister.store = Arc::new(Told(pages.collect()));
    origin
}

/// Lists everything, page by page. With `fresh`, each page is listed by a process without tokens.
async fn list_all(origin: &mut ObjectOrigin, depth: Depth, fresh: bool) -> Result<Vec<String>, OriginError> {
    let (mut all, mut after) = (Vec::new(), None::<Vec<u8>>);
    loop {
        let page = origin.list(b"", after.as_deref(), depth).await?;
        all.extend(page.files.into_iter().map(|file| file.key).chain(page.prefixes));
        match page.next {
            Some(next) if after.as_ref().is_none_or(|after| next > *after) => after = Some(next),
            Some(next) => panic!("{next:?} is not after {after:?}"),
            None => break,
        }
        if fresh {
            origin.lister.tokens = Tokens::default();
        }
    }
    Ok(all.into_iter().map(|key| String::from_utf8(key).expect("UTF-8")).collect())
}

// SEMANTICS: I7
#[tokio::test]
async fn a_store_that_lists_out_of_order_or_a_key_twice_is_an_error_and_loses_no_key() {
    use Depth::{All, One};
    let cases: [(&[&[&str]], Depth, &str); 10] = [
        (&[&["b", "a"]], All, "keys out of order"),
        (&[&["a", "a"]], All, "a key twice"),
        (&[&["a", "c"], &["b", "d"]], All, "keys out of order"),
        (&[&["a", "b"], &["b", "c"]], All, "a key twice"),
        (&[&["a", "b"], &["a", "b"]], All, "makes no progress"),
        // A hierarchical namespace sorts `/` before all other characters.
        (&[&["a/x", "a-b/y"]], All, "keys out of order"),
        (&[&["a/x"], &["a-b/y", "c"]], All, "keys out of order"),
        (&[&["a/", "a-b/"]], One, "keys out of order"),
        (&[&["a/", "b"], &["a/", "c/"]], One, "keys out of order"),
        (&[&["a/"], &["a-b/", "c"]], One, "keys out of order"),
    ];
    for (pages, depth, says) in cases {
        for (url, fresh) in [("gs://bucket", false), ("az://container", false), ("az://container", true)] {
            let listed = list_all(&mut telling(url, pages, depth), depth, fresh).await;
            let error = format!("{:?}", listed.expect_err(says));
            assert!(error.contains(says), "{url} {pages:?}: {error}");
        }
    }
}

// SEMANTICS: I7
#[tokio::test]
async fn markers_are_listed_where_they_are_and_each_key_once_however_pages_end() {
    // Sorted by key; object_store lists `data/` as `data`.
    let keys = ["a", "data", "data-2/x", "data/", "data/x", "e"];
    for cut in 1..keys.len() {
        let (one, two) = keys.split_at(cut);
        for pages in [vec![one, two], vec![one, &two[..1], &two[1..], &[]]] {
            let listed = list_all(&mut telling("gs://bucket", &pages, Depth::All), Depth::All, false).await;
            let mut listed = listed.expect("in order");
            listed.sort();
            assert_eq!(listed, ["a", "data", "data", "data-2/x", "data/x", "e"], "{cut}");
        }
    }
}

#[test]
fn the_marker_of_the_listed_prefix_is_the_prefix_and_keys_elsewhere_are_refused() {
    let origin = origin("gs://bucket/data", Pages::Both);
    let list = |location: &str, prefix: &[u8], full: &str| {
        let meta = ObjectMeta {
            location: Path::parse(location).expect("a path"),
            last_modified: DateTime::UNIX_EPOCH,
            size: 0,
            e_tag: None,
            version: None,
        };
        let listed = ListResult { common_prefixes: vec![], objects: vec![meta], extensions: http::Extensions::new() };
        origin.lister.page(prefix, full, listed).map(|page| page.files[0].key.clone())
    };
    assert_eq!(list("data", b"", "data/").expect("a page"), b"");
    assert_eq!(list("data/sub", b"sub/", "data/sub/").expect("a page"), b"sub/");
    assert_eq!(list("data/sub/x", b"sub/", "data/sub/").expect("a page"), b"sub/x");
    for foreign in ["dat", "data2", "data/sub"] {
        list(foreign, b"sub2/", "data/sub2/").expect_err(foreign);
    }
}

#[tokio::test]
async fn keys_that_object_store_would_change_are_refused() {
    let origin = origin("gs://bucket", Pages::Both);
    for key in ["a//b", "/a", "a/", "..", "a\u{1}", ""] {
        let put = origin.put(key.as_bytes(), Bytes::new()).await;
        assert!(matches!(put, Err(OriginError::Invalid { .. })), "{key:?}: {put:?}");
    }
}

#[test]
fn stores_open_by_their_variables_and_show_no_secret() {
    let mut config = OriginConfig { anonymous: true, ..OriginConfig::default() };
    gcs::open(&"gs://b/p".parse().expect("a URL"), &config, policy()).expect("gcs");
    let url: OriginUrl = "az://c/p".parse().expect("a URL");
    let error = azure::open(&url, &config, policy()).expect_err("no account");
    assert!(error.to_string().contains("AZURE_STORAGE_ACCOUNT_NAME"), "{error}");
    config.env.set("AZURE_STORAGE_ACCOUNT_NAME", "me");
    config.env.set("AZURE_STORAGE_ACCOUNT_KEY", "aHVudGVyMg==");
    let azure = azure::open(&url, &config, policy()).expect("azure");
    assert!(!format!("{azure:?} {config:?}").contains("aHVudGVyMg"));
}
