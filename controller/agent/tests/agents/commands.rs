//! Commands run by `rsh`: their streams, status, signals and end.

use std::io::{Read, Write};
use std::process::Stdio;

use rustix::process::Signal;

use crate::machine::{Job, pids, runs, send, text, until};

#[test]
fn a_command_has_the_streams_the_status_and_the_environment_that_it_would_have_there() {
    let job = Job::new();
    let agent = job.serve();
    let mut rsh = job.command("ssh", agent.port);
    rsh.args(["-x", "-o", "A=b", "me@127.0.0.1", "-q", "read", "line;", "echo", "$line", "$FROM_THE_POD;"]);
    rsh.args(["echo error >&2; exit 7"]);
    let mut child = rsh.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(b"hello\n").unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!(text(&output), (Some(7), "hello yes\n".to_owned(), "error\n".to_owned()));
    for (command, status) in [("true", 0), ("exit 255", 255), ("kill -KILL $$", 137), ("/nowhere/program", 127)] {
        assert_eq!(job.rsh(agent.port, command).output().unwrap().status.code(), Some(status), "{command}");
    }
    // Flags with a different meaning here are rejected by name.
    let output = job.command("rsh", agent.port).args(["-N", "127.0.0.1", "true"]).output().unwrap();
    let (status, _, error) = text(&output);
    assert_eq!((status, error.contains("-N is not supported")), (Some(255), true), "{error}");
}

#[test]
fn many_megabytes_pass_both_ways_however_slowly_they_are_read() {
    let job = Job::new();
    let agent = job.serve();
    let sent: Vec<u8> = (0..8_000_000_u32).flat_map(u32::to_le_bytes).collect();
    let mut rsh = job.rsh(agent.port, "cat");
    let mut child = rsh.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let (mut stdin, mut stdout) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
    let received = std::thread::scope(|scope| {
        scope.spawn(|| stdin.write_all(&sent).map(|()| drop(stdin)).unwrap());
        let mut received = Vec::new();
        stdout.read_to_end(&mut received).unwrap();
        received
    });
    assert!(received == sent, "{} of {} bytes, or others", received.len(), sent.len());
    assert!(child.wait().unwrap().success());
}

#[test]
fn a_stream_that_nobody_reads_holds_up_neither_the_other_nor_signals_nor_memory() {
    let job = Job::new();
    let agent = job.serve_with_silence("5");
    let file = job.path("pids");
    let command = format!("echo $$ >{}; yes | head -c 50000000 & sleep 8; echo still here >&2; wait", file.display());
    let mut rsh = job.rsh(agent.port, &command);
    rsh.env("LARDER_AGENT_SILENCE_SECONDS", "5").stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = rsh.spawn().unwrap();
    // Longer than the silence that ends a connection: the output is blocked, and keep-alives are not.
    let mut line = [0; 11];
    child.stderr.take().unwrap().read_exact(&mut line).unwrap();
    assert_eq!(&line, b"still here\n");
    let status = std::fs::read_to_string(format!("/proc/{}/status", child.id())).unwrap();
    let resident = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap().trim();
    let resident: u64 = resident.split(' ').next().unwrap().parse().unwrap();
    assert!(resident < 30_000, "{resident} KiB");
    send(child.id(), Signal::TERM);
    let pid = pids(&file, 1)[0];
    until("the command ends by the signal", || !runs(pid));
    let mut rest = Vec::new();
    child.stdout.take().unwrap().read_to_end(&mut rest).unwrap();
    assert!(rest.len() < 50_000_000, "{}", rest.len());
    assert!(!child.wait().unwrap().success());
}

#[test]
fn signals_reach_the_command_which_decides_its_status() {
    let job = Job::new();
    let agent = job.serve();
    for (signal, name) in [(Signal::TERM, "TERM"), (Signal::INT, "INT"), (Signal::HUP, "HUP"), (Signal::USR1, "USR1")] {
        let file = job.path(name);
        let command = format!("trap 'exit 9' {name}; echo $$ >{}; while :; do sleep 0.1; done", file.display());
        let mut child = job.rsh(agent.port, &command).spawn().unwrap();
        pids(&file, 1);
        send(child.id(), signal);
        assert_eq!(child.wait().unwrap().code(), Some(9), "{name}");
    }
    let file = job.path("untrapped");
    let mut child = job.rsh(agent.port, &format!("echo $$ >{}; sleep 100", file.display())).spawn().unwrap();
    pids(&file, 1);
    send(child.id(), Signal::TERM);
    assert_eq!(child.wait().unwrap().code(), Some(143));
}

