//! GETs and HEADs of objects in memory, answered without s3s: the requests that benchmarks send a hundred thousand
//! times.
//!
//! Used only if signatures are not checked. This module answers a request if it is path-style, has at most `Range` and
//! `If-Match`, and names an object in memory that satisfies both. s3s answers all other requests. Both count requests
//! the same way.
//!
//! The invariant: an answer from this module equals the answer that s3s would have sent.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use hyper::body::Incoming;
use hyper::header::{self, HeaderName, HeaderValue};
use hyper::{Method, Request, Response, StatusCode};
use s3s::Body;

use crate::store::Store;
use crate::store::object::{Content, Object};

/// Headers that request something other than the plain bytes.
const CONDITIONS: [HeaderName; 4] =
    [header::IF_NONE_MATCH, header::IF_MODIFIED_SINCE, header::IF_UNMODIFIED_SINCE, header::IF_RANGE];

/// Answers a plain request. `None` for any other request.
pub(crate) fn answer(store: &Store, request: &Request<Incoming>) -> Option<Response<Body>> {
    let headers = request.headers();
    let is_get = *request.method() == Method::GET;
    // Amazon's own clients add the name of the operation to the query.
    let plain = (is_get || (*request.method() == Method::HEAD && !headers.contains_key(header::RANGE)))
        && matches!(request.uri().query(), None | Some("" | "x-id=GetObject" | "x-id=HeadObject"))
        && !CONDITIONS.iter().any(|condition| headers.contains_key(condition));
    let (bucket, key) = request.uri().path().strip_prefix('/')?.split_once('/').filter(|_| plain)?;
    let key = percent_encoding::percent_decode_str(key).decode_utf8().ok().filter(|key| !key.is_empty())?;
    let object = store.get(bucket, &key)?;
    let Content::Memory(bytes) = &object.content else { return None };
    if headers.get(header::IF_MATCH).is_some_and(|tag| !matches(tag, &object)) {
        return None;
    }
    let range = match headers.get(header::RANGE) {
        None => 0..bytes.len(),
        Some(range) => parse_range(range, bytes.len())?,
    };
    let mut answer = Response::new(Body::empty());
    if is_get {
        store.gets.fetch_add(1, Ordering::Relaxed);
        store.count_get(&object);
        store.get_bytes.fetch_add(range.len() as u64, Ordering::Relaxed);
        *answer.body_mut() = Body::from(bytes.slice(range.clone()));
    } else {
        store.heads.fetch_add(1, Ordering::Relaxed);
    }
    let set = answer.headers_mut();
    set.insert(header::ACCEPT_RANGES, HeaderValue::from_static("bytes"));
    set.insert(header::CONTENT_LENGTH, HeaderValue::from(range.len()));
    set.insert(header::ETAG, HeaderValue::from_str(&format!("\"{}\"", object.etag)).ok()?);
    set.insert(header::LAST_MODIFIED, HeaderValue::from_str(&object.http_date).ok()?);
    if headers.contains_key(header::RANGE) {
        let sent = format!("bytes {}-{}/{}", range.start, range.end - 1, bytes.len());
        set.insert(header::CONTENT_RANGE, HeaderValue::from_str(&sent).ok()?);
        *answer.status_mut() = StatusCode::PARTIAL_CONTENT;
    }
    Some(answer)
}

fn matches(sent: &HeaderValue, object: &Arc<Object>) -> bool {
    sent.as_bytes().strip_prefix(b"\"").and_then(|rest| rest.strip_suffix(b"\"")) == Some(object.etag.as_bytes())
}

/// Parses `bytes=A-B` or `bytes=A-` and limits the range to the object.
fn parse_range(header: &HeaderValue, len: usize) -> Option<Range<usize>> {
    let (first, last) = header.to_str().ok()?.strip_prefix("bytes=")?.split_once('-')?;
    let first: usize = first.parse().ok()?;
    let end = if last.is_empty() { len } else { last.parse::<usize>().ok()?.checked_add(1)?.min(len) };
    (first < end).then_some(first..end)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_is_cut_to_the_object_and_an_odd_one_is_left_to_s3s() {
        let parse = |text: &'static str| parse_range(&HeaderValue::from_static(text), 100);
        assert_eq!(parse("bytes=0-9"), Some(0..10));
        assert_eq!(parse("bytes=90-900"), Some(90..100));
        assert_eq!(parse("bytes=7-"), Some(7..100));
        for odd in ["bytes=100-", "bytes=-5", "bytes=5-4", "bytes=0-1,3-4", "lines=0-1", "bytes=x-1"] {
            assert_eq!(parse(odd), None, "{odd}");
        }
    }
}
