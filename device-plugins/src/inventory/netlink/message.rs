//! The messages of rdma netlink: a request for the system settings, and its answer.
//!
//! ```text
//! length u32 │ type u16 │ flags u16 │ sequence u32 │ port u32 │ attributes: (length u16 │ type u16 │ value │ padding to 4)…
//! ```
//! All numbers are in the byte order of the machine. An attribute's length counts its own four bytes.

use std::io;

use crate::machine::RdmaMode;

/// `RDMA_NL_GET_TYPE(RDMA_NL_NLDEV, RDMA_NLDEV_CMD_SYS_GET)`.
const SYS_GET: u16 = (5 << 10) + 6;

/// `NLM_F_REQUEST`.
const REQUEST: u16 = 1;

/// `NLMSG_ERROR`.
const ERROR: u16 = 2;

/// `RDMA_NLDEV_SYS_ATTR_NETNS_MODE`.
const NETNS_MODE: u16 = 66;

/// The flag bits in an attribute's type: nested, and network byte order.
const TYPE_FLAGS: u16 = 0b11 << 14;

const HEADER_BYTES: usize = 16;

/// The request, which has no attributes.
pub(super) fn question() -> [u8; HEADER_BYTES] {
    let mut bytes = [0; HEADER_BYTES];
    bytes[..4].copy_from_slice(&(HEADER_BYTES as u32).to_ne_bytes());
    bytes[4..6].copy_from_slice(&SYS_GET.to_ne_bytes());
    bytes[6..8].copy_from_slice(&REQUEST.to_ne_bytes());
    bytes
}

/// The mode in an answer.
pub(super) fn decode(bytes: &[u8]) -> io::Result<RdmaMode> {
    let cut_off = || io::Error::new(io::ErrorKind::InvalidData, "the kernel's answer is cut off");
    let header = bytes.first_chunk::<HEADER_BYTES>().ok_or_else(cut_off)?;
    let length = u32::from_ne_bytes([header[0], header[1], header[2], header[3]]);
    let kind = u16::from_ne_bytes([header[4], header[5]]);
    let mut rest =
        usize::try_from(length).ok().and_then(|length| bytes.get(HEADER_BYTES..length)).ok_or_else(cut_off)?;
    if kind == ERROR {
        let code = rest.first_chunk().map(|code| i32::from_ne_bytes(*code)).ok_or_else(cut_off)?;
        return Err(io::Error::from_raw_os_error(code.checked_neg().unwrap_or_default()));
    }
    if kind != SYS_GET {
        return Err(io::Error::new(io::ErrorKind::InvalidData, format!("unexpected answer type {kind:#x}")));
    }
    while let Some(head) = rest.first_chunk::<4>() {
        let length = usize::from(u16::from_ne_bytes([head[0], head[1]]));
        let value = rest.get(4..length).ok_or_else(cut_off)?;
        if u16::from_ne_bytes([head[2], head[3]]) & !TYPE_FLAGS == NETNS_MODE {
            return match value {
                [0] => Ok(RdmaMode::Exclusive),
                [1] => Ok(RdmaMode::Shared),
                other => Err(io::Error::new(io::ErrorKind::InvalidData, format!("unexpected mode {other:?}"))),
            };
        }
        rest = rest.get(length.next_multiple_of(4)..).unwrap_or_default();
    }
    Err(io::Error::new(io::ErrorKind::Unsupported, "the kernel's answer has no mode"))
}

#[cfg(all(test, target_endian = "little"))]
mod tests {
    use super::*;

    /// Answers of little-endian kernels in both modes, and of a kernel that does not support the request.
    const SHARED: &[u8] = include_bytes!("../../../golden/v1-shared.netlink");
    const EXCLUSIVE: &[u8] = include_bytes!("../../../golden/v1-exclusive.netlink");
    const REFUSED: &[u8] = include_bytes!("../../../golden/v1-refused.netlink");

    fn changed(at: usize, byte: u8) -> Vec<u8> {
        let mut bytes = SHARED.to_vec();
        bytes[at] = byte;
        bytes
    }

    #[test]
    fn the_question_is_that_of_the_header_files() {
        assert_eq!(question(), [16, 0, 0, 0, 0x06, 0x14, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
    }

    #[test]
    fn the_mode_is_found_wherever_it_stands() {
        assert_eq!(decode(SHARED).unwrap(), RdmaMode::Shared);
        assert_eq!(decode(EXCLUSIVE).unwrap(), RdmaMode::Exclusive);
        let mut behind = SHARED[..16].to_vec();
        behind.extend([&SHARED[24..], &SHARED[16..24]].concat());
        assert_eq!(decode(&behind).unwrap(), RdmaMode::Shared);
        // The last attribute needs no padding.
        let mut bare = SHARED[..21].to_vec();
        bare[0] = 21;
        assert_eq!(decode(&bare).unwrap(), RdmaMode::Shared);
    }

    #[test]
    fn an_error_of_the_kernel_is_its_errno() {
        let mut refused = REFUSED.to_vec();
        assert_eq!(decode(&refused).unwrap_err().raw_os_error(), Some(22));
        refused[16..20].copy_from_slice(&i32::MIN.to_ne_bytes());
        assert!(decode(&refused).is_err());
    }

    #[test]
    fn what_is_no_answer_is_refused() {
        for end in 0..20 {
            assert!(decode(&SHARED[..end]).is_err(), "{end}");
        }
        // A length beyond the bytes, and one within the header; another type; lengths of an attribute; a mode and its size.
        for (at, byte) in [(0, 33), (0, 15), (4, 7), (16, 3), (16, 0), (16, 255), (20, 2), (16, 6)] {
            assert!(decode(&changed(at, byte)).is_err(), "{at} {byte}");
        }
        assert_eq!(decode(&changed(18, 67)).unwrap_err().kind(), io::ErrorKind::Unsupported);
    }
}
