//! Hostile clients of the ports of a node, while pods read: Larder's programs as processes, and a real FUSE mount.

use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use larder_csi_api::csi::node_client::NodeClient;
use larder_e2e::{Lab, Larderd, Plugin, memory_kib, wait_until};
use larder_testkit::machine::{FakeMachine, MachinePlan};
use larder_testkit::{built, scaled};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::JoinSet;

use crate::csi::{bytes, publish};

/// Connections to each port in each round.
const CONNECTIONS: usize = 1_200;

/// Connections that are opened at once.
const BURST: usize = 50;

/// A port gives up on a request that takes seconds to arrive.
const PROMPT: Duration = Duration::from_secs(3);

/// The memory that a program may take for all clients of its admin port, in KiB: a quarter of the least that a program
/// has in `deploy`, 128 MiB.
const GROWTH_KIB: u64 = 32 << 10;

/// The memory that the extender may take besides: its clients send bodies.
const OF_BODIES_KIB: u64 = 64 << 10;

/// Part of a head or body that does not end. Without a limit of its own, hyper keeps 400 KiB of a head.
const PART: &[u8] = &[b'x'; 400 << 10];

/// A program beside larderd and larder-csi; it is killed when dropped.
pub(crate) struct Program(Child);

impl Program {
    pub(crate) fn start(folder: &Path, name: &str, flags: &[String]) -> Self {
        let log = std::fs::File::create(folder.join(format!("{name}.log"))).unwrap();
        let mut command = Command::new(built(name));
        command.args(flags).env_clear().env("KUBECONFIG", folder.join("kubeconfig"));
        Self(command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log).spawn().unwrap())
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

pub(crate) fn free_port() -> u16 {
    TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap().local_addr().unwrap().port()
}

/// larder-devices on a machine with GPUs and HCAs, without their driver or a kubelet.
fn devices(folder: &Path, machine: &FakeMachine, admin: u16) -> Program {
    let root = folder.join("devices");
    std::fs::create_dir_all(root.join("kubelet/device-plugins")).unwrap();
    std::fs::write(root.join("config"), "resources:\n- {name: larder.dev/hca, kind: rdma}\n").unwrap();
    let in_root = |flag: &str| format!("--{flag}={}", root.join(flag).display());
    let mut flags = ["config", "cdi-dir", "nri-socket", "cgroups", "hook", "hook-dir", "faults"].map(in_root).to_vec();
    flags.push(format!("--kubelet-dir={}", root.join("kubelet").display()));
    flags.push(format!("--sysfs={}", machine.sysfs().display()));
    flags.push(format!("--dev={}", machine.dev().display()));
    flags.extend(["--node=n1", "--nvml=/no/nvml", "--vendor-cdi-dir=/no/cdi"].map(str::to_owned));
    flags.push(format!("--admin-address=127.0.0.1:{admin}"));
    Program::start(folder, "larder-devices", &flags)
}

/// larder-devices, larder-controller and larder-scheduler-ext with these admin ports. No API server answers them.
pub(crate) fn start_others(
    folder: &Path,
    machine: &FakeMachine,
    [of_devices, of_controller, of_extender]: [u16; 3],
    scheduler: u16,
) -> [Program; 3] {
    let config = "apiVersion: v1\nkind: Config\ncurrent-context: c\ncontexts: [{name: c, context: {cluster: c, user: u}}]\n\
                  clusters: [{name: c, cluster: {server: 'http://127.0.0.1:1'}}]\nusers: [{name: u}]\n";
    std::fs::write(folder.join("kubeconfig"), config).unwrap();
    let flag = |port: u16| format!("--admin-address=127.0.0.1:{port}");
    [
        devices(folder, machine, of_devices),
        Program::start(folder, "larder-controller", &[flag(of_controller), "--image=larder".to_owned()]),
        Program::start(
            folder,
            "larder-scheduler-ext",
            &[flag(of_extender), format!("--address=127.0.0.1:{scheduler}")],
        ),
    ]
}

/// A GET on a connection of its own: the answer, or why there is none.
pub(crate) async fn get(server: SocketAddr, path: &str) -> String {
    get_with(server, path, "").await
}

/// The same with more lines in the head of the request.
pub(crate) async fn get_with(server: SocketAddr, path: &str, head: &str) -> String {
    let request = format!("GET {path} HTTP/1.1\r\nhost: x\r\n{head}connection: close\r\n\r\n");
    let mut answer = Vec::new();
    let got = async {
        let mut stream = TcpStream::connect(server).await?;
        stream.write_all(request.as_bytes()).await?;
        stream.read_to_end(&mut answer).await
    };
    match got.await {
        Err(error) if answer.is_empty() => error.to_string(),
        Ok(_) | Err(_) => String::from_utf8_lossy(&answer).into_owned(),
    }
}

/// A probe that sends its request immediately. A busy machine may keep it from that for the seconds after which a port
/// gives up on a request; it is then made again.
async fn probe(server: SocketAddr) -> String {
    loop {
        let began = Instant::now();
        let answer = get(server, "/healthz").await;
        if answer.starts_with("HTTP/1.1") || began.elapsed() < PROMPT {
            return answer;
        }
    }
}

/// A hostile client's use of its connection, which stays open while the server keeps it.
async fn attack(mut stream: TcpStream, kind: usize) -> TcpStream {
    // A write fails once the server has closed the connection.
    let _ = match kind {
        // Nothing.
        0 => Ok(()),
        // A head that does not end.
        1 => match stream.write_all(b"GET /metrics HTTP/1.1\r\nx: ").await {
            Ok(()) => stream.write_all(PART).await,
            failed => failed,
        },
        // A body that does not end.
        2 => {
            let head = b"POST /filter HTTP/1.1\r\nhost: x\r\ncontent-length: 1000000\r\n\r\n".as_slice();
            stream.write_all(&[head, PART].concat()).await
        }
        // Requests whose answers are not read.
        3 => stream.try_write(&b"GET /metrics HTTP/1.1\r\nhost: x\r\n\r\n".repeat(200)).map(|_| ()),
        // HTTP/2, and then nothing.
        _ => stream.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0").await,
    };
    stream
}

/// Opens connections of all kinds to a port. Meanwhile the program answers its probes: fewer connections than a port
/// may have are opened between a probe's connection and its request.
pub(crate) async fn flood(port: SocketAddr, admin: SocketAddr) -> Vec<TcpStream> {
    let mut attacks = JoinSet::new();
    for _ in 0..CONNECTIONS / BURST {
        let connecting = (0..BURST).map(|_| TcpStream::connect(port));
        let connecting: JoinSet<_> = connecting.collect();
        let (answer, connected) = tokio::join!(probe(admin), connecting.join_all());
        assert!(answer.starts_with("HTTP/1.1 200"), "{} connections to {port}: {answer:?}", attacks.len());
        // The oldest connections may have lost their places already.
        for (kind, stream) in connected.into_iter().flatten().enumerate() {
            attacks.spawn(attack(stream, kind % 5));
        }
    }
    attacks.join_all().await
}

/// Ends the readers when the test ends, however that is.
struct StopOnDrop<'a>(&'a AtomicBool);

