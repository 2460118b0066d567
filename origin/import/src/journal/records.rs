//! The records of a journal: the payloads of its frames.
//!
//! All numbers are little-endian. A byte string is its length as u32, followed by its bytes. Invariant: no input makes
//! a decoder panic or reserve more memory than the input itself takes. A record that can be decoded encodes to the same
//! bytes.
//!
//! The fuzz targets include this file by its path, so it must not use the rest of this crate.

use std::borrow::Cow;

use larder_dataset::VersionTag;

/// The payload is not a record. Its CRC was right, so another program wrote it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("journal record is malformed")]
pub(crate) struct BadRecord;

/// One page of a listing: its unit (a prefix and a depth), its contents, and the position where the unit continues.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PageRecord {
    /// The prefix that was listed.
    pub(crate) prefix: Vec<u8>,
    /// True if everything below the prefix was listed, false if only the keys and prefixes directly below it.
    pub(crate) recursive: bool,
    /// The position where the page starts; `None` for the first page of its unit.
    pub(crate) after: Option<Vec<u8>>,
    /// The files on the page.
    pub(crate) files: Vec<PageFile>,
    /// The prefixes on the page.
    pub(crate) prefixes: Vec<Vec<u8>>,
    /// Keys that the origin could not list, with the reasons.
    pub(crate) skipped: Vec<(Vec<u8>, Cow<'static, str>)>,
    /// The symbolic links on the page.
    pub(crate) links: Vec<PageLink>,
    /// The position where the next page of the unit starts; `None` if this was the last.
    pub(crate) next: Option<Vec<u8>>,
}

/// A file on a page.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PageFile {
    /// The file's key below the origin.
    pub(crate) key: Vec<u8>,
    /// The file's size in bytes.
    pub(crate) size: u64,
    /// The time of the last modification, in nanoseconds since the epoch.
    pub(crate) mtime_ns: i64,
    /// The version of the file's object.
    pub(crate) version: VersionTag<'static>,
}

/// A symbolic link on a page.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PageLink {
    /// The key that was listed.
    pub(crate) key: Vec<u8>,
    /// The text of the link, as the origin has it.
    pub(crate) target: Vec<u8>,
    /// The time of the last modification, in nanoseconds since the epoch.
    pub(crate) mtime_ns: i64,
}

impl PageRecord {
    /// Encodes the record as a frame's payload.
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(64 + 128 * self.files.len());
        out.push(u8::from(self.recursive));
        put_bytes(&mut out, &self.prefix);
        put_option(&mut out, self.after.as_deref());
        put_option(&mut out, self.next.as_deref());
        put_u32(&mut out, self.files.len());
        let mut last: &[u8] = &[];
        for file in &self.files {
            let shared = shared_bytes(last, &file.key);
            put_varint(&mut out, shared as u64);
            put_varint(&mut out, (file.key.len() - shared) as u64);
            out.extend_from_slice(&file.key[shared..]);
            last = &file.key;
            put_varint(&mut out, file.size);
            out.extend_from_slice(&file.mtime_ns.to_le_bytes());
            put_version(&mut out, &file.version);
        }
        put_u32(&mut out, self.prefixes.len());
        self.prefixes.iter().for_each(|prefix| put_bytes(&mut out, prefix));
        put_u32(&mut out, self.skipped.len());
        for (key, reason) in &self.skipped {
            put_bytes(&mut out, key);
            put_bytes(&mut out, reason.as_bytes());
        }
        // Pages without links end here, as in journals of versions that knew none.
        if !self.links.is_empty() {
            put_u32(&mut out, self.links.len());
            for link in &self.links {
                put_bytes(&mut out, &link.key);
                put_bytes(&mut out, &link.target);
                out.extend_from_slice(&link.mtime_ns.to_le_bytes());
            }
        }
        out
    }

    /// Decodes a payload. Errors: it is not a page.
    pub(crate) fn decode(payload: &[u8]) -> Result<Self, BadRecord> {
        let mut fields = Fields(payload);
        let recursive = fields.bool()?;
        let prefix = fields.bytes()?.to_vec();
        let after = fields.option()?.map(<[u8]>::to_vec);
        let next = fields.option()?.map(<[u8]>::to_vec);
        let mut last = Vec::new();
        let files = fields.list(|fields| {
            let shared = fields.varint_len()?;
            let begin = last.get(..shared).ok_or(BadRecord)?;
            let rest = fields.varint_len()?;
            let key = [begin, fields.take(rest)?].concat();
            if shared_bytes(&last, &key) != shared {
                return Err(BadRecord);
            }
            last.clone_from(&key);
            Ok(PageFile { key, size: fields.varint()?, mtime_ns: fields.i64()?, version: fields.version()? })
        })?;
        let prefixes = fields.list(|fields| Ok(fields.bytes()?.to_vec()))?;
        let skipped = fields.list(|fields| {
            let key = fields.bytes()?.to_vec();
            Ok((key, Cow::Owned(fields.text()?.to_owned())))
        })?;
        let links = if fields.0.is_empty() {
            Vec::new()
        } else {
            let link = |fields: &mut Fields<'_>| {
                let (key, target) = (fields.bytes()?.to_vec(), fields.bytes()?.to_vec());
                Ok(PageLink { key, target, mtime_ns: fields.i64()? })
            };
            Some(fields.list(link)?).filter(|links| !links.is_empty()).ok_or(BadRecord)?
        };
        fields.end()?;
        Ok(Self { prefix, recursive, after, files, prefixes, skipped, links, next })
    }
}

