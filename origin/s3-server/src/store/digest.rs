//! MD5 digests, from which entity tags are made.

use std::io::{self, Read};
use std::path::Path;

use md5::{Digest, Md5};

/// The MD5 of a file, as an entity tag without quotes.
pub(crate) fn md5_of_file(path: &Path) -> io::Result<String> {
    let mut file = std::fs::File::open(path)?;
    let mut digest = Md5::new();
    let mut buffer = vec![0; 1 << 20];
    loop {
        match file.read(&mut buffer)? {
            0 => return Ok(hex(&digest.finalize())),
            n => digest.update(&buffer[..n]),
        }
    }
}

pub(super) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
