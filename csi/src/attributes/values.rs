//! Checks of values that only volumes have. larder-dataset checks the values that describe a dataset.

use larder_dataset::mirrors::{MirrorSpec, check_mirrors};
use larder_dataset::written::{InvalidValue, VALUE_BYTES, namespace};

use crate::attributes::error::AttributeError;

impl From<InvalidValue> for AttributeError {
    fn from(InvalidValue { name, what }: InvalidValue) -> Self {
        Self::Value { name, what }
    }
}

/// The name of an entry in the datasets file: `NAME`, or `NAMESPACE/NAME` for a Dataset outside of `larder-system`.
pub(crate) fn entry_name(name: &str) -> Result<String, AttributeError> {
    let good = |part: &str| {
        let known = |byte: u8| byte.is_ascii_alphanumeric() || b"-._".contains(&byte);
        !part.is_empty() && part.bytes().all(known) && !part.starts_with('.')
    };
    let (namespace, entry) = name.split_once('/').map_or((None, name), |(namespace, entry)| (Some(namespace), entry));
    if name.len() > 128 || !good(entry) || !namespace.is_none_or(good) {
        let what = "must be a name of letters, digits, `-`, `_` and `.`, or NAMESPACE/NAME";
        return Err(AttributeError::value("dataset", what));
    }
    Ok(name.to_owned())
}

/// The value of `datasetNamespace`.
pub(super) fn dataset_namespace(name: &str) -> Result<String, AttributeError> {
    let what = "must be the name of one namespace";
    match namespace(name) {
        Ok(name) if name != "*" => Ok(name),
        Ok(_) | Err(_) => Err(AttributeError::value("datasetNamespace", what)),
    }
}

/// The value of `mirrors`, as JSON, for a dataset at `source`. An error does not repeat the text: it may have keys.
pub(super) fn mirrors(text: &str, source: Option<&str>) -> Result<Vec<MirrorSpec>, AttributeError> {
    let parsed: Vec<MirrorSpec> = serde_json::from_str(text).map_err(|error| {
        let what = "must be a JSON list of mirrors with name, source, endpoint, region, anonymous, near and cost";
        AttributeError::value("mirrors", format!("{what}; line {} column {}", error.line(), error.column()))
    })?;
    check_mirrors(source.unwrap_or_default(), &parsed)?;
    Ok(parsed)
}

/// The value of `owner`: a Kubernetes uid.
pub(super) fn checked_owner(owner: &str) -> Result<String, AttributeError> {
    let is_good = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-';
    if owner.is_empty() || owner.len() > 64 || !owner.bytes().all(is_good) {
        return Err(AttributeError::value("owner", "must be up to 64 letters, digits and `-`"));
    }
    Ok(owner.to_owned())
}

/// The value of `roleArn`.
pub(super) fn checked_role(arn: &str) -> Result<String, AttributeError> {
    let known = |byte: u8| byte.is_ascii_alphanumeric() || b":/+=,.@_-".contains(&byte);
    if arn.len() > VALUE_BYTES || !arn.starts_with("arn:") || !arn.contains(":role/") || !arn.bytes().all(known) {
        return Err(AttributeError::value("roleArn", "must be a role, such as arn:aws:iam::111122223333:role/NAME"));
    }
    Ok(arn.to_owned())
}

/// The value of `workloadIdentityProvider`, as an audience of Google's Security Token Service: the full name of a
/// provider, or for a cluster of GKE `identitynamespace:POOL:CLUSTER`.
pub(super) fn checked_provider(provider: &str) -> Result<String, AttributeError> {
    let refuse = || {
        let what = "must be a provider, such as \
                    projects/NUMBER/locations/global/workloadIdentityPools/POOL/providers/PROVIDER";
        Err(AttributeError::value("workloadIdentityProvider", what))
    };
    let known = |byte: u8| byte.is_ascii_alphanumeric() || b":/.-_".contains(&byte);
    if provider.len() > VALUE_BYTES || !provider.bytes().all(known) {
        return refuse();
    }
    if provider.strip_prefix("identitynamespace:").and_then(|rest| rest.split_once(':')).is_some() {
        return Ok(provider.to_owned());
    }
    let starts = ["https://iam.googleapis.com/", "//iam.googleapis.com/"];
    let name = starts.iter().find_map(|start| provider.strip_prefix(start)).unwrap_or(provider);
    match name.split('/').collect::<Vec<_>>()[..] {
        ["projects", project, "locations", location, "workloadIdentityPools", pool, "providers", provider]
            if [project, location, pool, provider].iter().all(|part| !part.is_empty()) =>
        {
            Ok(format!("//iam.googleapis.com/{name}"))
        }
        _ => refuse(),
    }
}

/// The value of `serviceAccount`, which becomes a part of a URL.
pub(super) fn checked_service_account(email: &str) -> Result<String, AttributeError> {
    let known = |byte: u8| byte.is_ascii_alphanumeric() || b".-_".contains(&byte);
    match email.split_once('@') {
        Some((name, domain))
            if email.len() <= VALUE_BYTES
                && [name, domain].iter().all(|part| !part.is_empty() && part.bytes().all(known)) =>
        {
            Ok(email.to_owned())
        }
        Some(_) | None => {
            let what = "must be the address of a Google service account, such as \
                        NAME@PROJECT.iam.gserviceaccount.com";
            Err(AttributeError::value("serviceAccount", what))
        }
    }
}

/// The value of `clientID` or `tenantID`, which become parts of a request.
pub(super) fn uuid(name: &'static str, value: &str) -> Result<String, AttributeError> {
    let known = |byte: u8| byte.is_ascii_hexdigit() || byte == b'-';
    if value.len() != 36 || !value.bytes().all(known) {
        return Err(AttributeError::value(name, "must be a UUID, such as 00000000-0000-0000-0000-000000000000"));
    }
    Ok(value.to_ascii_lowercase())
}

/// The value of `audience`.
pub(super) fn checked_audience(audience: &str) -> Result<String, AttributeError> {
    if audience.is_empty() || audience.len() > VALUE_BYTES || audience.chars().any(char::is_control) {
        return Err(AttributeError::value("audience", "must be an audience of spec.tokenRequests of the CSIDriver"));
    }
    Ok(audience.to_owned())
}
