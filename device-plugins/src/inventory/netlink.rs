//! Reads over netlink how the kernel assigns HCAs to network namespaces.

mod message;

use std::io;

use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, netlink, recv, sendto, socket_with, sockopt,
};

use crate::machine::RdmaMode;

/// The longest answer that is read. A real answer is far shorter: four attributes of one byte each.
const ANSWER_BYTES_MOST: usize = 4096;

/// The kernel answers before `sendto` returns, so this timeout is only a safeguard.
const WAIT: std::time::Duration = std::time::Duration::from_secs(1);

/// Asks the kernel for its RDMA mode, which needs no privileges. `RdmaMode::None` if the kernel has no RDMA support.
///
/// # Errors
/// When the kernel rejects the request, as a kernel older than RDMA network namespaces does.
pub fn mode() -> io::Result<RdmaMode> {
    match ask() {
        Err(Errno::PROTONOSUPPORT | Errno::AFNOSUPPORT) => Ok(RdmaMode::None),
        Err(errno) => Err(errno.into()),
        Ok(answer) => message::decode(&answer),
    }
}

fn ask() -> Result<Vec<u8>, Errno> {
    let socket = socket_with(AddressFamily::NETLINK, SocketType::RAW, SocketFlags::CLOEXEC, Some(netlink::RDMA))?;
    sockopt::set_socket_timeout(&socket, sockopt::Timeout::Recv, Some(WAIT))?;
    sendto(&socket, &message::question(), SendFlags::empty(), &netlink::SocketAddrNetlink::new(0, 0))?;
    let mut answer = vec![0; ANSWER_BYTES_MOST];
    let (length, _) = recv(&socket, answer.as_mut_slice(), RecvFlags::empty())?;
    answer.truncate(length);
    Ok(answer)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kernel_without_rdma_says_so() {
        let has_rdma = std::path::Path::new("/sys/module/ib_core").exists();
        match mode() {
            Ok(mode) => assert_eq!(mode != RdmaMode::None, has_rdma),
            Err(error) => panic!("{error}"),
        }
    }
}
