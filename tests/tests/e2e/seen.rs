//! The commands with which a person watches mounts and tends a cache: `top`, `ui` and `cache`.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use larder_e2e::{Lab, Mount, wait_until};
use larder_testkit::seeded_bytes;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

/// Long enough for everything that ends at all, on the slowest machine.
const NOT_HANGING: Duration = Duration::from_secs(60);

fn unmount(lab: &Lab, mount: Mount) {
    lab.larder_ok(&["umount", mount.dir().to_str().unwrap()]);
    // Dropping it would unmount the next one.
    std::mem::forget(mount);
}

/// The rows of `larder cache ls`.
fn cached(lab: &Lab) -> Vec<Value> {
    let dir = lab.cache_dir("m");
    serde_json::from_str(&lab.larder_ok(&["cache", "ls", "--json", "--cache-dir", dir.to_str().unwrap()])).unwrap()
}

// SEMANTICS: W4
#[test]
fn the_datasets_of_a_cache_are_listed_pinned_and_dropped_while_it_is_served_and_while_it_is_not() {
    let lab = Lab::new();
    lab.put("a", seeded_bytes(1, 100_000));
    lab.put_other("b", seeded_bytes(2, 100_000));
    let dir = lab.cache_dir("m");
    let run = |verb: &str, id: &str| lab.larder(&["cache", verb, id, "--cache-dir", dir.to_str().unwrap()]);
    for is_served in [false, true] {
        let mount = lab.mount("m", &lab.url(), &[]);
        mount.read_fresh("a").unwrap();
        mount.settle();
        let id = cached(&lab)[0]["id"].as_str().unwrap().to_owned();
        let refused = run("rm", &id);
        let words = String::from_utf8_lossy(&refused.stderr).into_owned();
        assert!(refused.status.code() == Some(1) && words.contains("unmount it first"), "{words}");
        // Another mount keeps the process that serves the cache.
        let other = is_served.then(|| {
            let folder = lab.folder().join("mnt-other");
            std::fs::create_dir_all(&folder).unwrap();
            let folder = folder.to_str().unwrap();
            lab.larder_ok(&["mount", &lab.other_url(), folder, "--cache-dir", dir.to_str().unwrap()]);
            Mount::of(folder.into())
        });
        unmount(&lab, mount);

        let row = || cached(&lab).into_iter().find(|row| row["id"] == *id);
        let unused = row().unwrap();
        assert_eq!((&unused["mounted"], &unused["pinned"]), (&false.into(), &false.into()), "{unused}");
        assert!(unused["bytes"].as_u64().unwrap() >= 100_000, "{unused}");
        assert!(run("pin", &id[..8]).status.success());
        assert_eq!(row().unwrap()["pinned"], true);
        assert_eq!(run("rm", &id).status.code(), Some(1), "a pinned dataset is dropped");
        assert!(run("unpin", &id).status.success());
        assert!(run("rm", &id).status.success());
        assert!(row().is_none(), "is_served: {is_served}");
        assert_eq!(run("rm", &id).status.code(), Some(1));
        drop(other);
    }
    // Dropped blocks are fetched again.
    lab.server.reset_counters();
    let mount = lab.mount("m", &lab.url(), &[]);
    assert_eq!(mount.read_fresh("a").unwrap(), seeded_bytes(1, 100_000));
    assert!(lab.server.counters().gets > 0);
}

#[test]
fn a_cache_that_does_not_exist_is_neither_made_nor_listed() {
    let lab = Lab::new();
    let dir = lab.folder().join("no-cache");
    let error = lab.larder_fails(1, &["cache", "ls", "--cache-dir", dir.to_str().unwrap()]);
    assert!(error.contains("there is no cache at") && error.contains("--cache-dir"), "{error}");
    assert!(!dir.exists());
    std::fs::create_dir(&dir).unwrap();
    lab.larder_fails(1, &["cache", "ls", "--cache-dir", dir.to_str().unwrap()]);
    assert_eq!(std::fs::read_dir(&dir).unwrap().count(), 0, "an empty directory becomes no cache");
}