/// A finished pack.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PackRecord {
    /// The pack's number.
    pub(crate) pack: u32,
    /// The pack's key below the destination.
    pub(crate) key: Vec<u8>,
    /// The pack's size in bytes.
    pub(crate) size: u64,
    /// The pack's version at the destination.
    pub(crate) version: VersionTag<'static>,
    /// The first file of the manifest in the pack.
    pub(crate) first_file: u32,
    /// One past the last file of the manifest in the pack.
    pub(crate) end_file: u32,
    /// The CRC32C of each block of the pack's files, in order.
    pub(crate) block_crcs: Vec<u32>,
}

impl PackRecord {
    /// Encodes the record as a frame's payload.
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(128 + 4 * self.block_crcs.len());
        out.extend_from_slice(&self.pack.to_le_bytes());
        put_bytes(&mut out, &self.key);
        out.extend_from_slice(&self.size.to_le_bytes());
        put_version(&mut out, &self.version);
        out.extend_from_slice(&self.first_file.to_le_bytes());
        out.extend_from_slice(&self.end_file.to_le_bytes());
        put_u32(&mut out, self.block_crcs.len());
        self.block_crcs.iter().for_each(|crc| out.extend_from_slice(&crc.to_le_bytes()));
        out
    }

    /// Decodes a payload. Errors: it is not a pack.
    pub(crate) fn decode(payload: &[u8]) -> Result<Self, BadRecord> {
        let mut fields = Fields(payload);
        let record = Self {
            pack: fields.u32()?,
            key: fields.bytes()?.to_vec(),
            size: fields.u64()?,
            version: fields.version()?,
            first_file: fields.u32()?,
            end_file: fields.u32()?,
            block_crcs: fields.list(Fields::u32)?,
        };
        fields.end()?;
        Ok(record)
    }
}

/// Objects that were copied to a mirror.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct CopiedRecord {
    /// The rows of the objects in their snapshot, and the versions of the copies.
    pub(crate) copies: Vec<(u32, VersionTag<'static>)>,
}

impl CopiedRecord {
    /// Encodes the record as a frame's payload.
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(4 + 24 * self.copies.len());
        put_u32(&mut out, self.copies.len());
        for (row, version) in &self.copies {
            out.extend_from_slice(&row.to_le_bytes());
            put_version(&mut out, version);
        }
        out
    }

    /// Decodes a payload. Errors: it is not a record of copies.
    pub(crate) fn decode(payload: &[u8]) -> Result<Self, BadRecord> {
        let mut fields = Fields(payload);
        let copies = fields.list(|fields| Ok((fields.u32()?, fields.version()?)))?;
        fields.end()?;
        Ok(Self { copies })
    }
}

/// The length of the common prefix of a key and the previous key, in bytes.
fn shared_bytes(last: &[u8], key: &[u8]) -> usize {
    last.iter().zip(key).take_while(|(a, b)| a == b).count()
}

fn put_varint(out: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        out.push(number as u8 | 0x80);
        number >>= 7;
    }
    out.push(number as u8);
}

/// A length beyond u32 would make the record longer than a frame, and the journal rejects that.
fn put_u32(out: &mut Vec<u8>, len: usize) {
    out.extend_from_slice(&(len as u32).to_le_bytes());
}

fn put_bytes(out: &mut Vec<u8>, bytes: &[u8]) {
    put_u32(out, bytes.len());
    out.extend_from_slice(bytes);
}

