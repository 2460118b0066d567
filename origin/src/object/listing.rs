//! Listing through object_store, one page of the store at a time.
//!
//! A caller continues after the last key; a store continues at the token that it sent with a page. [`Tokens`] remembers
//! the token for each key, so that each page of a listing costs one request. Without a token (in the first call of a
//! resumed listing), the request contains the key. Azure supports that parameter only from service version 2026-02-06
//! on, which object_store does not send; Azurite does not support it. Pages up to the key are therefore skipped, but
//! only in that case: pages that follow a token are always new. The invariants: a listing that makes no progress, has
//! keys out of order or contains a key twice is an error, at any division into pages.

use std::borrow::Cow;
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};

use object_store::list::{PaginatedListOptions, PaginatedListResult, PaginatedListStore};
use object_store::{ListResult, ObjectMeta};

use crate::error::OriginError;
use crate::listing::{Depth, ObjectInfo, Page};
use crate::object::error::attempt_error;
use crate::object::keys;
use crate::retry::{AttemptError, Retry, RetryPolicy};
use crate::url::{OriginUrl, Scheme};
use crate::version::Version;

/// The number of keys in a page. Azure would send 5,000; the other stores send at most this many.
const PAGE_KEYS: usize = 1000;

/// More than the number of concurrent listings. Beyond it the oldest token is forgotten, which costs additional
/// requests.
const MOST_TOKENS: usize = 1024;

/// The position of a listing: the whole prefix, the depth, and the whole key of `after`.
type Place = (String, Depth, String);

/// The tokens of listings in progress. Each token is used once, so a later listing starts without one.
#[derive(Debug, Default)]
pub(super) struct Tokens(Mutex<VecDeque<(Place, String)>>);

impl Tokens {
    fn put(&self, place: Place, token: String) {
        let mut tokens = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if tokens.len() == MOST_TOKENS {
            tokens.pop_front();
        }
        tokens.push_back((place, token));
    }

    fn take(&self, place: &Place) -> Option<String> {
        let mut tokens = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let at = tokens.iter().position(|(known, _)| known == place)?;
        tokens.remove(at).map(|(_, token)| token)
    }
}

/// Lists the keys of a store.
pub(super) struct Lister {
    pub(super) url: OriginUrl,
    pub(super) key_prefix: String,
    pub(super) store: Arc<dyn PaginatedListStore>,
    pub(super) policy: RetryPolicy,
    pub(super) tokens: Tokens,
}

impl Lister {
    pub(super) async fn list(&self, prefix: &[u8], after: Option<&[u8]>, depth: Depth) -> Result<Page, OriginError> {
        let full = keys::full(&self.key_prefix, prefix)?;
        let offset = after.map(|after| keys::full(&self.key_prefix, after)).transpose()?;
        let mut token = offset.as_ref().and_then(|offset| self.tokens.take(&(full.clone(), depth, offset.clone())));
        // Without a token, the store may start with keys that were already listed.
        let resumes = token.is_none();
        let mut place = after.filter(|_| !resumes).map(<[u8]>::to_vec);
        let mut found = Page::default();
        // The deadline applies to each step that makes progress, since the number of pages to skip is unknown.
        let mut retry = Retry::new(&self.policy, prefix);
        loop {
            let options = PaginatedListOptions {
                offset: offset.clone().filter(|_| token.is_none()),
                delimiter: (depth == Depth::One).then_some(Cow::Borrowed("/")),
                max_keys: Some(PAGE_KEYS),
                page_token: token.clone(),
                ..PaginatedListOptions::default()
            };
            let listed = match self.request(&retry, prefix, &full, options).await {
                Ok(listed) => listed,
                Err(error) => {
                    retry.pause(error).await?;
                    continue;
                }
            };
            let mut page = self.page(prefix, &full, listed.result)?;
            if let Some(end) = self.check_order(&page, place.as_deref())? {
                place = Some(end);
                retry = Retry::new(&self.policy, prefix);
            }
            if resumes {
                keep_after(&mut page, after);
            }
            found.files.append(&mut page.files);
            found.prefixes.append(&mut page.prefixes);
            // Sorted again, because object_store removes the slash of markers, which changes their order.
            found.files.sort_by(|a, b| a.key.cmp(&b.key));
            let Some(next) = listed.page_token else { return Ok(found) };
            if token.as_ref() == Some(&next) {
                return Err(odd("makes no progress"));
            }
            if let Some(last) = last(&found).filter(|last| after.is_none_or(|after| last.as_slice() > after)) {
                self.tokens.put((full, depth, keys::full(&self.key_prefix, &last)?), next);
                found.next = Some(last);
                return Ok(found);
            }
            token = Some(next);
        }
    }

    async fn request(
        &self,
        retry: &Retry,
        prefix: &[u8],
        full: &str,
        options: PaginatedListOptions,
    ) -> Result<PaginatedListResult, AttemptError> {
        let full = (!full.is_empty()).then_some(full);
        let listed = retry.answer(self.store.list_paginated(full, options)).await?;
        listed.map_err(|error| match attempt_error(error, prefix, None, &self.policy) {
            AttemptError::Final(OriginError::NotFound { .. }) => {
                let kind = if self.url.scheme() == Scheme::Azure { "container" } else { "bucket" };
                AttemptError::Final(OriginError::Invalid { what: format!("{}: there is no such {kind}", self.url) })
            }
            error => error,
        })
    }