#[test]
fn the_socket_of_a_larderd_is_enough_to_find_its_cache() {
    let lab = Lab::new();
    lab.put("a", seeded_bytes(1, 100_000));
    let mount = lab.mount("m", &lab.url(), &[]);
    // As on a node of Kubernetes, where no cache is at the default place. The sockets of `larder mount` are in its cache.
    let run_dir = lab.cache_dir("m");
    let home = lab.folder().join("no-home");
    let listed = lab
        .command(&["cache", "ls", "--json", "--run-dir", run_dir.to_str().unwrap()])
        .env("LARDER_HOME", &home)
        .output()
        .unwrap();
    let rows: Vec<Value> = serde_json::from_slice(&listed.stdout).unwrap_or_default();
    assert_eq!(rows.len(), 1, "{}", String::from_utf8_lossy(&listed.stderr));
    assert_eq!(rows[0]["mounted"], true);
    drop(mount);
}

// SEMANTICS: W3
#[test]
fn top_prints_a_table_where_there_is_no_terminal() {
    let lab = Lab::new();
    lab.put("a", b"1".to_vec());
    let mount = lab.mount("m", &lab.url(), &[]);
    let text = lab.larder_ok(&["top", "--once"]);
    let end: String =
        mount.dir().to_string_lossy().chars().rev().take(20).collect::<Vec<_>>().into_iter().rev().collect();
    assert!(text.contains("PROMISE") && text.contains(&end), "{text}");
    assert!(!text.contains('\u{1b}'), "{text:?}");
}

// SEMANTICS: W3
#[test]
fn top_gives_the_terminal_back_when_a_signal_ends_it() {
    const RUN: &str = r#"stty -g >before; sh -c 'echo $$ >pid; exec "$LARDER" top'; echo $? >code; stty -g >after"#;
    let lab = Lab::new();
    let (folder, larder) = (lab.folder(), lab.command(&[]).get_program().to_owned());
    for (signal, code) in [(Signal::TERM, "143\n"), (Signal::HUP, "129\n"), (Signal::INT, "130\n")] {
        let mut script = lab.program("script".into(), &["-qc", RUN, "/dev/null"]);
        let script = script.current_dir(folder).env("LARDER", &larder).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut script = script.spawn().expect("script runs");
        let (mut output, mut shown) = (script.stdout.take().unwrap(), Vec::<u8>::new());
        // The alternate screen, for which the modes are set before.
        while !shown.ends_with(b"\x1b[?1049h") {
            let mut byte = [0];
            output.read_exact(&mut byte).unwrap();
            shown.extend(byte);
        }
        let file = |name: &str| std::fs::read_to_string(folder.join(name)).unwrap();
        let pid = Pid::from_raw(file("pid").trim().parse().unwrap()).unwrap();
        kill_process(pid, signal).unwrap();
        output.read_to_end(&mut shown).unwrap();
        script.wait().unwrap();
        assert_eq!(file("code"), code, "{}", String::from_utf8_lossy(&shown));
        assert_eq!(file("before"), file("after"));
        assert!(shown.windows(8).any(|bytes| bytes == b"\x1b[?1049l"));
    }
}

/// A terminal of tmux, in which `larder top` runs.
struct Tmux<'a> {
    lab: &'a Lab,
}

impl<'a> Tmux<'a> {
    fn start(lab: &'a Lab, columns: u16, rows: u16) -> Self {
        let (tmux, larder) = (Self { lab }, lab.command(&[]).get_program().to_str().unwrap().to_owned());
        let run = format!("{larder} top; echo $? >{}", tmux.code().display());
        let (columns, rows) = (columns.to_string(), rows.to_string());
        tmux.run(&["-u", "-f", "/dev/null", "new-session", "-d", "-x", &columns, "-y", &rows, &run]);
        tmux
    }

    fn run(&self, args: &[&str]) -> String {
        let socket = self.lab.folder().join("tmux");
        let args = [&["-S", socket.to_str().unwrap()], args].concat();
        let output = self.lab.program("tmux".into(), &args).output().expect("tmux runs");
        assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    }

    /// The file with the exit status of `larder top`.
    fn code(&self) -> PathBuf {
        self.lab.folder().join("code")
    }

    /// The lines that it shows, once their first one contains `head` and the screen is `columns` wide.
    fn shows(&self, head: &str, columns: usize) -> Vec<String> {
        let mut lines = Vec::new();
        wait_until(&format!("{head:?} on {columns} columns"), || {
            lines = self.run(&["capture-pane", "-p"]).lines().map(str::to_owned).collect();
            let width = self.run(&["display-message", "-p", "#{pane_width}"]);
            lines.first().is_some_and(|first: &String| first.contains(head)) && width.trim() == columns.to_string()
        });
        lines
    }
}

