//! AWS signature version 4 for requests without a body, or with a body that other headers describe.
//!
//! object_store's own signer derives the day's key, formats two dates and parses the URL for each request. That took a
//! ninth of the CPU time of a cold read. Here everything that is valid for a second is derived once a second
//! ([`Stamp`]), and the canonical request is hashed piece by piece without building a string. All headers of the
//! request are signed.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use aws_lc_rs::{digest, hmac};
use http::header::AUTHORIZATION;
use http::{HeaderMap, HeaderValue, Request};
use object_store::aws::AwsCredential;

/// The header with the SHA-256 of the body, or with `UNSIGNED-PAYLOAD` if the signature does not cover it.
pub(super) const PAYLOAD_HASH: &str = "x-amz-content-sha256";

/// The SHA-256 of an empty body.
const NO_BODY: HeaderValue =
    HeaderValue::from_static("e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");

/// Why a request cannot be signed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Unsignable {
    #[error("the credentials contain characters that no header can have")]
    Credentials(#[from] http::header::InvalidHeaderValue),
    #[error("the machine's clock is before 1970")]
    Clock,
    #[error("the URL has no host")]
    Host,
}

/// Signs requests to one region.
pub(crate) struct Signer {
    region: String,
    requester_pays: bool,
    stamp: Mutex<Option<Arc<Stamp>>>,
}

/// The part of a signature that all requests of a second share.
struct Stamp {
    second: u64,
    credential: Arc<AwsCredential>,
    /// `20130524T000000Z`
    time: HeaderValue,
    /// `20130524/us-east-1/s3/aws4_request`
    scope: String,
    key: hmac::Key,
}

impl Stamp {
    fn new(second: u64, credential: &Arc<AwsCredential>, region: &str) -> Result<Self, Unsignable> {
        let time = i64::try_from(second).ok().and_then(|second| chrono::DateTime::from_timestamp(second, 0));
        let time = time.ok_or(Unsignable::Clock)?.format("%Y%m%dT%H%M%SZ").to_string();
        let date = &time[..8];
        let derived = |key: &[u8], text: &str| hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, key), text.as_bytes());
        let of_day = derived(format!("AWS4{}", credential.secret_key).as_bytes(), date);
        let of_service = derived(derived(of_day.as_ref(), region).as_ref(), "s3");
        let key = hmac::Key::new(hmac::HMAC_SHA256, derived(of_service.as_ref(), "aws4_request").as_ref());
        let scope = format!("{date}/{region}/s3/aws4_request");
        Ok(Self { second, credential: Arc::clone(credential), time: HeaderValue::try_from(time)?, scope, key })
    }
}

impl Signer {
    pub(crate) fn new(region: &str, requester_pays: bool) -> Self {
        Self { region: region.to_string(), requester_pays, stamp: Mutex::default() }
    }

    fn stamp(&self, credential: &Arc<AwsCredential>, now: SystemTime) -> Result<Arc<Stamp>, Unsignable> {
        let second = now.duration_since(UNIX_EPOCH).map_err(|_| Unsignable::Clock)?.as_secs();
        let mut stamp = self.stamp.lock().unwrap_or_else(PoisonError::into_inner);
        match &*stamp {
            Some(stamp) if stamp.second == second && Arc::ptr_eq(&stamp.credential, credential) => {
                Ok(Arc::clone(stamp))
            }
            _ => {
                let new = Arc::new(Stamp::new(second, credential, &self.region)?);
                *stamp = Some(Arc::clone(&new));
                Ok(new)
            }
        }
    }

    /// Adds the signature's headers. A request without [`PAYLOAD_HASH`] has no body. Path and query must be
    /// percent-encoded as signature version 4 requires.
    pub(crate) fn sign<B>(
        &self,
        request: &mut Request<B>,
        credential: &Arc<AwsCredential>,
        now: SystemTime,
    ) -> Result<(), Unsignable> {
        let stamp = self.stamp(credential, now)?;
        let headers = request.headers_mut();
        headers.insert("x-amz-date", stamp.time.clone());
        headers.entry(PAYLOAD_HASH).or_insert(NO_BODY);
        if self.requester_pays {
            headers.insert("x-amz-request-payer", HeaderValue::from_static("requester"));
        }
        if let Some(token) = &credential.token {
            let mut token = HeaderValue::try_from(token)?;
            token.set_sensitive(true);
            headers.insert("x-amz-security-token", token);
        }
        let names = signed_names(request.headers());
        let canonical = canonical(request, &names)?;

        let mut signing = hmac::Context::with_key(&stamp.key);
        for piece in [b"AWS4-HMAC-SHA256\n", stamp.time.as_bytes(), b"\n", stamp.scope.as_bytes(), b"\n"] {
            signing.update(piece);
        }
        let mut text = String::with_capacity(256);
        push_hex(&mut text, canonical.as_ref());
        signing.update(text.as_bytes());
        let signature = signing.sign();

        text.clear();
        for piece in ["AWS4-HMAC-SHA256 Credential=", &credential.key_id, "/", &stamp.scope, ", SignedHeaders="] {
            text.push_str(piece);
        }
        push_joined(&mut text, &names);
        text.push_str(", Signature=");
        push_hex(&mut text, signature.as_ref());
        let mut authorization = HeaderValue::try_from(text)?;
        authorization.set_sensitive(true);
        request.headers_mut().insert(AUTHORIZATION, authorization);
        Ok(())
    }
}