    pub(super) fn page(&self, prefix: &[u8], full: &str, listed: ListResult) -> Result<Page, OriginError> {
        let foreign =
            || OriginError::Unavailable { source: "the listing contains a key outside the requested prefix".into() };
        let mut page = Page::default();
        for meta in listed.objects {
            let location = meta.location.as_ref();
            let key = match location.strip_prefix(full) {
                Some(below) => [prefix, below.as_bytes()].concat(),
                // This is the marker of the prefix itself, whose slash object_store removes.
                None if full.strip_suffix('/') == Some(location) => prefix.to_vec(),
                None => return Err(foreign()),
            };
            page.files.push(info(key, &meta));
        }
        for below in listed.common_prefixes {
            let below = below.as_ref().strip_prefix(full).ok_or_else(foreign)?;
            page.prefixes.push([prefix, below.as_bytes(), b"/"].concat());
        }
        Ok(page)
    }

    /// Checks that a page, as the store sent it, is in order and starts after `before`. Returns its greatest key;
    /// `None` if it is empty.
    fn check_order(&self, page: &Page, before: Option<&[u8]>) -> Result<Option<Vec<u8>>, OriginError> {
        let mut files = Order(before.map(Cow::Borrowed));
        let mut prefixes = files.clone();
        let in_order = (page.files.iter().try_for_each(|file| files.file(file)))
            .and_then(|()| page.prefixes.iter().try_for_each(|prefix| prefixes.prefix(prefix)));
        match in_order {
            Ok(()) if page.files.is_empty() && page.prefixes.is_empty() => Ok(None),
            Ok(()) => Ok(files.0.max(prefixes.0).map(Cow::into_owned)),
            Err(_) if before.is_some() && last(page).as_deref() <= before => Err(odd("makes no progress")),
            Err(Disorder::Twice) => Err(odd("has a key twice")),
            Err(Disorder::Order) if self.url.scheme() == Scheme::Azure => Err(odd(
                "has keys out of order, as accounts with a hierarchical namespace list them, which cannot be imported",
            )),
            Err(Disorder::Order) => Err(odd("has keys out of order")),
        }
    }
}

/// The listing entry of an object with this key below the origin's prefix.
pub(super) fn info(key: Vec<u8>, meta: &ObjectMeta) -> ObjectInfo {
    let mtime_ns = meta.last_modified.timestamp_nanos_opt().unwrap_or_default();
    let version = Version::from_etag_or_mtime(meta.e_tag.as_deref(), mtime_ns, meta.size);
    ObjectInfo { key, size: meta.size, mtime_ns, version }
}

fn odd(what: &str) -> OriginError {
    OriginError::Unavailable { source: format!("the listing {what}").into() }
}

/// The position of a listing in the store's own order. The next entry must be greater.
#[derive(Clone)]
struct Order<'a>(Option<Cow<'a, [u8]>>);

enum Disorder {
    Order,
    Twice,
}

impl<'a> Order<'a> {
    fn file(&mut self, file: &'a ObjectInfo) -> Result<(), Disorder> {
        let Some(last) = &self.0 else {
            self.0 = Some(Cow::Borrowed(&file.key));
            return Ok(());
        };
        if file.key.as_slice() > last.as_ref() {
            self.0 = Some(Cow::Borrowed(&file.key));
            return Ok(());
        }
        // A marker, whose slash object_store removes, sorts after keys such as `a-b` and after an object `a`.
        let marker = [file.key.as_slice(), b"/"].concat();
        if file.size == 0 && marker.as_slice() > last.as_ref() {
            self.0 = Some(Cow::Owned(marker));
            return Ok(());
        }
        let twice = [file.key.as_slice(), &marker].contains(&last.as_ref());
        Err(if twice { Disorder::Twice } else { Disorder::Order })
    }

    fn prefix(&mut self, prefix: &[u8]) -> Result<(), Disorder> {
        let end = after_all_below(prefix);
        match &self.0 {
            Some(last) if end == last.as_ref() => Err(Disorder::Twice),
            Some(last) if prefix <= last.as_ref() => Err(Disorder::Order),
            _ => {
                self.0 = Some(Cow::Owned(end));
                Ok(())
            }
        }
    }
}

/// The smallest key after all keys below a prefix.
fn after_all_below(prefix: &[u8]) -> Vec<u8> {
    [prefix, "\u{10FFFF}".as_bytes()].concat()
}

/// The greatest key of a page. For a prefix, that is a key after everything below it: otherwise the next page would
/// start with the same prefix again.
fn last(page: &Page) -> Option<Vec<u8>> {
    let file = page.files.iter().map(|file| &file.key).max().cloned();
    let prefix = page.prefixes.iter().max().map(|prefix| after_all_below(prefix));
    file.max(prefix)
}

fn keep_after(page: &mut Page, after: Option<&[u8]>) {
    page.files.retain(|file| after.is_none_or(|after| file.key.as_slice() > after));
    page.prefixes.retain(|prefix| after.is_none_or(|after| prefix.as_slice() > after));
}
