//! Formats the pages of a listing for answers.

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use s3s::dto::{CommonPrefix, ETag, Object as ListedObject, Timestamp};

use crate::store::listing::{ListingPage, PageStart};

/// The characters that `encoding-type=url` leaves unchanged.
const UNENCODED: AsciiSet = NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'*').remove(b'/');

/// Formats a key or prefix for an answer.
pub(super) fn encoded(text: &str, url: bool) -> String {
    // As on Amazon, a space becomes a plus sign and a plus sign is escaped.
    if url { utf8_percent_encode(text, &UNENCODED).to_string().replace("%20", "+") } else { text.to_string() }
}

/// Encodes the start of a page as a continuation token, in characters that XML and URLs leave unchanged.
pub(super) fn token(start: &PageStart) -> String {
    let (kind, key) = match start {
        PageStart::Beginning => ('b', ""),
        PageStart::After(key) => ('k', key.as_str()),
        PageStart::AfterPrefix(prefix) => ('p', prefix.as_str()),
    };
    format!("{kind}{}", utf8_percent_encode(key, NON_ALPHANUMERIC).to_string().replace('%', "-"))
}

pub(super) fn parse_token(token: &str) -> Option<PageStart> {
    let key = percent_encoding::percent_decode_str(&token.get(1..)?.replace('-', "%")).decode_utf8().ok()?.into_owned();
    match token.as_bytes().first()? {
        b'b' => Some(PageStart::Beginning),
        b'k' => Some(PageStart::After(key)),
        b'p' => Some(PageStart::AfterPrefix(key)),
        _ => None,
    }
}

/// Formats the keys and common prefixes of a page.
pub(super) fn entries(page: &ListingPage, url: bool) -> (Vec<ListedObject>, Vec<CommonPrefix>) {
    let objects = page.objects.iter().map(|(key, object)| ListedObject {
        key: Some(encoded(key, url)),
        e_tag: Some(ETag::Strong(object.etag.clone())),
        last_modified: Some(Timestamp::from(object.modified)),
        size: Some(object.len() as i64),
        ..ListedObject::default()
    });
    let prefixes = page.prefixes.iter().map(|prefix| CommonPrefix { prefix: Some(encoded(prefix, url)) });
    (objects.collect(), prefixes.collect())
}
