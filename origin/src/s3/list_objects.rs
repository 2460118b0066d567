//! The ListObjectsV2 request and answer: query, XML and encoding, without any I/O.
//!
//! object_store's own listing fails on the first key that is not a valid path to it (`a//b`, `..`, a control
//! character), so a single such object would hide a whole bucket. This module returns every key byte for byte. The
//! invariant: a page that makes no progress, or whose keys are out of order or not below the prefix, is an error and
//! never a listing.

use quick_xml::Reader;
use quick_xml::escape::resolve_predefined_entity;
use quick_xml::events::Event;

use crate::listing::{Depth, ObjectInfo, Page};
use crate::version::Version;

/// The number of keys requested per page, which is the most that S3 returns.
pub(crate) const PAGE_KEYS: u32 = 1000;

/// The limit for an answer. A page of 1,000 keys of 1,024 bytes, fully percent-encoded, is smaller than 4 MiB.
pub(crate) const ANSWER_LIMIT: u64 = 32 << 20;

/// Why an answer is not a listing.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Malformed {
    #[error("the listing is incomplete")]
    Incomplete,
    #[error("the listing is not ListObjectsV2 XML")]
    Xml(#[source] quick_xml::Error),
    #[error("the listing is not ListObjectsV2 XML")]
    NoListing,
    #[error("the listing is not UTF-8")]
    Utf8(#[source] std::str::Utf8Error),
    #[error("the listing contains a key outside the requested prefix")]
    ForeignKey,
    #[error("the listing contains an entry without size or time")]
    Entry,
    #[error("the listing makes no progress")]
    Stuck,
    #[error("the listing has keys out of order")]
    Order,
    #[error("the listing has a key twice")]
    Twice,
    #[error("the listing has keys before the one to begin after")]
    Before,
}

/// An object in an answer, with its values still as text.
#[derive(Debug, Default)]
struct Contents {
    key: Option<String>,
    size: Option<u64>,
    mtime_ns: Option<i64>,
    e_tag: Option<String>,
}

/// The root element of an answer.
#[derive(Debug, Default)]
struct ListBucketResult {
    contents: Vec<Contents>,
    common_prefixes: Vec<String>,
    encoding_type: Option<String>,
    next_continuation_token: Option<String>,
    is_truncated: Option<bool>,
}

impl ListBucketResult {
    /// Parses an answer element by element. Its speed matters: an import of a large bucket spends most of its time
    /// here.
    fn read(text: &str) -> Result<Self, Malformed> {
        let mut result = Self::default();
        let mut reader = Reader::from_str(text);
        let (mut depth, mut section) = (0_u32, Section::Other);
        // The text of the innermost element. The parser may return it in several pieces.
        let mut value = String::new();
        let encoding = |error| Malformed::Xml(quick_xml::Error::from(error));
        loop {
            match reader.read_event().map_err(Malformed::Xml)? {
                Event::Start(start) => {
                    depth += 1;
                    let name = start.local_name();
                    match depth {
                        1 if name.as_ref() != b"ListBucketResult" => return Err(Malformed::NoListing),
                        2 => section = result.begin(name.as_ref()),
                        _ => {}
                    }
                    value.clear();
                }
                Event::Text(piece) => value.push_str(&piece.decode().map_err(encoding)?),
                Event::CData(piece) => value.push_str(&piece.decode().map_err(encoding)?),
                Event::GeneralRef(entity) => match entity.resolve_char_ref().map_err(Malformed::Xml)? {
                    Some(character) => value.push(character),
                    None => {
                        let name = entity.decode().map_err(encoding)?;
                        value.push_str(resolve_predefined_entity(&name).ok_or(Malformed::NoListing)?);
                    }
                },
                Event::End(end) => {
                    match depth {
                        3 => result.end_in(section, end.local_name().as_ref(), &value)?,
                        2 => result.end(end.local_name().as_ref(), &value)?,
                        _ => {}
                    }
                    depth = depth.saturating_sub(1);
                    value.clear();
                }
                Event::Eof if depth == 0 && result.is_truncated.is_some() => return Ok(result),
                Event::Eof => return Err(Malformed::NoListing),
                Event::Empty(_) | Event::Comment(_) | Event::Decl(_) | Event::PI(_) | Event::DocType(_) => {}
            }
        }
    }

    fn begin(&mut self, name: &[u8]) -> Section {
        match name {
            b"Contents" => {
                self.contents.push(Contents::default());
                Section::Contents
            }
            b"CommonPrefixes" => Section::CommonPrefixes,
            _ => Section::Other,
        }
    }

    /// Handles the end of an element directly below the root.
    fn end(&mut self, name: &[u8], value: &str) -> Result<(), Malformed> {
        match name {
            b"EncodingType" => self.encoding_type = Some(value.to_owned()),
            b"NextContinuationToken" => self.next_continuation_token = Some(value.to_owned()),
            b"IsTruncated" => self.is_truncated = Some(value.trim().parse().map_err(|_| Malformed::NoListing)?),
            _ => {}
        }
        Ok(())
    }

    /// Handles the end of an element within a section.
    fn end_in(&mut self, section: Section, name: &[u8], value: &str) -> Result<(), Malformed> {
        match (section, name, self.contents.last_mut()) {
            (Section::CommonPrefixes, b"Prefix", _) => self.common_prefixes.push(value.to_owned()),
            (Section::Contents, b"Key", Some(entry)) => entry.key = Some(value.to_owned()),
            (Section::Contents, b"Size", Some(entry)) => {
                entry.size = Some(value.trim().parse().map_err(|_| Malformed::Entry)?);
            }
            (Section::Contents, b"LastModified", Some(entry)) => {
                let time = chrono::DateTime::parse_from_rfc3339(value.trim()).map_err(|_| Malformed::Entry)?;
                entry.mtime_ns = Some(time.timestamp_nanos_opt().ok_or(Malformed::Entry)?);
            }
            (Section::Contents, b"ETag", Some(entry)) => entry.e_tag = Some(value.to_owned()),
            _ => {}
        }
        Ok(())
    }
}

/// An element that has child elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Section {
    Contents,
    CommonPrefixes,
    Other,
}

