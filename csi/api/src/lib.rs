//! The part of CSI 1.12 that the driver serves, generated. `tests/regenerate.rs` fails if the checked-in code differs
//! from what `proto/` generates.
//!
//! Invariant: the Debug form of a message that carries secrets is only its name, so no log line can contain a secret.

/// CSI, package `csi.v1`.
#[expect(
    clippy::doc_lazy_continuation,
    clippy::doc_overindented_list_items,
    reason = "generated code: the comments are those of the proto"
)]
#[path = "gen/csi.v1.rs"]
#[rustfmt::skip]
pub mod csi;

macro_rules! prints_its_name_alone {
    ($($message:ident)*) => {$(
        impl std::fmt::Debug for csi::$message {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.debug_struct(stringify!($message)).finish_non_exhaustive()
            }
        }
    )*};
}

prints_its_name_alone! {
    CreateVolumeRequest
    DeleteVolumeRequest
    NodePublishVolumeRequest
    ValidateVolumeCapabilitiesRequest
}

#[cfg(test)]
mod tests {
    use super::csi::NodePublishVolumeRequest;

    #[test]
    fn a_request_with_secrets_prints_none() {
        let request = NodePublishVolumeRequest {
            secrets: [("key".to_owned(), "hunter2".to_owned())].into(),
            ..NodePublishVolumeRequest::default()
        };
        assert_eq!(format!("{request:?}"), "NodePublishVolumeRequest { .. }");
    }
}