impl Drop for StopOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

// SEMANTICS: P6, K1
#[test]
fn a_flood_of_every_port_of_a_node_fails_no_read_and_ends_no_program() {
    const FILES: u64 = 60;
    let limit = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit }).unwrap();
    let lab = Lab::new();
    let folder = lab.folder();
    (0..FILES).for_each(|i| lab.put(&format!("f{i}"), bytes(i)));

    let admin @ [of_larderd, of_csi, of_devices, of_controller, of_extender] = std::array::from_fn(|_| free_port());
    let (peers, scheduler) = (free_port(), free_port());
    let flag = |port: u16| format!("--admin-address=127.0.0.1:{port}");
    let [listen, members] = [format!("--peer-listen=127.0.0.1:{peers}"), format!("--peers=n1=127.0.0.1:{peers}")];
    let sharing = [&*flag(of_larderd), &members, &listen, "--node-name=n1", "--peer-plaintext"];
    let machine = FakeMachine::new(MachinePlan::eight_pairs()).unwrap();
    let mut larderd = Larderd::start(&lab, "flood", &sharing);
    let plugin = Plugin::start(&lab, &larderd, &[&flag(of_csi)]);
    let mut others = start_others(folder, &machine, [of_devices, of_controller, of_extender], scheduler);
    let local = |port: u16| SocketAddr::from((Ipv4Addr::LOCALHOST, port));
    let is_healthy = |port| lab.runtime().block_on(get(local(port), "/healthz")).starts_with("HTTP/1.1 200");
    for port in admin {
        wait_until("a program serves its admin port", || is_healthy(port));
    }

    let target = plugin.path("kubelet/pods/a");
    let _in_runtime = lab.runtime().enter();
    let mut node = NodeClient::new(plugin.channel());
    wait_until("the volume is published", || {
        lab.runtime().block_on(node.node_publish_volume(publish(&lab, &target))).is_ok()
    });
    let pids = [larderd.pid().unwrap(), plugin.pid().unwrap(), others[0].0.id(), others[1].0.id(), others[2].0.id()];
    let resident = || pids.map(|pid| memory_kib(pid, "VmRSS"));

    let (stop, read) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for i in (0..FILES).cycle() {
                    if stop.load(Ordering::Relaxed) {
                        return;
                    }
                    let file = std::fs::File::open(target.join(format!("f{i}"))).unwrap();
                    rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).unwrap();
                    let mut got = Vec::new();
                    std::io::Read::read_to_end(&mut &file, &mut got).unwrap();
                    assert!(got == bytes(i), "f{i} has wrong bytes");
                    read.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        let _stop = StopOnDrop(&stop);
        // Reads and probes have had their buffers before the flood begins.
        wait_until("the readers have read all files", || read.load(Ordering::Relaxed) > 8 * FILES);
        let before = resident();
        let mut most = before;
        for _ in 0..scaled(1) {
            let mut open = Vec::new();
            let ports =
                admin.map(|port| (port, port)).into_iter().chain([(scheduler, of_extender), (peers, of_larderd)]);
            for (port, admin) in ports {
                open.extend(lab.runtime().block_on(flood(local(port), local(admin))));
                most = std::array::from_fn(|at| most[at].max(resident()[at]));
            }
            // All connections are there, as far as the programs keep them.
            let so_far = read.load(Ordering::Relaxed);
            wait_until("the readers go on", || read.load(Ordering::Relaxed) > so_far + FILES);
            assert!(admin.into_iter().all(is_healthy));
            most = std::array::from_fn(|at| most[at].max(resident()[at]));
        }
        let grown: Vec<u64> = (0..pids.len()).map(|at| most[at].saturating_sub(before[at])).collect();
        println!("KiB before the flood: {before:?}; growth: {grown:?}; {} reads", read.load(Ordering::Relaxed));
        let allowed = [GROWTH_KIB, GROWTH_KIB, GROWTH_KIB, GROWTH_KIB, GROWTH_KIB + OF_BODIES_KIB];
        let is_bounded = grown.iter().zip(allowed).all(|(grown, allowed)| *grown < allowed);
        assert!(is_bounded, "{before:?} KiB before, growth of {grown:?}");
    });
    assert!(others.iter_mut().all(|program| program.0.try_wait().unwrap().is_none()), "they run still");
    assert!(larderd.connections() >= 1 && plugin.connections() >= 1, "both hold the connection");
    larderd.terminate();
}