/// `host` and the request's own headers, sorted by name.
fn signed_names(headers: &HeaderMap) -> Vec<&str> {
    let mut names: Vec<_> = headers.keys().map(http::HeaderName::as_str).filter(|name| *name != "host").collect();
    names.push("host");
    names.sort_unstable();
    names
}

/// The hash of the canonical request.
fn canonical<B>(request: &Request<B>, names: &[&str]) -> Result<digest::Digest, Unsignable> {
    let mut hash = digest::Context::new(&digest::SHA256);
    let uri = request.uri();
    hash.update(request.method().as_str().as_bytes());
    hash.update(b"\n");
    hash.update(uri.path().as_bytes());
    hash.update(b"\n");
    if let Some(query) = uri.query() {
        let mut pairs: Vec<_> = query.split('&').collect();
        pairs.sort_unstable();
        let mut text = String::with_capacity(query.len());
        for (nth, pair) in pairs.into_iter().enumerate() {
            text.push_str(if nth == 0 { "" } else { "&" });
            text.push_str(pair);
        }
        hash.update(text.as_bytes());
    }
    hash.update(b"\n");
    for name in names {
        hash.update(name.as_bytes());
        hash.update(b":");
        let value = match *name {
            "host" => uri.authority().ok_or(Unsignable::Host)?.as_str().as_bytes(),
            _ => request.headers().get(*name).map_or(&b""[..], HeaderValue::as_bytes),
        };
        hash.update(value.trim_ascii());
        hash.update(b"\n");
    }
    let mut joined = String::with_capacity(128);
    push_joined(&mut joined, names);
    let payload = request.headers().get(PAYLOAD_HASH).map_or(&b""[..], HeaderValue::as_bytes);
    for piece in [b"\n", joined.as_bytes(), b"\n", payload] {
        hash.update(piece);
    }
    Ok(hash.finish())
}

fn push_joined(text: &mut String, names: &[&str]) {
    for (nth, name) in names.iter().enumerate() {
        text.push_str(if nth == 0 { "" } else { ";" });
        text.push_str(name);
    }
}

