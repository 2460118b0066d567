//! `wait` and `install`.

use std::os::unix::fs::PermissionsExt;

use crate::machine::{Job, text};

#[test]
fn waiting_ends_when_every_host_answers() {
    let job = Job::new();
    let agent = job.serve();
    let hosts = job.path("hosts");
    std::fs::write(&hosts, "127.0.0.1\n\nlocalhost\n").unwrap();
    let output = job.command("agent", agent.port).arg("wait").arg(&hosts).output().unwrap();
    let (status, _, error) = text(&output);
    assert_eq!((status, error.as_str()), (Some(0), "larder-agent: 2 of 2 hosts answer\n"));
    // A peer that disconnects without sending anything is not worth a log line.
    assert_eq!(agent.log(), "");
}

#[test]
fn waiting_is_bounded_and_says_for_whom_and_why() {
    let job = Job::new();
    let other = Job::new();
    std::fs::write(other.path("key"), [8; 32]).unwrap();
    let agent = other.serve();
    let hosts = job.path("hosts");
    std::fs::write(&hosts, "127.0.0.1\nno-such-host.invalid\n").unwrap();
    let waiting = |port| {
        let mut wait = job.command("agent", port);
        let output = wait.arg("wait").arg(&hosts).env("LARDER_AGENT_WAIT_SECONDS", "2").output().unwrap();
        let (status, _, error) = text(&output);
        assert_eq!(status, Some(1));
        assert!(error.contains("2 of 2 hosts do not answer") && error.contains("LARDER_AGENT_WAIT_SECONDS"), "{error}");
        assert!(error.contains("no-such-host.invalid: its name does not resolve"), "{error}");
        error
    };
    let error = waiting(agent.port);
    assert!(
        error.contains("127.0.0.1: at 127.0.0.1") && error.contains("does not have the key of this job"),
        "{error}"
    );
    let port = agent.port;
    drop(agent);
    let error = waiting(port);
    assert!(error.contains("Connection refused"), "{error}");
    let output = job.command("agent", port).args(["wait", "/nowhere/hosts"]).output().unwrap();
    assert!(text(&output).2.contains("read the hosts /nowhere/hosts"));
}

#[test]
fn installing_makes_the_three_programs_for_everybody_and_may_be_repeated() {
    let job = Job::new();
    let _running = job.serve();
    let installed = job.command("agent", 0).arg("install").arg(job.folder.path()).status().unwrap();
    assert!(installed.success());
    for name in ["agent", "rsh", "ssh"] {
        assert_eq!(std::fs::metadata(job.path(name)).unwrap().permissions().mode() & 0o777, 0o555, "{name}");
    }
    assert!(!job.path(".agent").exists());
    let output = job.command("agent", 0).args(["install", "/nowhere"]).output().unwrap();
    let (status, _, error) = text(&output);
    assert_eq!((status, error.contains("install into /nowhere")), (Some(1), true), "{error}");
}
