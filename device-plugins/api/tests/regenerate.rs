//! Keeps the generated code current: generates it again from `proto/` and fails if the checked-in code differs. With
//! `LARDER_WRITE_GOLDEN=1` it replaces the checked-in code.

use std::path::PathBuf;

#[test]
fn the_generated_code_is_current() {
    // Read at run time: a test binary may have been built in another clone.
    let here = PathBuf::from(std::env::var("CARGO_MANIFEST_DIR").unwrap());
    let proto = here.join("proto");
    let (file, code) = ("nri.proto", "nri.pkg.api.v1alpha1.rs");
    {
        let out = tempfile::tempdir().unwrap();
        let builder = tonic_prost_build::configure()
            .out_dir(out.path())
            .build_transport(false)
            .build_client(false)
            .build_server(false);
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
