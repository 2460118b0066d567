//! Checks the bytes of an object as they pass from the source to the mirror.
//!
//! Packs are compared with the CRC32C of each of their blocks, plain objects with the MD5 in their entity tag if it has
//! one. The CRC32C of all bytes, and the entity tag that a store computes of them, show afterwards whether the copy is
//! the same.

use larder_dataset::{FileIndex, VersionTag, crc32c_append};
use larder_origin::UPLOAD_PART_BYTES;
use md5::{Digest, Md5};

use super::objects::PackBlock;

/// Bytes that differ from their checksum.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Mismatch {
    /// A block of a file in a pack.
    Block { file: FileIndex, wanted: u32, found: u32 },
    /// The whole object. Its entity tag may be no MD5, if the store encrypts it with a key of its own.
    Md5 { wanted: [u8; 16], found: [u8; 16] },
}

/// The checksums of an object whose bytes are still coming.
#[derive(Debug)]
pub(super) struct Check {
    size: u64,
    at: u64,
    crc: u32,
    /// The MD5 of the source's entity tag.
    wanted_md5: Option<[u8; 16]>,
    /// Of the whole object, if the source or the mirror has such an entity tag.
    whole: Option<Md5>,
    whole_md5: [u8; 16],
    /// Of the part that is being uploaded, if the mirror gets the object in parts.
    part: Option<Md5>,
    /// The MD5s of the parts before it.
    parts: Vec<u8>,
    blocks: Vec<PackBlock>,
    next_block: usize,
    block_crc: u32,
}

impl Check {
    /// Expects `size` bytes of an object whose source has the version `tag` and whose blocks are `blocks`.
    pub(super) fn new(size: u64, tag: Option<&VersionTag<'_>>, blocks: Vec<PackBlock>) -> Self {
        let in_parts = size > UPLOAD_PART_BYTES as u64;
        let wanted_md5 = tag.and_then(VersionTag::md5).filter(|(_, parts)| *parts == 0).map(|(md5, _)| md5);
        Self {
            size,
            at: 0,
            crc: 0,
            wanted_md5,
            whole: (!in_parts || wanted_md5.is_some()).then(Md5::new),
            whole_md5: [0; 16],
            part: in_parts.then(Md5::new),
            parts: Vec::new(),
            blocks,
            next_block: 0,
            block_crc: 0,
        }
    }

    /// The MD5 of the source's entity tag, if no other checksum is compared with the bytes.
    pub(super) fn only_md5(&self) -> Option<[u8; 16]> {
        self.wanted_md5.filter(|_| self.blocks.is_empty())
    }

    /// Takes the next bytes. Errors: they are wrong, or they end the object and all of it is.
    pub(super) fn update(&mut self, bytes: &[u8]) -> Result<(), Mismatch> {
        self.crc = crc32c_append(self.crc, bytes);
        if let Some(whole) = &mut self.whole {
            whole.update(bytes);
        }
        self.update_parts(bytes);
        let checked = self.update_blocks(bytes);
        self.at += bytes.len() as u64;
        checked?;
        if self.at == self.size { self.end() } else { Ok(()) }
    }

    fn update_parts(&mut self, mut bytes: &[u8]) {
        let Some(part) = &mut self.part else { return };
        let mut at = self.at;
        while !bytes.is_empty() {
            let left = UPLOAD_PART_BYTES - (at % UPLOAD_PART_BYTES as u64) as usize;
            let (piece, rest) = bytes.split_at(left.min(bytes.len()));
            part.update(piece);
            at += piece.len() as u64;
            if piece.len() == left || at == self.size {
                self.parts.extend_from_slice(&std::mem::take(part).finalize());
            }
            bytes = rest;
        }
    }

    /// Bytes between blocks, which no file has, are not compared.
    fn update_blocks(&mut self, mut bytes: &[u8]) -> Result<(), Mismatch> {
        let mut at = self.at;
        while let (Some(block), false) = (self.blocks.get(self.next_block), bytes.is_empty()) {
            let gap = block.offset.saturating_sub(at).min(bytes.len() as u64) as usize;
            let done = at.saturating_sub(block.offset);
            let left = u64::from(block.len).saturating_sub(done).min((bytes.len() - gap) as u64) as usize;
            self.block_crc = crc32c_append(self.block_crc, &bytes[gap..gap + left]);
            at += (gap + left) as u64;
            bytes = &bytes[gap + left..];
            if at >= block.offset.saturating_add(u64::from(block.len)) {
                let (wanted, found) = (block.crc, std::mem::take(&mut self.block_crc));
                if wanted != found {
                    return Err(Mismatch::Block { file: block.file, wanted, found });
                }
                self.next_block += 1;
            }
        }
        Ok(())
    }

