//! Rights that only the administrator's Datasets have: larderd's own identity, folders, and endpoints that are not
//! listed.
//!
//! An admission policy rejects their use by other Datasets at apply. The controller calls [`check`] as well, since
//! policies can be removed and lists change. Without these checks, any user who can create a Dataset could read
//! everything that larderd can read, or make it send requests to any server.

use crate::checked::InvalidField;
use crate::dataset::{DatasetSpec, Mirror};
use crate::names::{DatasetKey, SYSTEM_NAMESPACE};

/// The S3 servers that any Dataset may name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Endpoints(Vec<String>);

impl Endpoints {
    /// The servers that the administrator lists in the LarderSettings.
    pub fn new(listed: Vec<String>) -> Self {
        Self(listed)
    }

    fn allow(&self, endpoint: &str) -> bool {
        self.0.iter().any(|listed| listed == endpoint)
    }
}

/// Checks that a Dataset uses no right that only the administrator's Datasets have, and that its name fits into a
/// label. Errors: the first field that is not allowed.
pub fn check(key: &DatasetKey, spec: &DatasetSpec, endpoints: &Endpoints) -> Result<(), InvalidField> {
    if let Err(error) = key.node_label() {
        let what = error.to_string();
        return Err(InvalidField::new("metadata.name", what.trim_start_matches("metadata.name ").to_owned()));
    }
    if key.namespace == SYSTEM_NAMESPACE {
        return Ok(());
    }
    let origin = &spec.origin;
    let folder = |url: &str| url.starts_with("file://");
    let only_ours = format!("is for Datasets of the namespace {SYSTEM_NAMESPACE} only");
    let are_only_ours = format!("are for Datasets of the namespace {SYSTEM_NAMESPACE} only");
    if folder(&origin.source) {
        return Err(InvalidField::new("spec.origin.source", format!("names a folder (file://), which {only_ours}")));
    }
    if spec.manifest.as_deref().is_some_and(folder) {
        return Err(InvalidField::new("spec.manifest", format!("names a folder (file://), which {only_ours}")));
    }
    if origin.secret_ref.is_none() && !origin.anonymous {
        let what = format!(
            "is missing: name a Secret, or set spec.origin.anonymous; reading with larderd's own identity {only_ours}"
        );
        return Err(InvalidField::new("spec.origin.secretRef", what));
    }
    let not_listed = "is not listed; ask the administrator to add it to spec.endpoints of the LarderSettings larder";
    if origin.endpoint.as_ref().is_some_and(|endpoint| !endpoints.allow(endpoint)) {
        return Err(InvalidField::new("spec.origin.endpoint", not_listed));
    }
    // With a Secret, what is cached belongs to the Dataset alone: a mirror with other bytes harms nobody else.
    if !spec.mirrors.is_empty() && origin.secret_ref.is_none() {
        let what = format!("needs spec.origin.secretRef; mirrors of what is read without a Secret {are_only_ours}");
        return Err(InvalidField::new("spec.mirrors", what));
    }
    let named = |mirror: &Mirror| mirror.origin.endpoint.as_ref().is_some_and(|endpoint| !endpoints.allow(endpoint));
    match spec.mirrors.iter().position(named) {
        Some(nth) => Err(InvalidField::new(format!("spec.mirrors[{nth}].origin.endpoint"), not_listed)),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dataset::{Origin, SecretRef};

    fn check_of(namespace: &str, origin: Origin) -> Result<(), InvalidField> {
        let spec = DatasetSpec { origin, ..DatasetSpec::default() };
        check(
            &DatasetKey::new(namespace, "d"),
            &spec,
            &Endpoints::new(["http://listed:9000", "https://other"].map(str::to_owned).into()),
        )
    }

    #[test]
    fn only_the_administrators_datasets_have_larderds_rights() {
        let secret = Some(SecretRef { name: "s".into() });
        let of = |source: &str| Origin { source: source.into(), ..Origin::default() };
        let with =
            |endpoint: &str| Origin { endpoint: Some(endpoint.into()), secret_ref: secret.clone(), ..of("s3://b") };
        for (field, origin) in [
            ("spec.origin.secretRef", of("s3://b")),
            ("spec.origin.source", of("file:///data")),
            ("spec.origin.endpoint", with("http://elsewhere")),
            ("spec.origin.endpoint", with("http://listed:9000/")),
        ] {
            assert_eq!(check_of("team-a", origin.clone()).unwrap_err().field, field);
            assert_eq!(check_of(SYSTEM_NAMESPACE, origin), Ok(()));
        }
        for origin in [
            with("http://listed:9000"),
            with("https://other"),
            Origin { secret_ref: secret.clone(), ..of("s3://b") },
            Origin { anonymous: true, ..of("s3://b") },
        ] {
            assert_eq!(check_of("team-a", origin), Ok(()));
        }
    }

    #[test]
    fn mirrors_need_a_secret_and_listed_servers() {
        let mirror = |endpoint: Option<&str>| {
            let origin = crate::dataset::MirrorOrigin {
                source: "s3://copy".into(),
                endpoint: endpoint.map(str::to_owned),
                ..Default::default()
            };
            Mirror { name: "eu".into(), origin, ..Mirror::default() }
        };
        let secret_ref = Some(SecretRef { name: "s".into() });
        let with_secret = Origin { source: "s3://b".into(), secret_ref, ..Origin::default() };
        let anonymous = Origin { source: "s3://b".into(), anonymous: true, ..Origin::default() };
        let check_in = |namespace: &str, origin: &Origin, mirrors: Vec<Mirror>| {
            let spec = DatasetSpec { origin: origin.clone(), mirrors, ..DatasetSpec::default() };
            check(&DatasetKey::new(namespace, "d"), &spec, &Endpoints::new(vec!["http://listed:9000".into()]))
        };
        assert_eq!(check_in("team-a", &with_secret, vec![mirror(None), mirror(Some("http://listed:9000"))]), Ok(()));
        let error = check_in("team-a", &anonymous, vec![mirror(None)]).unwrap_err();
        assert_eq!(error.field, "spec.mirrors");
        let error = check_in("team-a", &with_secret, vec![mirror(None), mirror(Some("http://other"))]).unwrap_err();
        assert_eq!(error.field, "spec.mirrors[1].origin.endpoint");
        assert_eq!(check_in(SYSTEM_NAMESPACE, &anonymous, vec![mirror(Some("http://other"))]), Ok(()));
    }

    #[test]
    fn a_manifest_in_a_folder_is_the_administrators_too() {
        let spec = DatasetSpec {
            origin: Origin { source: "s3://b".into(), anonymous: true, ..Origin::default() },
            manifest: Some("file:///etc/shadow".into()),
            ..DatasetSpec::default()
        };
        let check_in = |namespace| check(&DatasetKey::new(namespace, "d"), &spec, &Endpoints::default());
        assert_eq!(check_in("team-a").unwrap_err().field, "spec.manifest");
        assert_eq!(check_in(SYSTEM_NAMESPACE), Ok(()));
    }

    #[test]
    fn a_name_that_fits_into_no_label_is_refused() {
        let key = DatasetKey::new("team-a", "n".repeat(57));
        let spec = DatasetSpec::default();
        let error = check(&key, &spec, &Endpoints::default()).unwrap_err();
        assert_eq!(error.field, "metadata.name");
        assert!(error.to_string().contains("63 characters together"), "{error}");
    }
}
