use std::borrow::Cow;

use chrono::DateTime;
use futures::TryStreamExt;
use object_store::list::{PaginatedListOptions, PaginatedListResult};
use object_store::memory::InMemory;
use object_store::{ListResult, ObjectMeta};

use super::*;
use crate::concurrency::ConcurrencyLimit;
use crate::config::OriginConfig;
use crate::conformance::conformance;
use crate::{azure, gcs};

fn policy() -> RetryPolicy {
    RetryPolicy::new(&OriginConfig::default(), &ConcurrencyLimit::fixed(8))
}

/// How a store continues a listing.
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
    ObjectOrigin { url, key_prefix, store, lister, policy: policy() }
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
