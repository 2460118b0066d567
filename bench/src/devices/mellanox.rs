//! k8s-rdma-shared-dev-plugin on the fake machine. It reads fixed paths, so it runs in a mount namespace where these
//! paths belong to the fake machine, and in a network namespace with interfaces named after the HCAs.
#![expect(unsafe_code, reason = "the child's own system call filter")]

use std::io;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

use anyhow::Context;
use larder_devices::inventory::netlink;
use larder_devices::machine::RdmaMode;

use super::daemon::Shape;
use super::hardware::Hardware;
use super::kubelet::Kubelet;
use crate::systems::child::Child;

/// The plugin's name in the table.
pub(super) const NAME: &str = "k8s-rdma-shared-dev-plugin";
/// The plugin's executable.
pub(super) const PROGRAM: &str = "k8s-rdma-shared-dp";

const SCRIPT: &str = r#"set -e
for name in $NETDEVS; do ip link add "$name" type veth peer name "x$name"; done
mount --bind "$MACHINE/sys" /sys
mount --bind "$MACHINE/dev" /dev
mount -t tmpfs tmpfs /var/lib
mkdir /var/lib/kubelet
mount --bind "$KUBELET" /var/lib/kubelet
exec "$PROGRAM" -config-file "$CONFIG"
"#;

/// Starts the plugin.
pub(super) fn start(program: &Path, hardware: &Hardware, kubelet: &Kubelet) -> anyhow::Result<Child> {
    let config = hardware.write("config.json", &Shape::ConfigList.config(hardware))?;
    let netdevs: Vec<&str> =
        hardware.machine.plan().hcas.iter().flat_map(|hca| &hca.netdevs).map(String::as_str).collect();
    let mut command = Command::new("unshare");
    command.args(["--mount", "--net", "--propagation=private", "sh", "-c", SCRIPT]);
    command.env("NETDEVS", netdevs.join(" ")).env("MACHINE", hardware.path("")).env("CONFIG", config);
    command.env("KUBELET", &kubelet.folder).env("PROGRAM", program);
    let mode = netlink::mode().context("ask the kernel for the mode of RDMA")?;
    if mode == RdmaMode::None {
        // SAFETY: between fork and exec only one system call is made, and no memory is allocated.
        unsafe { command.pre_exec(without_rdma_netlink) };
    }
    Child::spawn(NAME, &mut command, &hardware.path("log"))
}

/// The plugin exits on a kernel without rdma netlink, except on an old kernel, which answers EINVAL. A seccomp filter
/// gives EINVAL to the plugin and its children, so that it takes this kernel for an old one.
fn without_rdma_netlink() -> io::Result<()> {
    const LOAD: u16 = (libc::BPF_LD | libc::BPF_W | libc::BPF_ABS) as u16;
    const EQUALS: u16 = (libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16;
    const RETURN: u16 = (libc::BPF_RET | libc::BPF_K) as u16;
    /// The offsets in `seccomp_data` of the call's number and of the low halves of its first and third arguments.
    const NUMBER: u32 = 0;
    const DOMAIN: u32 = 16;
    const PROTOCOL: u32 = 32;
    let filter = |code, jf, k| libc::sock_filter { code, jt: 0, jf, k };
    let mut filters = [
        filter(LOAD, 0, NUMBER),
        filter(EQUALS, 5, libc::SYS_socket as u32),
        filter(LOAD, 0, DOMAIN),
        filter(EQUALS, 3, libc::AF_NETLINK as u32),
        filter(LOAD, 0, PROTOCOL),
        filter(EQUALS, 1, libc::NETLINK_RDMA as u32),
        filter(RETURN, 0, libc::SECCOMP_RET_ERRNO | libc::EINVAL as u32),
        filter(RETURN, 0, libc::SECCOMP_RET_ALLOW),
    ];
    let program = libc::sock_fprog { len: filters.len() as u16, filter: filters.as_mut_ptr() };
    // SAFETY: the program and its filters outlive the call, which copies them.
    let set = unsafe { libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const program) };
    if set == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}
