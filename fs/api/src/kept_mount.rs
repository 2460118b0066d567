//! [`KeptMount`] as an unnamed file in memory, since it holds credentials and has to outlive its process.

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{AsRawFd, OwnedFd};

use prost::Message as _;
use rustix::fs::{MemfdFlags, memfd_create};

use crate::v1::KeptMount;

impl KeptMount {
    /// Writes it into a new file in memory.
    pub fn to_memory(&self) -> io::Result<OwnedFd> {
        let mut file = File::from(memfd_create("larder-mount", MemfdFlags::CLOEXEC)?);
        file.write_all(&self.encode_to_vec())?;
        Ok(file.into())
    }

    /// Reads it from such a file, which an earlier process may have written.
    pub fn from_memory(file: &OwnedFd) -> io::Result<Self> {
        // Opened separately, because the position in the file belongs to the open file description.
        let bytes = std::fs::read(format!("/proc/self/fd/{}", file.as_raw_fd()))?;
        Self::decode(bytes.as_slice()).map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::v1::MountRequest;

    #[test]
    fn a_mount_is_read_from_memory_as_often_as_wanted() {
        let request = MountRequest { dir: "/data".to_owned(), ..MountRequest::default() };
        let mount = KeptMount { mount: "m".to_owned(), init: vec![1, 2, 3], request: Some(request) };
        let memory = mount.to_memory().unwrap();
        for _ in 0..2 {
            assert_eq!(KeptMount::from_memory(&memory).unwrap(), mount);
        }
        let broken = OwnedFd::from(tempfile::tempfile().unwrap());
        File::from(broken.try_clone().unwrap()).write_all(&[0xff; 9]).unwrap();
        assert_eq!(KeptMount::from_memory(&broken).unwrap_err().kind(), io::ErrorKind::InvalidData);
    }
}
