//! The header of a GGUF file of version 2 or 3.

use super::super::tensor::{HEADER_BYTES_MOST, Role, TENSORS_MOST, Tensor};
use super::shape::Header;

pub(super) const MAGIC: &[u8] = b"GGUF";

const VERSIONS: [u32; 2] = [2, 3];

/// The pair that says to a multiple of what the data and each tensor are aligned, and its value without it.
const ALIGNMENT: &[u8] = b"general.alignment";
const ALIGNMENT_BYTES: u64 = 32;
const ALIGNMENT_BYTES_MOST: u64 = 1 << 20;

const DIMENSIONS_MOST: u32 = 8;

/// Types of values.
const U32: u32 = 4;
const STRING: u32 = 8;
const ARRAY: u32 = 9;

/// How much more of the file is read when the header goes on.
const GROWTH: u64 = 8;

pub(super) fn decode(start: &[u8], file_bytes: u64, folder: u32) -> Header {
    match read(&mut Cursor { bytes: start, at: 0 }, file_bytes, folder) {
        Ok(tensors) => Header::of(tensors, file_bytes),
        Err(Trouble::Short) => Header::needs((start.len() as u64).saturating_mul(GROWTH), start.len(), file_bytes),
        Err(Trouble::Wrong) => Header::Unknown,
    }
}

/// Why a header cannot be read.
enum Trouble {
    /// It goes on after the bytes that are there.
    Short,
    /// It breaks a rule or a limit.
    Wrong,
}

fn read(header: &mut Cursor<'_>, file_bytes: u64, folder: u32) -> Result<Vec<Tensor>, Trouble> {
    header.take(MAGIC.len() as u64)?;
    if !VERSIONS.contains(&header.u32()?) {
        return Err(Trouble::Wrong);
    }
    let (count, pairs) = (header.u64()?, header.u64()?);
    if count > TENSORS_MOST as u64 {
        return Err(Trouble::Wrong);
    }
    let mut alignment = ALIGNMENT_BYTES;
    // Each takes bytes, so a wrong count ends at the end of them.
    for _ in 0..pairs {
        let key = header.string()?;
        match header.u32()? {
            U32 if key == ALIGNMENT => alignment = header.u32()?.into(),
            kind => header.skip_value(kind)?,
        }
    }
    if !alignment.is_power_of_two() || alignment > ALIGNMENT_BYTES_MOST {
        return Err(Trouble::Wrong);
    }
    let mut tensors = Vec::new();
    for _ in 0..count {
        let role = Role::of(folder, header.string()?);
        let dimensions = header.u32()?;
        if dimensions > DIMENSIONS_MOST {
            return Err(Trouble::Wrong);
        }
        // The shape, and the type of the numbers.
        header.take(u64::from(dimensions) * 8 + 4)?;
        tensors.push(Tensor { begin: header.u64()?, end: 0, role });
    }
    let data = (header.at as u64).next_multiple_of(alignment);
    tensors.iter_mut().for_each(|tensor| tensor.begin = tensor.begin.saturating_add(data));
    tensors.sort_unstable_by_key(|tensor| tensor.begin);
    // The bytes of a number depend on its type, of which there are ever more. A tensor ends where the next one begins.
    let mut end = file_bytes;
    for tensor in tensors.iter_mut().rev() {
        (tensor.end, end) = (end, tensor.begin);
    }
    Ok(tensors)
}

/// Reads bytes in order.
struct Cursor<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Cursor<'a> {
    fn take(&mut self, len: u64) -> Result<&'a [u8], Trouble> {
        if len > HEADER_BYTES_MOST {
            return Err(Trouble::Wrong);
        }
        let taken = self.bytes.get(self.at..self.at + len as usize).ok_or(Trouble::Short)?;
        self.at += taken.len();
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], Trouble> {
        self.take(N as u64)?.try_into().map_err(|_| Trouble::Short)
    }

    fn u32(&mut self) -> Result<u32, Trouble> {
        self.array().map(u32::from_le_bytes)
    }

    fn u64(&mut self) -> Result<u64, Trouble> {
        self.array().map(u64::from_le_bytes)
    }

    fn string(&mut self) -> Result<&'a [u8], Trouble> {
        let len = self.u64()?;
        self.take(len)
    }

    /// Skips a value of this type. Arrays of arrays are allowed, and no file has them.
    fn skip_value(&mut self, kind: u32) -> Result<(), Trouble> {
        if kind != ARRAY {
            return self.skip_values(kind, 1);
        }
        let (kind, count) = (self.u32()?, self.u64()?);
        self.skip_values(kind, count)
    }

    fn skip_values(&mut self, kind: u32, count: u64) -> Result<(), Trouble> {
        if kind == STRING {
            for _ in 0..count {
                self.string()?;
            }
            return Ok(());
        }
        let bytes = match kind {
            0 | 1 | 7 => 1,
            2 | 3 => 2,
            4..=6 => 4,
            10..=12 => 8,
            _ => return Err(Trouble::Wrong),
        };
        self.take(count.checked_mul(bytes).ok_or(Trouble::Wrong)?).map(|_| ())
    }
}
