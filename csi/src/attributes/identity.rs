//! The identity that reads a volume, and the attributes that describe it.

use std::collections::HashMap;

use larder_dataset::DatasetSpec;
use larder_dataset::written::sts_endpoint;

use crate::attributes::error::AttributeError;
use crate::attributes::values::{checked_audience, checked_provider, checked_role, checked_service_account, uuid};

/// The attributes that name the principals of a kind of store.
struct Names {
    /// The prefix of the store's URLs.
    store: &'static str,
    all: &'static [&'static str],
    /// The required ones as text for error messages.
    words: &'static str,
}

const PRINCIPALS: [Names; 3] = [
    Names { store: "s3://", all: &["roleArn"], words: "`roleArn`" },
    Names { store: "gs://", all: &["workloadIdentityProvider", "serviceAccount"], words: "`workloadIdentityProvider`" },
    Names { store: "az://", all: &["clientID", "tenantID"], words: "`clientID` and `tenantID`" },
];

/// The identity that reads a volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Identity {
    /// That of the volume's Secret, or larderd's own if there is none.
    Any,
    /// That of the volume's Secret, and never larderd's own.
    Secret,
    /// The pod's own.
    Pod(PodIdentity),
}

/// The identity of a pod at an object store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodIdentity {
    pub principal: Principal,
    /// The server that exchanges tokens; `None` for that of the origin or of its cloud.
    pub sts_endpoint: Option<String>,
    /// The audience of the token; `None` for the one that the cloud expects.
    pub audience: Option<String>,
}

/// The principal whose keys the token of a pod is exchanged for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Principal {
    /// A role of AWS, MinIO or Ceph.
    Role(String),
    /// Of Google: the full name of the workload identity provider. The principal is a service account, or else the one
    /// that the token names.
    Google { provider: String, service_account: Option<String> },
    /// Of Azure: an application or a managed identity of a tenant.
    Azure { client: String, tenant: String },
}

impl Principal {
    /// The first attribute that names it.
    fn first_name(&self) -> &'static str {
        match self {
            Self::Role(_) => "roleArn",
            Self::Google { .. } => "workloadIdentityProvider",
            Self::Azure { .. } => "clientID",
        }
    }

    fn parse(context: &HashMap<String, String>) -> Result<Self, AttributeError> {
        let get = |name: &str| context.get(name).map(String::as_str);
        let required = |name| {
            get(name).ok_or_else(|| AttributeError::value(name, "is missing: it is a part of the pod's identity"))
        };
        let mut given =
            PRINCIPALS.iter().filter_map(|names| names.all.iter().copied().find(|name| context.contains_key(*name)));
        match (given.next(), given.next()) {
            (None, _) => Err(AttributeError::value(
                "identity",
                "is `pod`, but no attribute names the identity: for s3:// set `roleArn`, for gs:// \
                 `workloadIdentityProvider`, for az:// `clientID` and `tenantID`",
            )),
            (Some(one), Some(other)) => Err(AttributeError::value(
                other,
                format!("cannot be combined with `{one}`: they name identities of different clouds"),
            )),
            (Some("roleArn"), None) => Ok(Self::Role(checked_role(required("roleArn")?)?)),
            (Some("clientID" | "tenantID"), None) => Ok(Self::Azure {
                client: uuid("clientID", required("clientID")?)?,
                tenant: uuid("tenantID", required("tenantID")?)?,
            }),
            (Some(_), None) => Ok(Self::Google {
                provider: checked_provider(required("workloadIdentityProvider")?)?,
                service_account: get("serviceAccount").map(checked_service_account).transpose()?,
            }),
        }
    }
}

impl Identity {
    /// Parses the attributes of an identity, and checks that no volume without a pod's identity has them.
    pub(super) fn parse(context: &HashMap<String, String>, inline: bool) -> Result<Self, AttributeError> {
        let get = |name: &str| context.get(name);
        let identity = match get("identity").map(String::as_str) {
            None => Self::Any,
            Some("secret") if !inline => Self::Secret,
            Some("pod") => {
                return Ok(Self::Pod(PodIdentity {
                    principal: Principal::parse(context)?,
                    sts_endpoint: get("stsEndpoint").map(|url| sts_endpoint(url).map(|()| url.clone())).transpose()?,
                    audience: get("audience").map(|audience| checked_audience(audience)).transpose()?,
                }));
            }
            Some(_) if inline => return Err(AttributeError::value("identity", "must be `pod` if it is set")),
            Some(_) => return Err(AttributeError::value("identity", "must be `secret` or `pod` if it is set")),
        };
        let of_principals = PRINCIPALS.iter().flat_map(|names| names.all.iter().copied());
        match of_principals.chain(["stsEndpoint", "audience"]).find(|name| context.contains_key(*name)) {
            Some(name) => Err(AttributeError::value(name, "belongs to `identity: pod`")),
            None => Ok(identity),
        }
    }
}

impl PodIdentity {
    /// Checks that a dataset can be read with this identity.
    pub(crate) fn check(&self, spec: &DatasetSpec, has_secret: bool) -> Result<(), AttributeError> {
        let refuse = |what: &str| Err(AttributeError::value("identity", format!("is `pod`, {what}")));
        let name = self.principal.first_name();
        match PRINCIPALS.iter().find(|names| spec.source.starts_with(names.store)) {
            None => refuse("which only s3://, gs:// and az:// origins know"),
            Some(wanted) if !wanted.all.contains(&name) => Err(AttributeError::value(
                name,
                format!("names no identity of {} origins: set {} instead", wanted.store, wanted.words),
            )),
            Some(_) if spec.anonymous => refuse("and `anonymous` sends no identity: remove one of them"),
            Some(_) if has_secret => refuse("and the volume has a Secret: remove nodePublishSecretRef"),
            // No Secret names the account.
            Some(Names { store: "az://", .. }) if spec.endpoint.is_none() => refuse(
                "and the origin has no `endpoint`: set that of the storage account, \
                 https://ACCOUNT.blob.core.windows.net",
            ),
            Some(_) => Ok(()),
        }
    }
}
