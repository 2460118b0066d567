//! Names of environment variables that several programs share.

/// The token that gives peers access to a dataset. It travels with the credentials.
pub const PEER_TOKEN: &str = "LARDER_PEER_TOKEN";

/// Whose credentials they are, for those of a tenant: a mount that is read with them is that owner's alone. It travels
/// with them.
pub const OWNER: &str = "LARDER_OWNER";