impl Drop for Tmux<'_> {
    fn drop(&mut self) {
        if !self.code().exists() {
            self.run(&["kill-server"]);
        }
    }
}

// SEMANTICS: W3
#[test]
fn top_fits_its_terminal_obeys_keys_and_follows_a_new_size() {
    // Other tests' mounts are on its screen, too.
    let rows_of = |lines: &[String]| {
        let (head, rest) = lines.split_at_checked(3)?;
        let rows: Vec<String> = rest.iter().take_while(|line| !line.is_empty()).cloned().collect();
        // A screen that is half drawn has no sentence yet.
        rest.get(rows.len() + 1).filter(|sentence| !sentence.is_empty())?;
        assert!(head[1].is_empty() && head[2].starts_with("MOUNT"), "{lines:#?}");
        // The rest of a line that was too long would begin in another way.
        let begins = ["/", "…", "and "];
        assert!(rows.iter().all(|row| begins.iter().any(|begin| row.starts_with(begin))), "{lines:#?}");
        Some(rows)
    };
    let lab = Lab::new();
    lab.put("a", b"1".to_vec());
    let mount = lab.mount("m", &lab.url(), &[]);
    let tmux = Tmux::start(&lab, 80, 24);
    wait_until("it shows the mount", || rows_of(&tmux.shows("by waited", 80)).is_some_and(|rows| !rows.is_empty()));

    tmux.run(&["send-keys", "s"]);
    tmux.shows("by read", 80);
    tmux.run(&["resize-window", "-x", "200", "-y", "50"]);
    // The paths are longer where there is room: on the narrow screen they had 14 characters and an ellipsis.
    let is_long = |row: &String| row.split(' ').next().is_some_and(|path| path.chars().count() > 15);
    let has_long = |rows: Vec<String>| rows.iter().any(is_long);
    wait_until("it has the new size", || rows_of(&tmux.shows("by read", 200)).is_some_and(has_long));
    tmux.run(&["send-keys", "q"]);
    wait_until("it ends", || std::fs::read_to_string(tmux.code()).is_ok_and(|code| code == "0\n"));
    drop(mount);
}

/// A running `larder ui`.
struct Page {
    child: Child,
    host: String,
    token: String,
}

impl Page {
    fn open(lab: &Lab) -> Self {
        let mut child = lab.command(&["ui"]).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let address = line.trim().strip_prefix("http://").unwrap_or_else(|| panic!("{line}"));
        let (host, token) = address.split_once("/#").unwrap();
        assert!(host.starts_with("127.0.0.1:") && token.len() == 32, "{line}");
        Self { child, host: host.to_owned(), token: token.to_owned() }
    }

    /// The answer to a request, as a whole.
    fn get(&self, path: &str, host: &str, token: &str) -> String {
        let mut stream = TcpStream::connect(&self.host).unwrap();
        let head =
            format!("GET {path} HTTP/1.1\r\nhost: {host}\r\nx-larder-token: {token}\r\nconnection: close\r\n\r\n");
        stream.write_all(head.as_bytes()).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    }

    fn state(&self) -> Value {
        let answer = self.get("/state?0.0", &self.host, &self.token);
        let body = answer.split_once("\r\n\r\n").unwrap().1;
        serde_json::from_str(body).unwrap_or_else(|error| panic!("{error}: {answer}"))
    }
}