/// A page. If the store returned a truncated page without entries, also the token to continue with.
#[derive(Debug)]
pub(crate) struct Parsed {
    pub(crate) page: Page,
    pub(crate) continuation: Option<String>,
}

/// The query of a request for one page, as pairs that are not percent-encoded yet.
pub(crate) fn query(
    prefix: &str,
    after: Option<&str>,
    token: Option<&str>,
    depth: Depth,
) -> Vec<(&'static str, String)> {
    // XML 1.0 cannot contain control characters. Without this encoding, a key with one would make the answer
    // unparsable.
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
/// key (with the origin's prefix) after which the page should start.
pub(crate) fn parse(xml: &[u8], strip: usize, prefix: &[u8], after: Option<&[u8]>) -> Result<Parsed, Malformed> {
    let text = std::str::from_utf8(xml).map_err(Malformed::Utf8)?;
    if text.contains("<ListBucketResult") && !text.trim_end().ends_with("</ListBucketResult>") {
        return Err(Malformed::Incomplete);
    }
    let result = ListBucketResult::read(text)?;
    let encoded = result.encoding_type.as_deref().is_some_and(|kind| kind.eq_ignore_ascii_case("url"));
    let decode = |key: &str| if encoded { decoded(key) } else { key.as_bytes().to_vec() };
    let relative = |key: &[u8]| key.starts_with(prefix).then(|| key[strip..].to_vec()).ok_or(Malformed::ForeignKey);

    let mut page = Page::default();
    let mut last: Option<Vec<u8>> = None;
    for entry in result.contents {
        let (Some(key), Some(size), Some(mtime_ns)) = (entry.key, entry.size, entry.mtime_ns) else {
            return Err(Malformed::Entry);
        };
        let key = decode(&key);
        let version = Version::from_etag_or_mtime(entry.e_tag.as_deref(), mtime_ns, size);
        page.files.push(ObjectInfo { key: relative(&key)?, size, mtime_ns, version });
        // The next page starts after the last key, so a key that is out of order would be lost.
        match &last {
            None if after.is_some_and(|after| key.as_slice() <= after) => return Err(Malformed::Before),
            Some(last) if key == *last => return Err(Malformed::Twice),
            Some(last) if key < *last => return Err(Malformed::Order),
            Some(_) | None => last = Some(key),
        }
    }
    for prefix in result.common_prefixes {
        let mut key = decode(&prefix);
        let shown = relative(&key)?;
        // The previous page ended inside this prefix; see below.
        if after.is_some_and(|after| after.starts_with(&key)) {
            continue;
        }
        page.prefixes.push(shown);
        // The next page must start after everything below this prefix; otherwise it would start with the same prefix
        // again.
        key.extend_from_slice("\u{10FFFF}".as_bytes());
        last = last.max(Some(key));
    }
    page.prefixes.sort();
    if result.is_truncated != Some(true) {
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

/// Decodes `encoding-type=url`. A space is `+` on Amazon and MinIO, and `%20` on Ceph; a plus sign is `%2B` on all of
/// them.
fn decoded(key: &str) -> Vec<u8> {
    if !key.contains(['+', '%']) {
        return key.as_bytes().to_vec();
    }
    let spaced = key.replace('+', " ");
    percent_encoding::percent_decode_str(&spaced).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(inner: &str, truncated: bool) -> String {
        format!(
            "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\
             <ListBucketResult xmlns=\"http://s3.amazonaws.com/doc/2006-03-01/\">\
             <Name>b</Name><Prefix>d/</Prefix>\
             <KeyCount>1</KeyCount><MaxKeys>1000</MaxKeys><EncodingType>url</EncodingType>\
             <IsTruncated>{truncated}</IsTruncated>{inner}</ListBucketResult>"
        )
    }

    fn entry(key: &str) -> String {
        format!(
            "<Contents><Key>{key}</Key>\
             <LastModified>2009-10-12T17:50:30.000Z</LastModified><ETag>&quot;fba9&quot;</ETag>\
             <Size>434234</Size><StorageClass>STANDARD</StorageClass></Contents>"
        )
    }

    fn keys(page: &Page) -> Vec<&[u8]> {
        page.files.iter().map(|file| file.key.as_slice()).collect()
    }

    #[test]
    fn every_key_comes_out_as_the_bytes_it_is() {
        let xml =
            answer(&["d/", "d/..", "d//x", "d/a%01%0A", "d/a+b%2Bc", "d/%E2%82%AC%25"].map(entry).concat(), false);
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

    // SEMANTICS: I7
    #[test]
    fn keys_out_of_order_twice_or_from_before_are_errors() {
        let listing = |keys: &[&str]| answer(&keys.iter().map(|key| entry(key)).collect::<String>(), false);
        let parse = |keys: &[&str]| parse(listing(keys).as_bytes(), 2, b"d/", Some(b"d/m"));
        parse(&["d/n", "d/o"]).expect("a page");
        assert!(matches!(parse(&["d/n", "d/p", "d/o"]), Err(Malformed::Order)));
        assert!(matches!(parse(&["d/n", "d/n"]), Err(Malformed::Twice)));
        assert!(matches!(parse(&["d/m", "d/n"]), Err(Malformed::Before)));
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
        assert!(matches!(parse(answer("", true).as_bytes(), 2, b"d/", Some(b"d/b")), Err(Malformed::Stuck)));
    }
}
