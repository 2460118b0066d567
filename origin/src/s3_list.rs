//! The ListObjectsV2 answer: its XML and its encoding, without any I/O.
//!
//! object_store's own listing gives up on the first key that cannot be one of its paths (`a//b`, `..`, a control
//! character), so one odd object would hide a whole bucket. Here every key comes out as the bytes it is. The
//! invariant: a page whose keys are not below the prefix or that does not move on is an error, never a listing.

use serde::Deserialize;

use crate::{Depth, Listed, Page, Version};

/// Keys asked for in one page; what S3 gives at most.
pub(crate) const PAGE_KEYS: u32 = 1000;

/// A page of 1,000 keys of 1,024 bytes each, all of them percent-encoded, has under 4 MiB.
pub(crate) const ANSWER_LIMIT: u64 = 32 << 20;

/// Why an answer is no listing.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Malformed {
    #[error("the listing is cut off")]
    Cut,
    #[error("the listing is no XML of ListObjectsV2")]
    Xml(#[source] quick_xml::DeError),
    #[error("the listing is not UTF-8")]
    Utf8(#[source] std::str::Utf8Error),
    #[error("the listing holds a key outside of the prefix asked for")]
    ForeignKey,
    #[error("the listing holds an entry without size or time")]
    Entry,
    #[error("the listing does not move on")]
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

/// A page, and the token to go on with where the store gave a truncated page with nothing in it.
#[derive(Debug)]
pub(crate) struct Parsed {
    pub(crate) page: Page,
    pub(crate) go_on: Option<String>,
}

/// What a page is asked for by; the pairs of the query string, not yet encoded.
pub(crate) fn query(
    prefix: &str,
    after: Option<&str>,
    token: Option<&str>,
    depth: Depth,
) -> Vec<(&'static str, String)> {
    // Control characters cannot be in XML 1.0 at all, so without the encoding such a key makes the answer unreadable.
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

/// Parses an answer. `strip` is the length of the origin's prefix, `prefix` is the whole one asked for, `after` the
/// key (with the origin's prefix) that the page was to start after.
pub(crate) fn parse(xml: &[u8], strip: usize, prefix: &[u8], after: Option<&[u8]>) -> Result<Parsed, Malformed> {
    let text = std::str::from_utf8(xml).map_err(Malformed::Utf8)?;
    if text.contains("<ListBucketResult") && !text.trim_end().ends_with("</ListBucketResult>") {
        return Err(Malformed::Cut);
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
        let version = version(entry.e_tag.as_deref(), mtime_ns, entry.size);
        page.files.push(Listed { key: relative(&key)?, size: entry.size, mtime_ns, version });
        last = last.max(Some(key));
    }
    for CommonPrefix { prefix } in result.common_prefixes {
        let mut key = decode(&prefix);
        let shown = relative(&key)?;
        // The page before ended inside of this one, see below.
        if after.is_some_and(|after| after.starts_with(&key)) {
            continue;
        }
        page.prefixes.push(shown);
        // Start after everything below it, else the next page would begin with the same prefix once more.
        key.extend_from_slice("\u{10FFFF}".as_bytes());
        last = last.max(Some(key));
    }
    page.files.sort_by(|a, b| a.key.cmp(&b.key));
    page.prefixes.sort();
    if !result.is_truncated {
        return Ok(Parsed { page, go_on: None });
    }
    match (last, result.next_continuation_token) {
        (Some(last), _) if after.is_none_or(|after| last.as_slice() > after) => {
            page.next = Some(last[strip..].to_vec());
            Ok(Parsed { page, go_on: None })
        }
        (None, Some(token)) if !token.is_empty() => Ok(Parsed { page, go_on: Some(token) }),
        _ => Err(Malformed::Stuck),
    }
}

/// What an object is bound to: its entity tag, or time and size where the store gives none.
pub(crate) fn version(e_tag: Option<&str>, mtime_ns: i64, size: u64) -> Version {
    e_tag.and_then(tagged).unwrap_or(Version::MtimeSize { mtime_ns, size })
}

/// The version that an entity tag stands for, if it is one. Some stores leave out the quotes in one place and send them
/// in another; Ceph ends an upload in parts with an empty tag.
pub(crate) fn tagged(e_tag: &str) -> Option<Version> {
    match e_tag.trim() {
        "" | "\"\"" => None,
        tag if tag.starts_with('"') || tag.starts_with("W/") => Some(Version::ETag(tag.to_string())),
        tag => Some(Version::ETag(format!("\"{tag}\""))),
    }
}

/// Undoes `encoding-type=url`: a space is `+` on Amazon and MinIO, `%20` on Ceph; a plus sign is `%2B` on all of them.
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
    fn entity_tags_without_quotes_get_them() {
        assert_eq!(version(Some("ab-2"), 0, 0), Version::ETag("\"ab-2\"".into()));
        assert_eq!(version(Some("W/\"x\""), 0, 0), Version::ETag("W/\"x\"".into()));
        assert_eq!(version(Some(""), 7, 9), Version::MtimeSize { mtime_ns: 7, size: 9 });
        assert_eq!(version(None, 7, 9), Version::MtimeSize { mtime_ns: 7, size: 9 });
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
        assert_eq!(parsed.go_on.as_deref(), Some("t"));
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