fn push_hex(text: &mut String, bytes: &[u8]) {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    for byte in bytes {
        text.push(char::from(DIGITS[usize::from(byte >> 4)]));
        text.push(char::from(DIGITS[usize::from(byte & 15)]));
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use object_store::aws::AwsAuthorizer;
    use object_store::client::HttpRequestBody;

    use super::*;

    /// The keys of Amazon's documentation ("Signature Calculations for the Authorization Header").
    fn keys() -> AwsCredential {
        AwsCredential {
            key_id: "AKIAIOSFODNN7EXAMPLE".into(),
            secret_key: "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY".into(),
            token: None,
        }
    }

    fn example() -> Arc<AwsCredential> {
        Arc::new(keys())
    }

    /// 2013-05-24T00:00:00Z
    fn then() -> SystemTime {
        UNIX_EPOCH + Duration::from_secs(1_369_353_600)
    }

    fn get(uri: &str) -> Request<HttpRequestBody> {
        Request::get(uri).body(HttpRequestBody::empty()).unwrap()
    }

    fn signature<B>(request: &Request<B>) -> &str {
        request.headers()[AUTHORIZATION].to_str().unwrap()
    }

    #[test]
    fn a_get_of_a_range_has_the_signature_of_the_documentation() {
        let mut request = get("https://examplebucket.s3.amazonaws.com/test.txt");
        request.headers_mut().insert(http::header::RANGE, HeaderValue::from_static("bytes=0-9"));
        Signer::new("us-east-1", false).sign(&mut request, &example(), then()).unwrap();
        assert_eq!(
            signature(&request),
            "AWS4-HMAC-SHA256 Credential=AKIAIOSFODNN7EXAMPLE/20130524/us-east-1/s3/aws4_request, \
             SignedHeaders=host;range;x-amz-content-sha256;x-amz-date, \
             Signature=f0e8bdb87c964420e857bd35b5d6ed310bd44f0170aba48dd91039c6036bdb41"
        );
    }

    #[test]
    fn a_listing_has_the_signature_of_the_documentation_in_whatever_order_its_query_is() {
        for query in ["max-keys=2&prefix=J", "prefix=J&max-keys=2"] {
            let mut request = get(&format!("https://examplebucket.s3.amazonaws.com/?{query}"));
            Signer::new("us-east-1", false).sign(&mut request, &example(), then()).unwrap();
            let expected = "Signature=34b48302e7b5fa45bde8084f4b7868a86f0a534bc59db6670ed5711ef69dc6f7";
            assert!(signature(&request).ends_with(expected), "{query}: {}", signature(&request));
        }
    }

    #[test]
    fn a_put_has_the_signature_of_the_documentation() {
        let mut request = Request::put("https://examplebucket.s3.amazonaws.com/test%24file.text").body(()).unwrap();
        for (name, value) in [
            ("date", "Fri, 24 May 2013 00:00:00 GMT"),
            ("x-amz-storage-class", "REDUCED_REDUNDANCY"),
            (PAYLOAD_HASH, "44ce7dd67c959e0d3524ffac1771dfbba87d2b6b4b4e99e42034a8b803f8b072"),
        ] {
            request.headers_mut().insert(name, HeaderValue::from_static(value));
        }
        Signer::new("us-east-1", false).sign(&mut request, &example(), then()).unwrap();
        assert_eq!(
            signature(&request),
            "AWS4-HMAC-SHA256 Credential=AKIAIOSFODNN7EXAMPLE/20130524/us-east-1/s3/aws4_request, \
             SignedHeaders=date;host;x-amz-content-sha256;x-amz-date;x-amz-storage-class, \
             Signature=98ad721746da40c64f1a55b78f14c238d841ea1380cd77a1b5971af0ece108bd"
        );
    }

    /// object_store signs by the machine's clock, so both signatures do here. The second may change between the two.
    #[test]
    fn odd_keys_tokens_and_payers_are_signed_as_object_store_signs_them() {
        let credential = Arc::new(AwsCredential { token: Some("a token".into()), ..keys() });
        for uri in [
            "http://127.0.0.1:9000/bucket/a%20b/%C3%A4%2B%3D%7E~.x//",
            "http://127.0.0.1:9000/bucket/?list-type=2&prefix=a%2Fb%20c&encoding-type=url&continuation-token=x%3D%3D",
        ] {
            let signer = Signer::new("eu-central-1", true);
            let same = (0..10).any(|_| {
                let mut ours = get(uri);
                ours.headers_mut().insert(http::header::IF_MATCH, HeaderValue::from_static("\"0123\""));
                let mut theirs = get(uri);
                theirs.headers_mut().insert(http::header::IF_MATCH, HeaderValue::from_static("\"0123\""));
                signer.sign(&mut ours, &credential, SystemTime::now()).unwrap();
                let authorizer = AwsAuthorizer::new(&credential, "s3", "eu-central-1").with_request_payer(true);
                authorizer.try_authorize(&mut theirs, None).unwrap();
                signature(&ours) == signature(&theirs)
            });
            assert!(same, "{uri}");
        }
    }

    #[test]
    fn new_credentials_and_a_new_day_are_signed_with_at_once() {
        let signer = Signer::new("us-east-1", false);
        let sign = |credential: &Arc<AwsCredential>, now| {
            let mut request = get("https://examplebucket.s3.amazonaws.com/test.txt");
            signer.sign(&mut request, credential, now).unwrap();
            signature(&request).to_string()
        };
        let day = Duration::from_secs(86_400);
        let (first, other) = (example(), Arc::new(AwsCredential { secret_key: "other".into(), ..keys() }));
        let all = [sign(&first, then()), sign(&other, then()), sign(&first, then() + day)];
        assert_eq!(all[0], sign(&first, then()));
        assert!(all[0] != all[1] && all[0] != all[2]);
        assert!(all[2].contains("/20130525/"));
    }

    #[test]
    fn what_cannot_be_a_header_is_refused_without_being_told() {
        let credential = Arc::new(AwsCredential { key_id: "a\nb".into(), ..keys() });
        let mut request = get("https://examplebucket.s3.amazonaws.com/test.txt");
        let error = Signer::new("us-east-1", false).sign(&mut request, &credential, then()).unwrap_err();
        assert!(matches!(error, Unsignable::Credentials(_)));
        assert!(!error.to_string().contains("a\nb"));
        assert!(!request.headers().contains_key(AUTHORIZATION));
    }
}
