//! Peers that must not get access.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::atomic::Ordering;
use std::time::Duration;

use rustix::process::Signal;

use crate::machine::{Cable, Job, pids, runs, send, text, until};

// SEMANTICS: J8
#[test]
fn a_launcher_with_another_key_runs_nothing() {
    let job = Job::new();
    let agent = job.serve();
    let other = Job::new();
    std::fs::write(other.path("key"), [8; 32]).unwrap();
    let file = job.path("ran");
    let (status, _, error) = text(&other.rsh(agent.port, &format!("touch {}", file.display())).output().unwrap());
    assert_eq!(status, Some(255));
    assert!(error.contains("127.0.0.1") && error.contains("does not have the key of this job"), "{error}");
    assert!(!file.exists());
    // Neither side ever sends the key itself.
    assert!(!error.contains("\u{8}\u{8}") && !agent.log().contains("\u{7}\u{7}"));
}

// SEMANTICS: J8
#[test]
fn a_recorded_conversation_cannot_be_replayed() {
    let job = Job::new();
    let agent = job.serve();
    let file = job.path("ran");
    let cable = Cable::to(agent.port);
    assert!(job.rsh(cable.port, &format!("echo x >>{}", file.display())).status().unwrap().success());
    assert_eq!(std::fs::read_to_string(&file).unwrap(), "x\n");
    let recorded = cable.sent.lock().unwrap().clone();
    assert!(!recorded.windows(4).any(|bytes| bytes == b"echo"), "the command crossed the wire in clear");
    assert!(!recorded.windows(32).any(|bytes| bytes == [7; 32]), "the key crossed the wire");
    let mut socket = TcpStream::connect(("127.0.0.1", agent.port)).unwrap();
    socket.write_all(&recorded).unwrap();
    // The connection may be reset with unread data.
    let _ = socket.read_to_end(&mut Vec::new());
    until("the replay is refused", || agent.log().contains("127.0.0.1"));
    assert_eq!(std::fs::read_to_string(&file).unwrap(), "x\n");
}

#[test]
fn junk_and_strangers_who_say_nothing_keep_nobody_out() {
    let job = Job::new();
    let agent = job.serve();
    let silent: Vec<_> = (0..100).map(|_| TcpStream::connect(("127.0.0.1", agent.port)).unwrap()).collect();
    let mut junk = TcpStream::connect(("127.0.0.1", agent.port)).unwrap();
    // A TLS record that claims to be longer than the protocol allows, followed by garbage.
    junk.write_all(&[0x16, 3, 1, 0xff, 0xff]).unwrap();
    let _ = junk.write_all(&[0xa5; 100_000]);
    let _ = junk.read_to_end(&mut Vec::new());
    assert!(job.rsh(agent.port, "true").env("LARDER_AGENT_CONNECT_SECONDS", "60").status().unwrap().success());
    until("the oldest silent peer is dropped", || agent.log().contains("dropping the oldest of them"));
    drop(silent);
    until("the junk is named", || agent.log().contains("the peer is not a larder-agent"));
}

/// `serve` asks sessions to make room with this signal, and a session may have proved that it has the key a moment
/// before.
#[test]
fn a_session_with_the_key_makes_no_room() {
    let job = Job::new();
    let agent = job.serve();
    let (file, go) = (job.path("pids"), job.path("go"));
    let command = format!("echo $PPID >{}; until [ -e {} ]; do sleep 0.1; done", file.display(), go.display());
    let mut child = job.rsh(agent.port, &command).spawn().unwrap();
    send(pids(&file, 1)[0], Signal::ALARM);
    std::fs::write(&go, "").unwrap();
    assert!(child.wait().unwrap().success());
    // The command's own signal handling is unchanged.
    let status = job.rsh(agent.port, "kill -ALRM $$; echo").stdout(std::process::Stdio::null()).status().unwrap();
    assert_eq!(status.code(), Some(128 + 14));
}

// SEMANTICS: J8
#[test]
fn a_connection_that_falls_silent_ends_at_both_ends() {
    let job = Job::new();
    let agent = job.serve_with_silence("5");
    let cable = Cable::to(agent.port);
    let file = job.path("pids");
    let mut rsh = job.rsh(cable.port, &format!("echo $$ >{}; sleep 100", file.display()));
    let child = rsh.env("LARDER_AGENT_SILENCE_SECONDS", "5").stderr(std::process::Stdio::piped()).spawn().unwrap();
    let pid = pids(&file, 1)[0];
    // The connection stays open while keep-alives arrive.
    std::thread::sleep(Duration::from_secs(8));
    assert!(runs(pid));
    cable.is_cut.store(true, Ordering::SeqCst);
    let (status, _, error) = text(&child.wait_with_output().unwrap());
    assert_eq!(status, Some(255));
    assert!(error.contains("no sign of life for 5 s"), "{error}");
    until("the command ends", || !runs(pid));
    until("the agent says why", || agent.log().contains("no sign of life"));
}