impl Drop for Page {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

// SEMANTICS: W2
#[test]
fn the_page_shows_the_mounts_to_those_who_have_its_token() {
    let lab = Lab::new();
    lab.put("a", seeded_bytes(1, 100_000));
    let mount = lab.mount("m", &lab.url(), &[]);
    mount.read_fresh("a").unwrap();
    let page = Page::open(&lab);
    let started = Instant::now();
    let dir = mount.dir().to_str().unwrap();
    let shown = loop {
        let state = page.state();
        let mounts = state["machine"].as_array().cloned().unwrap_or_default();
        if let Some(mount) = mounts.into_iter().find(|mount| mount["dir"] == dir) {
            break mount;
        }
        assert!(started.elapsed() < NOT_HANGING, "{state:#}");
        std::thread::sleep(Duration::from_millis(50));
    };
    assert_eq!(shown["origin"], lab.url());
    assert!(shown["sentence"].as_str().unwrap().starts_with(dir), "{shown:#}");
    assert!(page.get("/", &page.host, "").contains("<title>Larder</title>"));
    for (host, token) in [(&*page.host, ""), (&*page.host, "0123"), ("evil.example", &*page.token)] {
        let answer = page.get("/state?0.0", host, token);
        assert!(answer.starts_with("HTTP/1.1 403") && !answer.contains(dir), "{host} {token}: {answer}");
    }
    // Connections that ask for nothing take no place from those that ask, and no process keeps them all.
    let idle: Vec<TcpStream> = (0..200).map(|_| TcpStream::connect(&page.host).unwrap()).collect();
    assert!(page.state()["machine"].as_array().unwrap().iter().any(|mount| mount["dir"] == dir));
    let files = std::fs::read_dir(format!("/proc/{}/fd", page.child.id())).unwrap().count();
    assert!(files < idle.len(), "{files} open files");
}

/// The page as Chromium has it once its scripts have run for a while. `None` if it is not installed, which only CI must
/// have.
fn seen_by_a_browser(url: &str, profile: &Path) -> Option<String> {
    let output = Command::new("chromium")
        .args(["--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu", "--no-first-run"])
        .args(["--disable-background-networking", "--disable-component-update", "--disable-sync"])
        .arg(format!("--user-data-dir={}", profile.display()))
        .args(["--virtual-time-budget=8000", "--dump-dom", url])
        .stdin(Stdio::null())
        .output();
    match output {
        Ok(output) => Some(String::from_utf8_lossy(&output.stdout).into_owned()),
        Err(error) => {
            assert!(std::env::var_os("CI").is_none(), "chromium does not run: {error}");
            eprintln!("skipped: chromium is not installed (apt-get install chromium)");
            None
        }
    }
}

// SEMANTICS: W2
#[test]
fn a_browser_shows_the_page_under_its_own_policy() {
    let lab = Lab::new();
    lab.put("a", seeded_bytes(1, 100_000));
    let mount = lab.mount("m", &lab.url(), &[]);
    let page = Page::open(&lab);
    let profile = lab.folder().join("profile");
    let dir = mount.dir().to_str().unwrap();
    let url = |token: &str| format!("http://{}/#{token}", page.host);
    let Some(shown) = seen_by_a_browser(&url(&page.token), &profile) else { return };
    assert!(shown.contains(&format!("<h2>{dir}</h2>")) && shown.contains(&lab.url()), "{shown}");
    assert!(shown.contains("<p id=\"trouble\" role=\"alert\" hidden"), "{shown}");
    let refused = seen_by_a_browser(&url("0123"), &lab.folder().join("other-profile")).unwrap();
    assert!(!refused.contains(dir) && refused.contains("Open the address that `larder ui` printed"), "{refused}");
}

// SEMANTICS: W2
#[test]
fn a_mount_whose_process_is_stopped_does_not_hold_up_the_page() {
    let lab = Lab::new();
    lab.put("a", b"1".to_vec());
    lab.put_other("b", b"2".to_vec());
    let (hung, well) = (lab.mount("hung", &lab.url(), &[]), lab.mount("well", &lab.other_url(), &[]));
    let pid = rustix::process::Pid::from_raw(hung.pid().cast_signed()).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::STOP).unwrap();
    let page = Page::open(&lab);
    let started = Instant::now();
    let errors = loop {
        let state = page.state();
        let mounts = state["machine"].as_array().cloned().unwrap_or_default();
        let of = |mount: &Mount| mounts.iter().find(|shown| shown["dir"] == mount.dir().to_str().unwrap()).cloned();
        if let (Some(hung), Some(well)) = (of(&hung), of(&well)) {
            break [hung["error"].clone(), well["error"].clone()];
        }
        assert!(started.elapsed() < NOT_HANGING, "{state:#}");
        std::thread::sleep(Duration::from_millis(50));
    };
    rustix::process::kill_process(pid, rustix::process::Signal::CONT).unwrap();
    assert!(errors[0].as_str().is_some_and(|error| error.contains("does not answer")), "{errors:?}");
    assert!(errors[1].is_null(), "{errors:?}");
}
