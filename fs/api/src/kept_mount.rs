//! [`KeptMount`] as an unnamed file in memory, since it holds credentials and has to outlive its process.

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;

use prost::Message as _;

use crate::handover::unnamed_file;
use crate::v1::KeptMount;

/// The largest one. The request in it came over gRPC, which takes 4 MiB.
const BYTES_MOST: u64 = 8 << 20;

impl KeptMount {
    /// Writes it into a new file in memory.
    pub fn to_memory(&self) -> io::Result<OwnedFd> {
        let mut file = File::from(unnamed_file("larder-mount")?);
        file.write_all(&self.encode_to_vec())?;
        Ok(file.into())
    }

    /// Reads it from such a file, which an earlier process may have written. Never blocks, whatever the descriptor is.
    pub fn from_memory(file: &OwnedFd) -> io::Result<Self> {
        let broken = |error: &dyn std::fmt::Display| io::Error::new(io::ErrorKind::InvalidData, error.to_string());
        let file = File::from(file.try_clone()?);
        let found = file.metadata()?;
        if !found.is_file() || found.len() == 0 || found.len() > BYTES_MOST {
            return Err(broken(&"the descriptor is not the description of a mount"));
        }
        let mut bytes = vec![0; found.len() as usize];
        // All processes share the position in the file.
        file.read_exact_at(&mut bytes, 0)?;
        Self::decode(bytes.as_slice()).map_err(|error| broken(&error))
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;
    use crate::handover::request_memory;
    use crate::v1::MountRequest;

    #[test]
    fn a_mount_is_read_from_memory_as_often_as_wanted() {
        let request = MountRequest { dir: "/data".to_owned(), ..MountRequest::default() };
        let mount = KeptMount { mount: "m".to_owned(), init: vec![1, 2, 3], request: Some(request) };
        let memory = mount.to_memory().unwrap();
        for _ in 0..2 {
            assert_eq!(KeptMount::from_memory(&memory).unwrap(), mount);
        }
        // A hardened kernel allows no other.
        let mode = |fd: OwnedFd| File::from(fd).metadata().unwrap().permissions().mode();
        assert_eq!(mode(memory), mode(request_memory().unwrap()));
    }

    #[test]
    fn another_descriptor_is_refused_and_nothing_waits_for_it() {
        let refused = |fd: OwnedFd| KeptMount::from_memory(&fd).unwrap_err().kind();
        let file = |bytes: &[u8]| {
            let mut file = tempfile::tempfile().unwrap();
            file.write_all(bytes).unwrap();
            file
        };
        let large = file(b"");
        large.set_len(BYTES_MOST + 1).unwrap();
        let (pipe, _writer) = std::io::pipe().unwrap();
        for fd in [file(&[0xff; 9]).into(), file(b"").into(), large.into(), pipe.into()] {
            assert_eq!(refused(fd), io::ErrorKind::InvalidData);
        }
    }
}
