//! The answer to INIT, the first request of a connection, which negotiates the protocol. fuser negotiates; it needs a
//! file system for that, which answers nothing else.

use std::io;
use std::os::fd::OwnedFd;

use fuser::{InitFlags, KernelConfig, Request, Session, SessionACL};
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType};
use tracing::{debug, info};

/// Larger than the answer to INIT, which has about 80 bytes.
const ANSWER_BYTES: usize = 4096;

/// Limits requested from the kernel at INIT.
#[derive(Clone, Copy, Debug)]
pub(crate) struct KernelLimits {
    /// The most background requests that the kernel keeps in flight: reads ahead, advised ones, and the rest of a large
    /// read. A hung origin holds one for each missing block that is wanted, and cached reads need one, too. A process
    /// without CAP_SYS_ADMIN gets at most the kernel's `max_user_bgreq`, one for each 3 MiB of the machine's memory.
    pub(crate) max_background: u16,
    /// Whether the mount may be mapped into user namespaces. The kernel then sends no user with its requests, so that
    /// no request can be refused for its user.
    pub(crate) idmapped: bool,
    /// Whether the kernel may read cached files by itself (see `passthrough`).
    pub(crate) passthrough: bool,
}

/// Returns the answer to the INIT that the kernel sent. Errors: the INIT is invalid.
pub(crate) fn answer(init: &[u8], limits: KernelLimits) -> io::Result<Vec<u8>> {
    // SEQPACKET preserves message boundaries, as /dev/fuse does.
    let (ours, theirs): (OwnedFd, OwnedFd) =
        rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
    rustix::net::send(&ours, init, SendFlags::NOSIGNAL)?;
    let _session = Session::from_fd(limits, theirs, SessionACL::All, fuser::Config::default())?;
    // The session has already answered INIT, so this receive does not block.
    let mut answer = vec![0; ANSWER_BYTES];
    let (len, _) = rustix::net::recv(&ours, &mut answer[..], RecvFlags::DONTWAIT)?;
    answer.truncate(len);
    Ok(answer)
}

impl fuser::Filesystem for KernelLimits {
    fn init(&mut self, _req: &Request, config: &mut KernelConfig) -> io::Result<()> {
        let idmapped = (InitFlags::FUSE_ALLOW_IDMAP, "the mount can be mapped into user namespaces (Linux 6.12)");
        let capabilities = [
            (InitFlags::FUSE_PARALLEL_DIROPS, "look-ups in one folder run in parallel"),
            (InitFlags::FUSE_DO_READDIRPLUS, "a listing includes attributes"),
            (InitFlags::FUSE_READDIRPLUS_AUTO, "attributes are left out where no caller wants them"),
            (InitFlags::FUSE_NO_OPEN_SUPPORT, "no OPEN and RELEASE"),
            (InitFlags::FUSE_NO_OPENDIR_SUPPORT, "no OPENDIR and RELEASEDIR"),
            (InitFlags::FUSE_AUTO_INVAL_DATA, "stats.json is read again when its time has changed"),
            (InitFlags::FUSE_CACHE_SYMLINKS, "the kernel keeps the text of symbolic links"),
            (InitFlags::FUSE_ASYNC_DIO, "direct reads of one file run in parallel"),
        ];
        let passthrough = (InitFlags::FUSE_PASSTHROUGH, "the kernel reads cached files by itself (Linux 6.9)");
        let wanted = [self.idmapped.then_some(idmapped), self.passthrough.then_some(passthrough)];
        for (capability, effect) in capabilities.into_iter().chain(wanted.into_iter().flatten()) {
            match config.add_capabilities(capability) {
                Ok(()) => debug!(effect, "kernel capability in use"),
                Err(_) => info!(effect, "the kernel lacks a capability"),
            }
        }
        // The kernel offers its current read-ahead as the limit. `mount` raises the read-ahead once the mount exists.
        let readahead = config.set_max_readahead(u32::MAX).or_else(|most| config.set_max_readahead(most));
        if self.passthrough {
            // The cache may be on a file system that is on no other. An overlay may then be on the mount.
            let _ = config.set_max_stack_depth(1);
        }
        let max_background = self.max_background;
        let background = config.set_max_background(max_background);
        if let Err(error) = readahead.and(background.map(u32::from).map_err(u32::from)) {
            return Err(io::Error::other(format!("the kernel refused a limit; it would accept {error}")));
        }
        info!(abi = %config.kernel_abi(), max_background, "FUSE session open");
        Ok(())
    }
}
