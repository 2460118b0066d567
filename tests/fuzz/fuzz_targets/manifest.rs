//! Opens bytes as a manifest, as they are and with their checksums corrected, and makes every call that a mount makes.
//!
//! Invariant under test: for any bytes, the answer is an error or a row, never a panic, a loop or a read outside the
//! file; and a manifest that verifies answers every call.
#![no_main]

use larder_dataset::{BlockIndex, DirIndex, Entry, FileIndex, LinkIndex, Manifest, ManifestError};
use libfuzzer_sys::fuzz_target;

/// Where the header holds the offset of the chunk CRCs; see the layout of a manifest in `larder-dataset`. With links,
/// it is one entry of the table further.
const CHUNK_CRCS_OFFSET: usize = 80 + 6 * 16;
const VERSION: usize = 8;
const CHUNKS_CRC: usize = 248;
const HEADER_CRC: usize = 252;
const HEADER_BYTES: usize = 256;
const CHUNK_BYTES: usize = 64 << 10;
/// How many rows of each kind are read; the others are alike.
const ROWS: u32 = 64;

fuzz_target!(|data: &[u8]| {
    walk(data);
    if let Some(sealed) = reseal(data.to_vec()) {
        walk(&sealed);
    }
});

fn walk(bytes: &[u8]) {
    let Ok(manifest) = Manifest::open(bytes) else { return };
    let sound = manifest.verify().is_ok();
    let answers = ask(&manifest);
    assert!(!sound || answers.is_ok(), "verified, and then {answers:?}");
}

/// Returns the first error; a manifest that verifies gives none.
fn ask(manifest: &Manifest<&[u8]>) -> Result<(), ManifestError> {
    let totals = manifest.totals();
    let mut first_error = Ok(());
    let mut note = |answer: Result<(), ManifestError>| first_error = first_error.clone().and(answer);
    note(manifest.name_and_origin().map(drop));
    for index in (0..totals.dirs).take(ROWS as usize) {
        note(ask_dir(manifest, DirIndex(index)));
    }
    for index in (0..totals.files).take(ROWS as usize) {
        note(ask_file(manifest, FileIndex(index)));
    }
    for index in (0..totals.blocks).take(ROWS as usize) {
        note(manifest.file_of_block(BlockIndex(index)).map(drop));
        note(manifest.block_crc(BlockIndex(index)).map(drop));
    }
    for index in (0..totals.packs).take(ROWS as usize) {
        note(manifest.pack(index).map(drop));
    }
    for index in (0..totals.links).take(ROWS as usize) {
        note(ask_link(manifest, LinkIndex(index)));
    }
    // A missing row is an error.
    let _ = manifest.link(LinkIndex(totals.links));
    let _ = manifest.file(FileIndex(totals.files));
    let _ = manifest.dir(DirIndex(totals.dirs));
    let _ = manifest.pack(totals.packs);
    let _ = manifest.file_of_block(BlockIndex(totals.blocks));
    first_error
}

fn ask_dir(manifest: &Manifest<&[u8]>, index: DirIndex) -> Result<(), ManifestError> {
    let dir = manifest.dir(index)?;
    manifest.dir_path(index, &mut Vec::new())?;
    manifest.lookup(&dir, b"a")?;
    manifest.lookup(&dir, &[0xff; 300])?;
    for child in (dir.first_dir..dir.first_dir + dir.dir_count).take(4) {
        manifest.dir(DirIndex(child))?;
    }
    Ok(())
}

fn ask_file(manifest: &Manifest<&[u8]>, index: FileIndex) -> Result<(), ManifestError> {
    let file = manifest.file(index)?;
    let path = manifest.file_path(&file)?;
    match manifest.resolve(&path)? {
        Some(Entry::File(_) | Entry::Dir(_) | Entry::Link(_)) | None => {}
    }
    manifest.version(&file)?;
    manifest.file_crc(&file)?;
    // A file beyond its pack is found here, not by `verify`.
    let _ = manifest.locate(&file, 0..file.size);
    let _ = manifest.locate(&file, 1..u64::MAX);
    let asked: u64 = file.parts(3, 20 << 20).map(|part| u64::from(part.len)).sum();
    assert_eq!(asked, file.size.saturating_sub(3).min(20 << 20));
    Ok(())
}

fn ask_link(manifest: &Manifest<&[u8]>, index: LinkIndex) -> Result<(), ManifestError> {
    let link = manifest.link(index)?;
    manifest.links_of(link.dir)?;
    manifest.link_text(&link)?;
    Ok(())
}

/// Corrects the CRCs, so that the rows themselves are tested; `None` if the bytes are too few for them.
fn reseal(mut bytes: Vec<u8>) -> Option<Vec<u8>> {
    let offset = CHUNK_CRCS_OFFSET + if bytes.get(VERSION) == Some(&2) { 16 } else { 0 };
    let at = bytes.get(offset..offset + 8)?;
    let crcs_at = usize::try_from(u64::from_le_bytes(at.try_into().ok()?)).ok()?.min(bytes.len());
    if bytes.len() < HEADER_BYTES {
        return None;
    }
    for chunk in 0..crcs_at.div_ceil(CHUNK_BYTES) {
        let body = bytes.get((chunk * CHUNK_BYTES).max(HEADER_BYTES)..((chunk + 1) * CHUNK_BYTES).min(crcs_at))?;
        let crc = larder_dataset::crc32c(body).to_le_bytes();
        bytes.get_mut(crcs_at + chunk * 4..crcs_at + chunk * 4 + 4)?.copy_from_slice(&crc);
    }
    let crc = larder_dataset::crc32c(&bytes[crcs_at..]).to_le_bytes();
    bytes[CHUNKS_CRC..HEADER_CRC].copy_from_slice(&crc);
    let crc = larder_dataset::crc32c(&bytes[..HEADER_CRC]).to_le_bytes();
    bytes[HEADER_CRC..HEADER_BYTES].copy_from_slice(&crc);
    Some(bytes)
}
