//! [`Nodes`], a lab of several nodes, and [`Node`], one of them: a `larderd` in a network namespace of its own, with
//! its own link, cache and home. All share the machine's mounts, so that a test can read every node's mounts.
//!
//! Invariant: that of a [`Lab`]; and nothing is left of a test that was killed, either.

use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

use larder_dataset::environment::PEER_TOKEN;
use larder_s3_server::S3ServerConfig;
use larder_testkit::larder_binary;
use rustix::process::Signal;

use crate::lab::Lab;
use crate::larderd::Larderd;
use crate::mount::Mount;
use crate::network::{BRIDGE, Link, Namespace, Network};

/// The port at which nodes serve each other.
const PEER_PORT: u16 = 7400;

/// A lab with the network of its nodes. Tests start the nodes one by one, and drop them before it.
pub struct Nodes {
    // Dropped first: what runs in it uses the rest.
    network: Network,
    /// The S3 server, at the bridge, and the commands that run beside it.
    pub lab: Lab,
}

impl Nodes {
    /// A network for this many nodes, none of which runs yet, and an S3 server that all of them reach.
    pub fn new(count: usize) -> Self {
        let home = tempfile::tempdir().unwrap();
        let network = Network::new(count, home.path());
        let config = S3ServerConfig {
            address: SocketAddr::from((BRIDGE, 0)),
            // One server has to be faster than all nodes together.
            unchecked_gets: true,
            ..S3ServerConfig::default()
        };
        let lab = Lab::start(home, network.bridge(), config);
        Self { network, lab }
    }

    /// The name of a node. Numbers start at 1.
    pub fn name(number: usize) -> String {
        format!("n{number}")
    }

    /// Where a node serves its peers.
    pub fn peer_address(number: usize) -> SocketAddr {
        SocketAddr::from((Network::address(number), PEER_PORT))
    }

    /// Starts a node's larderd and waits until it answers.
    pub fn start(&self, number: usize, flags: &[String]) -> Node {
        // Without the proxy, which would only use CPU time.
        self.start_program("larderd", number, flags, &self.lab.server.endpoint())
    }

    /// The same, for a node that reaches the S3 server through the lab's proxy.
    pub fn start_behind_proxy(&self, number: usize, flags: &[String]) -> Node {
        self.start_program("larderd", number, flags, &self.lab.proxy.endpoint())
    }

    /// Starts a node that mounts nothing and holds the lab's dataset for the others.
    pub fn start_cachenode(&self, number: usize, flags: &[String]) -> Node {
        let dataset = format!("--dataset={}", self.lab.url());
        self.start_program("cachenode", number, &[flags, &[dataset]].concat(), &self.lab.server.endpoint())
    }

    fn start_program(&self, program: &'static str, number: usize, flags: &[String], endpoint: &str) -> Node {
        let name = Self::name(number);
        let folder = self.lab.folder().join(format!("node-{name}"));
        let larderd = Larderd::start_in(&self.lab, self.network.node(number), endpoint, program, &name, flags);
        larderd.wait_until_it_answers();
        Node {
            environment: self.lab.environment(&folder.join("home"), endpoint),
            namespace: self.network.node(number),
            link: self.network.link(number),
            name,
            folder,
            larderd,
            mounts: AtomicU32::new(0),
        }
    }
}

/// A node whose larderd was started.
pub struct Node {
    name: String,
    folder: PathBuf,
    namespace: Namespace,
    /// The link to the others, and to the S3 server.
    pub link: Link,
    environment: Vec<(&'static str, OsString)>,
    larderd: Larderd,
    mounts: AtomicU32,
}

impl Node {
    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// A folder of its own.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Mounts a dataset at a new folder by this node's larderd. Peers that show [`TOKEN`](crate::TOKEN) are served it.
    pub fn mount(&self, src: &str, flags: &[&str]) -> Mount {
        self.mount_with_token(src, Some(crate::larderd::TOKEN), flags)
    }

    /// The same, with another token or none.
    pub fn mount_with_token(&self, src: &str, token: Option<&str>, flags: &[&str]) -> Mount {
        let dir = self.folder.join(format!("mnt-{}", self.mounts.fetch_add(1, Ordering::Relaxed)));
        std::fs::create_dir(&dir).unwrap();
        let mut args = vec!["mount", src, dir.to_str().unwrap(), "--cache-dir", self.cache_dir()];
        args.extend(flags);
        let output = self.larder(&args, token);
        let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        assert!(output.status.success(), "larder {args:?} failed: {out}{err}{}", self.log());
        let mount = Mount::standing(dir);
        assert_eq!(Some(mount.pid()), self.larderd.pid(), "another process than the node's larderd serves this mount");
        mount
    }

    /// Runs the command as a user of this node.
    pub fn larder(&self, args: &[&str], token: Option<&str>) -> Output {
        let mut command = self.namespace.command(larder_binary());
        command.args(args).env_clear().envs(self.environment.iter().cloned()).stdin(Stdio::null());
        command.envs(token.map(|token| (PEER_TOKEN, token)));
        command.output().unwrap()
    }

    fn cache_dir(&self) -> &str {
        self.larderd.run_dir().to_str().unwrap()
    }

    /// The log of its larderd, over all restarts.
    pub fn log(&self) -> String {
        self.larderd.log()
    }

    /// `kill -9`. Its mounts are dead, and stay until they are dropped.
    pub fn kill(&mut self) {
        self.larderd.kill();
    }

    /// Starts larderd again with its cache; it must have ended. Its mounts have to be made again.
    pub fn restart(&mut self) {
        self.larderd.restart();
        self.larderd.wait_until_it_answers();
    }

    /// The same with other flags.
    pub fn restart_with(&mut self, flags: &[String]) {
        self.larderd.set_flags(flags);
        self.restart();
    }

    /// SIGSTOP, and waits until every thread has stopped: it holds all its connections and answers nothing.
    pub fn stop(&self) {
        self.larderd.pause();
    }

    /// SIGCONT.
    pub fn go_on(&self) {
        self.larderd.signal(Signal::CONT);
    }
}
