//! Names of environment variables that several programs agree on.

/// The token that opens a dataset to peers. It travels with the credentials.
pub const PEER_TOKEN: &str = "LARDER_PEER_TOKEN";
