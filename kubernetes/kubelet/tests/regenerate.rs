//! Keeps the generated code current: generates it again from `proto/` and fails if the checked-in code differs. With
//! `LARDER_WRITE_GOLDEN=1` it replaces the checked-in code.

use std::path::PathBuf;

/// The files, and the code that each becomes.
const FILES: [(&str, &str); 5] = [
    ("pluginregistration.proto", "pluginregistration.rs"),
    ("deviceplugin.proto", "v1beta1.rs"),
    ("podresources.proto", "v1.rs"),
    ("dra.proto", "k8s.io.kubelet.pkg.apis.dra.v1.rs"),
    ("dra-health.proto", "v1alpha1.rs"),
];

#[test]
fn the_generated_code_is_current() {
    // Read at run time: a test binary may have been built in another clone.
    let here = PathBuf::from(std::env::var("CARGO_MANIFEST_DIR").unwrap());
    let proto = here.join("proto");
    for (file, code) in FILES {
        let out = tempfile::tempdir().unwrap();
        let builder = tonic_prost_build::configure().out_dir(out.path()).build_transport(false);
        builder
            .compile_protos(&[proto.join(file)], std::slice::from_ref(&proto))
            .expect("protoc works (`make tools` installs it)");
        let made = std::fs::read_to_string(out.path().join(code)).unwrap();
        let kept = here.join("src/gen").join(code);
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
