//! Listings of a bucket.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;

use crate::store::object::Object;

/// The start of a page.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum PageStart {
    Beginning,
    /// After this key.
    After(String),
    /// After all keys that begin with this prefix.
    AfterPrefix(String),
}

/// One page of a listing.
#[derive(Debug, Default)]
pub(crate) struct ListingPage {
    pub(crate) objects: Vec<(String, Arc<Object>)>,
    pub(crate) prefixes: Vec<String>,
    /// The start of the next page, if there is one.
    pub(crate) next: Option<PageStart>,
}

/// A page of at most `limit` keys and common prefixes.
pub(super) fn list(
    bucket: &BTreeMap<String, Arc<Object>>,
    prefix: &str,
    delimiter: Option<&str>,
    start: PageStart,
    limit: usize,
) -> ListingPage {
    let mut listing = ListingPage::default();
    let mut at = start;
    loop {
        let from = match &at {
            PageStart::AfterPrefix(below) => match successor(below) {
                Some(next) => Bound::Included(next),
                None => return listing,
            },
            PageStart::After(key) if key.as_str() >= prefix => Bound::Excluded(key.clone()),
            PageStart::After(_) | PageStart::Beginning => Bound::Included(prefix.to_string()),
        };
        let from = match from {
            Bound::Included(key) if key.as_str() < prefix => Bound::Included(prefix.to_string()),
            from => from,
        };
        let Some((key, object)) = bucket.range::<String, _>((from, Bound::Unbounded)).next() else {
            return listing;
        };
        let Some(rest) = key.strip_prefix(prefix) else {
            return listing;
        };
        if listing.objects.len() + listing.prefixes.len() >= limit {
            listing.next = Some(at);
            return listing;
        }
        at = match delimiter.and_then(|delimiter| Some(rest.find(delimiter)? + delimiter.len())) {
            Some(end) => {
                let below = format!("{prefix}{}", &rest[..end]);
                listing.prefixes.push(below.clone());
                PageStart::AfterPrefix(below)
            }
            None => {
                listing.objects.push((key.clone(), Arc::clone(object)));
                PageStart::After(key.clone())
            }
        };
    }
}

/// The first string after all strings that begin with `prefix`. `None` if the prefix consists of the last character of
/// Unicode.
fn successor(prefix: &str) -> Option<String> {
    let mut characters: Vec<char> = prefix.chars().collect();
    while let Some(last) = characters.pop() {
        // The code points between these two are surrogates, which are not characters.
        let next = if last == '\u{D7FF}' { Some('\u{E000}') } else { char::from_u32(last as u32 + 1) };
        if let Some(next) = next {
            characters.push(next);
            return Some(characters.into_iter().collect());
        }
    }
    None
}