fn put_option(out: &mut Vec<u8>, bytes: Option<&[u8]>) {
    out.push(u8::from(bytes.is_some()));
    if let Some(bytes) = bytes {
        put_bytes(out, bytes);
    }
}

fn put_version(out: &mut Vec<u8>, version: &VersionTag<'_>) {
    match version {
        VersionTag::MtimeSize { mtime_ns, size } => {
            out.push(0);
            out.extend_from_slice(&mtime_ns.to_le_bytes());
            out.extend_from_slice(&size.to_le_bytes());
        }
        VersionTag::ETag(etag) => match version.md5() {
            Some((md5, parts)) => {
                out.push(2);
                out.extend_from_slice(&md5);
                put_varint(out, u64::from(parts));
            }
            None => {
                out.push(1);
                put_bytes(out, etag.as_bytes());
            }
        },
    }
}

/// The rest of a payload that is being decoded.
struct Fields<'a>(&'a [u8]);

impl<'a> Fields<'a> {
    fn take(&mut self, len: usize) -> Result<&'a [u8], BadRecord> {
        let (taken, rest) = self.0.split_at_checked(len).ok_or(BadRecord)?;
        self.0 = rest;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], BadRecord> {
        let (taken, rest) = self.0.split_first_chunk().ok_or(BadRecord)?;
        self.0 = rest;
        Ok(*taken)
    }

    fn u8(&mut self) -> Result<u8, BadRecord> {
        let [byte] = self.array()?;
        Ok(byte)
    }

    fn bool(&mut self) -> Result<bool, BadRecord> {
        match self.u8()? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(BadRecord),
        }
    }

    fn u32(&mut self) -> Result<u32, BadRecord> {
        self.array().map(u32::from_le_bytes)
    }

    fn u64(&mut self) -> Result<u64, BadRecord> {
        self.array().map(u64::from_le_bytes)
    }

    /// Decodes a number. It must have its shortest form.
    fn varint(&mut self) -> Result<u64, BadRecord> {
        let mut number = 0_u64;
        for shift in (0..64).step_by(7) {
            let byte = self.u8()?;
            let bits = u64::from(byte & 0x7f);
            if bits << shift >> shift != bits || byte == 0 && shift > 0 {
                return Err(BadRecord);
            }
            number |= bits << shift;
            if byte < 0x80 {
                return Ok(number);
            }
        }
        Err(BadRecord)
    }

    fn varint_len(&mut self) -> Result<usize, BadRecord> {
        usize::try_from(self.varint()?).map_err(|_| BadRecord)
    }

    fn i64(&mut self) -> Result<i64, BadRecord> {
        self.array().map(i64::from_le_bytes)
    }

    fn bytes(&mut self) -> Result<&'a [u8], BadRecord> {
        let len = self.u32()?;
        self.take(len as usize)
    }

    fn text(&mut self) -> Result<&'a str, BadRecord> {
        std::str::from_utf8(self.bytes()?).map_err(|_| BadRecord)
    }

    fn option(&mut self) -> Result<Option<&'a [u8]>, BadRecord> {
        if self.bool()? { self.bytes().map(Some) } else { Ok(None) }
    }

    fn version(&mut self) -> Result<VersionTag<'static>, BadRecord> {
        match self.u8()? {
            0 => Ok(VersionTag::MtimeSize { mtime_ns: self.i64()?, size: self.u64()? }),
            1 => {
                let version = VersionTag::ETag(Cow::Owned(self.text()?.to_owned()));
                if version.md5().is_some() { Err(BadRecord) } else { Ok(version) }
            }
            2 => {
                let md5 = self.array()?;
                let parts = u32::try_from(self.varint()?).map_err(|_| BadRecord)?;
                let version = VersionTag::from_md5(&md5, parts);
                if version.md5() == Some((md5, parts)) { Ok(version) } else { Err(BadRecord) }
            }
            _ => Err(BadRecord),
        }
    }

    /// Each item takes at least one byte, so a count that exceeds the rest of the payload soon fails.
    fn list<T>(&mut self, mut item: impl FnMut(&mut Self) -> Result<T, BadRecord>) -> Result<Vec<T>, BadRecord> {
        let count = self.u32()?;
        let mut items = Vec::new();
        for _ in 0..count {
            items.push(item(self)?);
        }
        Ok(items)
    }

    fn end(self) -> Result<(), BadRecord> {
        if self.0.is_empty() { Ok(()) } else { Err(BadRecord) }
    }
}
