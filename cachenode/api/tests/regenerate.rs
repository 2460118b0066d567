//! Keeps the generated code current: makes it anew from `proto/`, and fails if what is checked in differs. With
//! `LARDER_WRITE_GOLDEN=1` it writes it.

use std::path::PathBuf;

#[test]
fn the_generated_code_is_current() {
    // At run time: a test binary may have been built in another clone.
    let here = PathBuf::from(std::env::var("CARGO_MANIFEST_DIR").unwrap());
    let out = tempfile::tempdir().unwrap();
    let proto = here.join("proto");
    // Blocks are handed on as they came, never copied into vectors.
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
    assert!(same, "{} is not what proto/ makes: run this test with LARDER_WRITE_GOLDEN=1", kept.display());
}
