//! Names of environment variables that several programs share.

/// The token that gives peers access to a dataset. It travels with the credentials.
pub const PEER_TOKEN: &str = "LARDER_PEER_TOKEN";
