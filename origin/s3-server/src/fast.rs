//! GETs and HEADs of objects in memory, past s3s: what benchmarks ask for a hundred thousand times.
//!
//! Only where their signatures are not looked at. The plainest ones, by path, with at most `Range` and `If-Match`, of an
//! object that is there, is in memory and fits both, are answered here; everything else is s3s's. Both count the same.
//!
//! The invariant: an answer given here is the one that s3s would have given.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use hyper::body::Incoming;
use hyper::header::{self, HeaderName, HeaderValue};
use hyper::{Method, Request, Response, StatusCode};
use s3s::Body;

use crate::store::{Content, Object, Store};

/// Headers that ask for something else than the bytes as they are.
const CONDITIONS: [HeaderName; 4] =
    [header::IF_NONE_MATCH, header::IF_MODIFIED_SINCE, header::IF_UNMODIFIED_SINCE, header::IF_RANGE];

/// The answer, if it is one of the plain ones.
pub(crate) fn answer(store: &Store, request: &Request<Incoming>) -> Option<Response<Body>> {
    let headers = request.headers();
    let is_get = *request.method() == Method::GET;
    // Amazon's own clients name the operation.
    let plain = (is_get || (*request.method() == Method::HEAD && !headers.contains_key(header::RANGE)))
        && matches!(request.uri().query(), None | Some("" | "x-id=GetObject" | "x-id=HeadObject"))
        && !CONDITIONS.iter().any(|condition| headers.contains_key(condition));
    let (bucket, key) = request.uri().path().strip_prefix('/')?.split_once('/').filter(|_| plain)?;
    let key = percent_encoding::percent_decode_str(key).decode_utf8().ok().filter(|key| !key.is_empty())?;
    let object = store.get(bucket, &key)?;
    let Content::Memory(bytes) = &object.content else { return None };
    if headers.get(header::IF_MATCH).is_some_and(|tag| !is_tag(tag, &object)) {
        return None;
    }
    let range = match headers.get(header::RANGE) {
        None => 0..bytes.len(),
        Some(range) => asked(range, bytes.len())?,
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

fn is_tag(sent: &HeaderValue, object: &Arc<Object>) -> bool {
    sent.as_bytes().strip_prefix(b"\"").and_then(|rest| rest.strip_suffix(b"\"")) == Some(object.etag.as_bytes())
}

/// `bytes=A-B` or `bytes=A-` within the object.
fn asked(header: &HeaderValue, len: usize) -> Option<Range<usize>> {
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
        let asked = |text: &'static str| asked(&HeaderValue::from_static(text), 100);
        assert_eq!(asked("bytes=0-9"), Some(0..10));
        assert_eq!(asked("bytes=90-900"), Some(90..100));
        assert_eq!(asked("bytes=7-"), Some(7..100));
        for odd in ["bytes=100-", "bytes=-5", "bytes=5-4", "bytes=0-1,3-4", "lines=0-1", "bytes=x-1"] {
            assert_eq!(asked(odd), None, "{odd}");
        }
    }
}
