//! [`Network`]: a bridge and the nodes linked to it, each in a network namespace of its own, and [`Namespace`], by
//! which programs and threads enter one. `tests/nodes/network.sh` makes them.
//!
//! Invariant: when a `Network` is dropped or its test is killed, no interface, no process in it and no mount below its
//! folder is left.

use std::ffi::OsStr;
use std::io::{BufRead, BufReader};
use std::net::Ipv4Addr;
use std::os::fd::AsFd;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use larder_testkit::repository;
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

/// The bridge's address.
pub const BRIDGE: Ipv4Addr = Ipv4Addr::new(10, 90, 0, 1);

/// The rate of a slow link.
const SLOW_LINK_BITS: &str = "8mbit";

/// A network namespace. Processes in it see the machine's mounts.
#[derive(Clone, Copy, Debug, Default)]
pub struct Namespace {
    /// The process that keeps it; none for the test's own namespace.
    keeper: Option<u32>,
}

impl Namespace {
    /// A command that runs `program` in it, in the very process that is started.
    pub fn command(self, program: impl AsRef<OsStr>) -> Command {
        let Some(keeper) = self.keeper else { return Command::new(program) };
        let mut command = Command::new("nsenter");
        command.arg(format!("--net=/proc/{keeper}/ns/net")).arg("--").arg(program);
        command
    }

    /// Runs `work` on a thread in it. Sockets and threads that `work` makes stay in it.
    pub fn enter<T: Send>(self, work: impl FnOnce() -> T + Send) -> T {
        let Some(keeper) = self.keeper else { return work() };
        let network = std::fs::File::open(format!("/proc/{keeper}/ns/net")).unwrap();
        let enter_and_work = || {
            move_into_link_name_space(network.as_fd(), Some(LinkNameSpaceType::Network)).unwrap();
            work()
        };
        std::thread::scope(|scope| scope.spawn(enter_and_work).join()).unwrap()
    }

    /// Runs a command of iproute2 in it, which must succeed, and returns its output.
    fn iproute(self, words: &str) -> String {
        let mut words = words.split(' ');
        let output = self.command(words.next().unwrap()).args(words).stdin(Stdio::null()).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    }
}

/// A running network.
pub struct Network {
    script: Child,
    keepers: Vec<u32>,
}

impl Network {
    /// Makes one with nodes 1, 2 and on. Dropping it also removes `folder` and the mounts below it.
    pub fn new(nodes: usize, folder: &Path) -> Self {
        assert!(rustix::process::geteuid().is_root(), "network namespaces are made by root only");
        let log = folder.join("network.log");
        let mut script = Command::new(repository().join("tests/nodes/network.sh"))
            .arg(nodes.to_string())
            .arg(folder)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(std::fs::File::create(&log).unwrap())
            // The script has to outlive a test whose process group is killed.
            .process_group(0)
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(script.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let keepers: Vec<u32> = line.split_whitespace().map(|pid| pid.parse().unwrap()).collect();
        let network = Self { script, keepers };
        if network.keepers.len() != nodes + 1 {
            let said = std::fs::read_to_string(&log).unwrap_or_default();
            panic!("the network does not come up (does {} let root make namespaces?): {said}", log.display());
        }
        network
    }

    /// The bridge's namespace, from which every node can be reached.
    pub fn bridge(&self) -> Namespace {
        Namespace { keeper: Some(self.keepers[0]) }
    }

    /// A node's namespace.
    pub fn node(&self, number: usize) -> Namespace {
        Namespace { keeper: Some(self.keepers[number]) }
    }

    /// The link of a node.
    pub fn link(&self, number: usize) -> Link {
        Link { bridge: self.bridge(), node: self.node(number), name: format!("n{number}") }
    }

    /// A node's address.
    pub fn address(number: usize) -> Ipv4Addr {
        Ipv4Addr::new(10, 90, 0, 10 + u8::try_from(number).unwrap())
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        // At the end of its input the script removes everything.
        drop(self.script.stdin.take());
        let _ = self.script.wait();
    }
}

/// The link between a node and the bridge. It can be cut and slowed, in both directions.
#[derive(Clone, Debug)]
pub struct Link {
    bridge: Namespace,
    node: Namespace,
    /// The interface at the bridge's end.
    name: String,
}

impl Link {
    /// From now on packets are lost without an error.
    pub fn cut(&self) {
        self.bridge.iproute(&format!("ip link set {} down", self.name));
    }

    /// Undoes [`Self::cut`].
    pub fn join(&self) {
        self.bridge.iproute(&format!("ip link set {} up", self.name));
    }

    /// From now on at most 1 MB a second passes each way.
    pub fn slow(&self) {
        for (namespace, end) in [(self.bridge, self.name.as_str()), (self.node, "eth0")] {
            let limit = format!("tbf rate {SLOW_LINK_BITS} burst 32kb latency 1s");
            namespace.iproute(&format!("tc qdisc replace dev {end} root {limit}"));
        }
    }

    /// Undoes [`Self::slow`].
    pub fn speed_up(&self) {
        for (namespace, end) in [(self.bridge, self.name.as_str()), (self.node, "eth0")] {
            namespace.iproute(&format!("tc qdisc del dev {end} root"));
        }
    }

    /// Bytes that the node has sent since the start.
    pub fn sent_bytes(&self) -> u64 {
        let said = self.bridge.iproute(&format!("ip -json -stats link show dev {}", self.name));
        let links: serde_json::Value = serde_json::from_str(&said).unwrap();
        links[0]["stats64"]["rx"]["bytes"].as_u64().unwrap()
    }
}
