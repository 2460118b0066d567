//! Names of environment variables that several programs share.

/// The token that gives peers access to a dataset. It is passed along with the dataset's credentials.
pub const PEER_TOKEN: &str = "LARDER_PEER_TOKEN";

/// The owner of a tenant's credentials. A mount that is read with such credentials belongs to that owner alone. It is
/// passed along with the credentials.
pub const OWNER: &str = "LARDER_OWNER";

/// The owner of whatever is read without credentials, which no tenant's is: those are uids of Datasets and hashes of
/// principals.
pub const ANONYMOUS: &str = "anonymous";

/// The token of a pod, which is exchanged for the keys of the principal that variables name: `AWS_ROLE_ARN`,
/// `GOOGLE_WORKLOAD_IDENTITY_PROVIDER`, or `AZURE_CLIENT_ID` with `AZURE_TENANT_ID`. It is passed along with the
/// credentials.
pub const IDENTITY_TOKEN: &str = "LARDER_IDENTITY_TOKEN";

/// The time at which that token expires, as the kubelet writes it (RFC 3339).
pub const IDENTITY_EXPIRES: &str = "LARDER_IDENTITY_EXPIRES";

/// The beginnings of the names of variables by which clouds' programs find credentials and servers.
const ORIGIN_PREFIXES: [&str; 3] = ["AWS_", "GOOGLE_", "AZURE_"];

/// True for a variable that gives access to origins or to blocks of peers.
pub fn is_of_origins(name: &str) -> bool {
    name == PEER_TOKEN || ORIGIN_PREFIXES.iter().any(|prefix| name.starts_with(prefix))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variables_of_the_clouds_and_the_token_give_access() {
        for name in ["AWS_ACCESS_KEY_ID", "GOOGLE_SERVICE_ACCOUNT_KEY", "AZURE_STORAGE_SAS_TOKEN", PEER_TOKEN] {
            assert!(is_of_origins(name), "{name}");
        }
        for name in ["HOME", "PATH", "HTTPS_PROXY", "LARDER_LOG", "AWS", ""] {
            assert!(!is_of_origins(name), "{name}");
        }
    }
}
