//! Keeps the generated code current: generates it from `proto/` and fails if the checked-in code differs. With
//! `LARDER_WRITE_GOLDEN=1` it writes the code instead.

use std::path::PathBuf;

#[test]
fn the_generated_code_is_current() {
    // Read at run time, since the test binary may have been built in another clone.
    let here = PathBuf::from(std::env::var("CARGO_MANIFEST_DIR").unwrap());
    let out = tempfile::tempdir().unwrap();
    let proto = here.join("proto");
    // `Bytes` for every bytes field, so that decoding copies none.
    let builder = tonic_prost_build::configure().out_dir(out.path()).build_transport(false).bytes(".");
    let files = ["larder/cachenode/v1/cachenode.proto"].map(|file| proto.join(file));
    builder.compile_protos(&files, &[proto]).expect("protoc works (`make tools` installs it)");
    let file = "larder.cachenode.v1.rs";
    let made = std::fs::read_to_string(out.path().join(file)).unwrap();
    let kept = here.join("src/gen").join(file);
    if std::env::var_os("LARDER_WRITE_GOLDEN").is_some() {
        std::fs::write(&kept, &made).unwrap();
    }
    let same = std::fs::read_to_string(&kept).is_ok_and(|kept| kept == made);
    assert!(same, "{} differs from what proto/ generates: run this test with LARDER_WRITE_GOLDEN=1", kept.display());
}
