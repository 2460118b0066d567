//! Keeps the generated code current: generates it again from `proto/` and fails if the checked-in code differs. With
//! `LARDER_WRITE_GOLDEN=1` it replaces the checked-in code.

use std::path::PathBuf;

#[test]
fn the_generated_code_is_current() {
    // Read at run time: a test binary may have been built in another clone.
    let here = PathBuf::from(std::env::var("CARGO_MANIFEST_DIR").unwrap());
    let out = tempfile::tempdir().unwrap();
    let proto = here.join("proto");
    // A message must not print a secret that it carries: `src/lib.rs` implements their Debug by hand.
    let builder = tonic_prost_build::configure().out_dir(out.path()).build_transport(false).skip_debug(WITH_SECRETS);
    builder.compile_protos(&[proto.join("csi.proto")], &[proto]).expect("protoc works (`make tools` installs it)");
    {
        let file = "csi.v1.rs";
        let made = std::fs::read_to_string(out.path().join(file)).unwrap();
        let kept = here.join("src/gen").join(file);
        if std::env::var_os("LARDER_WRITE_GOLDEN").is_some() {
            std::fs::write(&kept, &made).unwrap();
        }
        let same = std::fs::read_to_string(&kept).is_ok_and(|kept| kept == made);
        assert!(
            same,
            "{} differs from what proto/ generates: run this test with LARDER_WRITE_GOLDEN=1",
            kept.display()
        );
    }
}

/// Messages with a field that holds a secret.
const WITH_SECRETS: &[&str] = &[
    "csi.v1.ControllerExpandVolumeRequest",
    "csi.v1.ControllerModifyVolumeRequest",
    "csi.v1.ControllerPublishVolumeRequest",
    "csi.v1.ControllerUnpublishVolumeRequest",
    "csi.v1.CreateSnapshotRequest",
    "csi.v1.CreateVolumeGroupSnapshotRequest",
    "csi.v1.CreateVolumeRequest",
    "csi.v1.DeleteSnapshotRequest",
    "csi.v1.DeleteVolumeGroupSnapshotRequest",
    "csi.v1.DeleteVolumeRequest",
    "csi.v1.GetMetadataAllocatedRequest",
    "csi.v1.GetMetadataDeltaRequest",
    "csi.v1.GetSnapshotRequest",
    "csi.v1.GetVolumeGroupSnapshotRequest",
    "csi.v1.ListSnapshotsRequest",
    "csi.v1.NodeExpandVolumeRequest",
    "csi.v1.NodePublishVolumeRequest",
    "csi.v1.NodeStageVolumeRequest",
    "csi.v1.ValidateVolumeCapabilitiesRequest",
];
