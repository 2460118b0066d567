//! Ioctls with any number and any bytes.
#![expect(unsafe_code, reason = "an ioctl has no safe wrapper")]

use std::ffi::c_void;
use std::fs::File;

use rustix::ioctl::{Ioctl, IoctlOutput, Opcode};

struct Pass {
    opcode: Opcode,
    bytes: Vec<u8>,
}

// SAFETY: `ioctl` makes this for ioctls of a FUSE mount, which read as many bytes as their numbers say and write none.
unsafe impl Ioctl for Pass {
    type Output = u32;

    const IS_MUTATING: bool = false;

    fn opcode(&self) -> Opcode {
        self.opcode
    }

    fn as_ptr(&mut self) -> *mut c_void {
        self.bytes.as_mut_ptr().cast()
    }

    unsafe fn output_from_ptr(out: IoctlOutput, _: *mut c_void) -> rustix::io::Result<u32> {
        Ok(out.cast_unsigned())
    }
}

/// The result of `_IOW('L', number, [u8; size])` on a file or folder of a mount. The bytes are followed by zeros.
pub fn ioctl(node: &File, number: u32, size: u32, bytes: &[u8]) -> std::io::Result<u32> {
    let mut bytes = bytes.to_vec();
    bytes.resize(size as usize, 0);
    let opcode = 1 << 30 | size << 16 | u32::from(b'L') << 8 | number;
    // SAFETY: there are as many bytes as the number says, and the ioctls of FUSE with this direction write none.
    unsafe { rustix::ioctl::ioctl(node, Pass { opcode, bytes }) }.map_err(Into::into)
}
