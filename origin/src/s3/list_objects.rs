//! The ListObjectsV2 request and answer: query, XML and encoding, without any I/O.
//!
//! object_store's own listing fails on the first key that is not a valid path to it (`a//b`, `..`, a control character),
//! so one odd object would hide a whole bucket. Here every key comes out byte for byte. The invariant: a page that makes
//! no progress, or whose keys are not below the prefix, is an error and never a listing.

use serde::Deserialize;

use crate::listing::{Depth, ObjectInfo, Page};
use crate::version::Version;

/// Keys requested in one page; the most that S3 returns.
pub(crate) const PAGE_KEYS: u32 = 1000;

/// A page of 1,000 keys of 1,024 bytes, fully percent-encoded, is smaller than 4 MiB.
pub(crate) const ANSWER_LIMIT: u64 = 32 << 20;

/// Why an answer is not a listing.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Malformed {
    #[error("the listing is incomplete")]
    Incomplete,
    #[error("the listing is not ListObjectsV2 XML")]
    Xml(#[source] quick_xml::DeError),
    #[error("the listing is not UTF-8")]
    Utf8(#[source] std::str::Utf8Error),
    #[error("the listing contains a key outside the requested prefix")]
    ForeignKey,
    #[error("the listing contains an entry without size or time")]
    Entry,
    #[error("the listing makes no progress")]
    Stuck,
}

#[derive(Debug, Deserialize)]
#[serde(rename = "ListBucketResult", rename_all = "PascalCase")]
struct ListBucketResult {
    #[serde(default)]
    contents: Vec<Contents>,
    #[serde(default)]
    common_prefixes: Vec<CommonPrefix>,
    encoding_type: Option<String>,
    next_continuation_token: Option<String>,
    is_truncated: bool,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Contents {
    key: String,
    size: u64,
    last_modified: String,
    #[serde(rename = "ETag")]
    e_tag: Option<String>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct CommonPrefix {
    prefix: String,
}

/// A page, and the token to continue with if the store returned a truncated page without entries.
#[derive(Debug)]
pub(crate) struct Parsed {
    pub(crate) page: Page,
    pub(crate) continuation: Option<String>,
}

/// The query of a request for one page, as pairs that are not encoded yet.
pub(crate) fn query(
    prefix: &str,
    after: Option<&str>,
    token: Option<&str>,
    depth: Depth,
) -> Vec<(&'static str, String)> {
    // XML 1.0 cannot contain control characters, so without the encoding such a key would make the answer unreadable.
    let mut query =
        vec![("encoding-type", "url".to_string()), ("list-type", "2".to_string()), ("max-keys", PAGE_KEYS.to_string())];
    if depth == Depth::One {
        query.push(("delimiter", "/".to_string()));
    }
    if !prefix.is_empty() {
        query.push(("prefix", prefix.to_string()));
    }
    match (token, after) {
        (Some(token), _) => query.push(("continuation-token", token.to_string())),
        (None, Some(after)) => query.push(("start-after", after.to_string())),
        (None, None) => {}
    }
    query
}

/// Parses an answer. `strip` is the length of the origin's prefix, `prefix` the whole requested prefix, and `after` the
/// key (with the origin's prefix) after which the page was to start.
pub(crate) fn parse(xml: &[u8], strip: usize, prefix: &[u8], after: Option<&[u8]>) -> Result<Parsed, Malformed> {
    let text = std::str::from_utf8(xml).map_err(Malformed::Utf8)?;
    if text.contains("<ListBucketResult") && !text.trim_end().ends_with("</ListBucketResult>") {
        return Err(Malformed::Incomplete);
    }
    let result: ListBucketResult = quick_xml::de::from_str(text).map_err(Malformed::Xml)?;
    let encoded = result.encoding_type.as_deref().is_some_and(|kind| kind.eq_ignore_ascii_case("url"));
    let decode = |key: &str| if encoded { decoded(key) } else { key.as_bytes().to_vec() };
    let relative = |key: &[u8]| key.starts_with(prefix).then(|| key[strip..].to_vec()).ok_or(Malformed::ForeignKey);

    let mut page = Page::default();
    let mut last: Option<Vec<u8>> = None;
    for entry in result.contents {
        let key = decode(&entry.key);
        let time = chrono::DateTime::parse_from_rfc3339(&entry.last_modified).map_err(|_| Malformed::Entry)?;
        let mtime_ns = time.timestamp_nanos_opt().ok_or(Malformed::Entry)?;
        let version = Version::from_etag_or_mtime(entry.e_tag.as_deref(), mtime_ns, entry.size);
        page.files.push(ObjectInfo { key: relative(&key)?, size: entry.size, mtime_ns, version });
        last = last.max(Some(key));
    }
    for CommonPrefix { prefix } in result.common_prefixes {
        let mut key = decode(&prefix);
        let shown = relative(&key)?;
        // The previous page ended inside this prefix, see below.
        if after.is_some_and(|after| after.starts_with(&key)) {
            continue;
        }
        page.prefixes.push(shown);
        // Start after everything below it; otherwise the next page would begin with the same prefix again.
        key.extend_from_slice("\u{10FFFF}".as_bytes());
        last = last.max(Some(key));
    }
    page.files.sort_by(|a, b| a.key.cmp(&b.key));
    page.prefixes.sort();
    if !result.is_truncated {
        return Ok(Parsed { page, continuation: None });
    }
    match (last, result.next_continuation_token) {
        (Some(last), _) if after.is_none_or(|after| last.as_slice() > after) => {
            page.next = Some(last[strip..].to_vec());
            Ok(Parsed { page, continuation: None })
        }
        (None, Some(token)) if !token.is_empty() => Ok(Parsed { page, continuation: Some(token) }),
        _ => Err(Malformed::Stuck),
    }
}

/// Decodes `encoding-type=url`: a space is `+` on Amazon and MinIO, `%20` on Ceph; a plus sign is `%2B` on all of them.
fn decoded(key: &str) -> Vec<u8> {
    let spaced = key.replace('+', " ");
    percent_encoding::percent_decode_str(&spaced).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(inner: &str, truncated: bool) -> String {
        format!(
            "<?xml version=\"1.0\" encoding=\"UTF-8\"?><ListBucketResult xmlns=\"http://s3.amazonaws.com/doc/2006-03-01/\">\
             <Name>b</Name><Prefix>d/</Prefix><KeyCount>1</KeyCount><MaxKeys>1000</MaxKeys><EncodingType>url</EncodingType>\
             <IsTruncated>{truncated}</IsTruncated>{inner}</ListBucketResult>"
        )
    }

    fn entry(key: &str) -> String {
        format!(
            "<Contents><Key>{key}</Key><LastModified>2009-10-12T17:50:30.000Z</LastModified><ETag>&quot;fba9&quot;</ETag>\
             <Size>434234</Size><StorageClass>STANDARD</StorageClass></Contents>"
        )
    }

    fn keys(page: &Page) -> Vec<&[u8]> {
        page.files.iter().map(|file| file.key.as_slice()).collect()
    }

    #[test]
    fn every_key_comes_out_as_the_bytes_it_is() {
        let xml =
            answer(&["d/", "d//x", "d/..", "d/a+b%2Bc", "d/a%01%0A", "d/%E2%82%AC%25"].map(entry).concat(), false);
        let page = parse(xml.as_bytes(), 2, b"d/", None).expect("a page").page;
        assert_eq!(keys(&page), [b"".as_slice(), b"..", b"/x", b"a\x01\n", b"a b+c", "€%".as_bytes()]);
        assert_eq!(page.files[0].size, 434_234);
        assert_eq!(page.files[0].mtime_ns, 1_255_369_830_000_000_000);
        assert_eq!(page.files[0].version, Version::ETag("\"fba9\"".into()));
        assert_eq!(page.next, None);
    }

    #[test]
    fn page_that_ends_with_a_prefix_does_not_give_it_again() {
        let prefix = "<CommonPrefixes><Prefix>d/sub/</Prefix></CommonPrefixes>";
        let first = parse(answer(&(entry("d/a") + prefix), true).as_bytes(), 2, b"d/", None).expect("first").page;
        assert_eq!(first.prefixes, [b"sub/"]);
        let next = first.next.expect("more");
        assert!(next.as_slice() > b"sub/zzz".as_slice());
        let after = [b"d/".as_slice(), &next].concat();
        let second = parse(answer(&(prefix.to_string() + &entry("d/x")), false).as_bytes(), 2, b"d/", Some(&after))
            .expect("second");
        assert!(second.page.prefixes.is_empty());
        assert_eq!(keys(&second.page), [b"x"]);
    }

    #[test]
    fn empty_truncated_page_goes_on_by_its_token() {
        let parsed = parse(answer("<NextContinuationToken>t</NextContinuationToken>", true).as_bytes(), 0, b"", None)
            .expect("a page");
        assert_eq!(parsed.continuation.as_deref(), Some("t"));
    }

    #[test]
    fn nonsense_is_an_error() {
        let cases = [
            "<html>Sign in</html>".to_string(),
            answer(&entry("elsewhere"), false),
            answer("", true),
            answer(&entry("d/a").replace("434234", "-1"), false),
            answer(&entry("d/a").replace("2009", "yesterday"), false),
            answer(&entry("d/a"), false)[..200].to_string(),
            String::new(),
        ];
        for xml in cases {
            parse(xml.as_bytes(), 2, b"d/", None).expect_err(&xml);
        }
        parse(b"\xff\xfe", 0, b"", None).expect_err("not UTF-8");
        assert!(matches!(parse(answer(&entry("d/a"), true).as_bytes(), 2, b"d/", Some(b"d/b")), Err(Malformed::Stuck)));
    }
}