// SEMANTICS: J8
#[test]
fn a_killed_launcher_takes_the_commands_process_groups_along() {
    let job = Job::new();
    let agent = job.serve();
    let file = job.path("pids");
    // `set -m` puts background processes into a group of their own, as mpirun's daemons do.
    let command = format!(
        "set -m; for i in 1 2; do sh -c 'echo $$ >>{0}; sleep 100' & done; echo $$ >>{0}; wait",
        file.display()
    );
    let mut child = job.rsh(agent.port, &command).spawn().unwrap();
    let pids = pids(&file, 3);
    assert!(pids.iter().all(|pid| runs(*pid)));
    child.kill().unwrap();
    child.wait().unwrap();
    until("no process is left", || !pids.iter().any(|pid| runs(*pid)));
    // A restarted launcher finds the agent unchanged.
    assert!(job.rsh(agent.port, "true").status().unwrap().success());
}

#[test]
fn a_killed_session_takes_its_command_along() {
    let job = Job::new();
    let agent = job.serve();
    let file = job.path("pids");
    let mut child =
        job.rsh(agent.port, &format!("echo $PPID >{0}; echo $$ >>{0}; sleep 100", file.display())).spawn().unwrap();
    let pids = pids(&file, 2);
    send(pids[0], Signal::KILL);
    assert_eq!(child.wait().unwrap().code(), Some(255));
    until("no process is left", || !pids.iter().any(|pid| runs(*pid)));
}

#[test]
fn many_commands_run_at_once() {
    let job = Job::new();
    let agent = job.serve();
    let children: Vec<_> = (0..24)
        .map(|i| job.rsh(agent.port, &format!("sleep 0.5; echo {i}")).stdout(Stdio::piped()).spawn().unwrap())
        .collect();
    for (i, child) in children.into_iter().enumerate() {
        assert_eq!(text(&child.wait_with_output().unwrap()), (Some(0), format!("{i}\n"), String::new()));
    }
}

// SEMANTICS: J8
#[test]
fn an_agent_that_is_told_to_end_ends_its_commands_and_buries_their_orphans() {
    let job = Job::new();
    let mut agent = job.serve();
    let file = job.path("pids");
    // An orphan that has left the session survives its command, and is reparented to the agent.
    let orphan = "setsid sh -c 'echo $$ >>FILE; exec sleep 100' </dev/null >/dev/null 2>&1 &"
        .replace("FILE", file.to_str().unwrap());
    assert!(job.rsh(agent.port, &orphan).status().unwrap().success());
    let orphan = pids(&file, 1)[0];
    let parent = format!("PPid:\t{}\n", agent.pid());
    let status = format!("/proc/{orphan}/status");
    until("the agent has the orphan", || std::fs::read_to_string(&status).unwrap().contains(&parent));
    send(orphan, Signal::KILL);
    until("the orphan is reaped", || !std::path::Path::new(&format!("/proc/{orphan}")).exists());
    let mut child = job.rsh(agent.port, &format!("echo $$ >>{}; sleep 100", file.display())).spawn().unwrap();
    let command = pids(&file, 2)[1];
    send(agent.pid(), Signal::TERM);
    assert_eq!(child.wait().unwrap().code(), Some(143));
    assert_eq!(agent.child.wait().unwrap().code(), Some(143));
    assert!(!runs(command));
}

#[test]
fn an_image_without_a_shell_is_named_as_the_reason() {
    let job = Job::new();
    let mut command = std::process::Command::new("unshare");
    job.set_up(&mut command, 0);
    command
        .args(["--mount", "sh", "-c", r#"mount --bind /dev/null /bin/sh && exec "$0" serve"#])
        .arg(job.path("agent"));
    let agent = job.serve_by(command);
    let (status, _, error) = text(&job.rsh(agent.port, "true").output().unwrap());
    assert_eq!(status, Some(255));
    assert!(error.contains("run /bin/sh, which the image must have: Permission denied"), "{error}");
    until("the agent says so", || agent.log().contains("run /bin/sh, which the image must have"));
}
