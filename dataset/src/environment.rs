//! Names of environment variables that several programs share.

/// The token that gives peers access to a dataset. It is passed along with the dataset's credentials.
pub const PEER_TOKEN: &str = "LARDER_PEER_TOKEN";

/// The owner of a tenant's credentials. A mount that is read with such credentials belongs to that owner alone. It is
/// passed along with the credentials.
pub const OWNER: &str = "LARDER_OWNER";