    fn end(&mut self) -> Result<(), Mismatch> {
        let Some(whole) = self.whole.take() else { return Ok(()) };
        self.whole_md5 = whole.finalize().into();
        match self.wanted_md5 {
            Some(wanted) if wanted != self.whole_md5 => Err(Mismatch::Md5 { wanted, found: self.whole_md5 }),
            Some(_) | None => Ok(()),
        }
    }

    /// The CRC32C of all bytes so far.
    pub(super) fn crc(&self) -> u32 {
        self.crc
    }

    /// The entity tag of a store whose tags are MD5s, for all bytes of the object.
    pub(super) fn etag(&self) -> VersionTag<'static> {
        if self.part.is_some() {
            let parts = (self.parts.len() / 16) as u32;
            return VersionTag::from_md5(&Md5::digest(&self.parts).into(), parts);
        }
        let md5 = if self.size == 0 { Md5::digest(b"").into() } else { self.whole_md5 };
        VersionTag::from_md5(&md5, 0)
    }
}

#[cfg(test)]
mod tests {
    use larder_dataset::crc32c;

    use super::*;

    fn bytes(len: usize) -> Vec<u8> {
        (0..len as u32).map(|at| (at.wrapping_mul(2_654_435_761) >> 13) as u8).collect()
    }

    fn md5_of(bytes: &[u8]) -> [u8; 16] {
        Md5::digest(bytes).into()
    }

    /// Passes bytes in pieces of this size.
    fn check(mut check: Check, bytes: &[u8], piece: usize) -> Result<Check, Mismatch> {
        bytes.chunks(piece).try_for_each(|piece| check.update(piece))?;
        Ok(check)
    }

    #[test]
    fn an_object_has_the_entity_tag_of_its_store_in_whatever_pieces_it_comes() {
        for len in [0, 1, 1000] {
            let bytes = bytes(len);
            let etag = VersionTag::from_md5(&md5_of(&bytes), 0);
            for piece in [1, 7, 1000] {
                let done = check(Check::new(len as u64, Some(&etag), Vec::new()), &bytes, piece).unwrap();
                assert_eq!((done.etag(), done.crc()), (etag.clone(), crc32c(&bytes)), "{len} by {piece}");
            }
        }
        for len in [UPLOAD_PART_BYTES + 1, 2 * UPLOAD_PART_BYTES] {
            let bytes = bytes(len);
            let of_parts: Vec<u8> = bytes.chunks(UPLOAD_PART_BYTES).flat_map(md5_of).collect();
            let done = check(Check::new(len as u64, None, Vec::new()), &bytes, 8 << 20).unwrap();
            assert_eq!(done.etag(), VersionTag::from_md5(&md5_of(&of_parts), 2), "{len}");
        }
    }

    #[test]
    fn a_flipped_byte_differs_from_the_source_s_entity_tag() {
        let mut bytes = bytes(1000);
        let etag = VersionTag::from_md5(&md5_of(&bytes), 0);
        bytes[999] ^= 1;
        let found = check(Check::new(1000, Some(&etag), Vec::new()), &bytes, 100).unwrap_err();
        assert!(matches!(found, Mismatch::Md5 { found, .. } if found == md5_of(&bytes)), "{found:?}");
        let of_parts = VersionTag::from_md5(&md5_of(b"parts"), 3);
        assert!(check(Check::new(1000, Some(&of_parts), Vec::new()), &bytes, 100).is_ok(), "no MD5 of all bytes");
    }

    #[test]
    fn a_flipped_byte_in_a_pack_is_found_in_its_block_and_gaps_are_not_compared() {
        let whole = bytes(1000);
        let block = |file, range: std::ops::Range<usize>| PackBlock {
            offset: range.start as u64,
            len: range.len() as u32,
            crc: crc32c(&whole[range]),
            file: FileIndex(file),
        };
        let blocks = vec![block(0, 0..300), block(1, 300..301), block(2, 400..1000)];
        for piece in [1, 7, 299, 300, 301, 1000] {
            assert!(check(Check::new(1000, None, blocks.clone()), &whole, piece).is_ok(), "{piece}");
            for (at, file) in
                [(0, Some(0)), (299, Some(0)), (300, Some(1)), (301, None), (400, Some(2)), (999, Some(2))]
            {
                let mut flipped = whole.clone();
                flipped[at] ^= 0x80;
                let found = check(Check::new(1000, None, blocks.clone()), &flipped, piece);
                match (found, file) {
                    (Ok(_), None) => {}
                    (Err(Mismatch::Block { file: found, .. }), Some(file)) => assert_eq!(found.0, file, "{at}"),
                    (found, file) => panic!("byte {at} by {piece}: {found:?} instead of {file:?}"),
                }
            }
        }
    }
}
