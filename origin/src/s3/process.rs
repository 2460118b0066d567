//! Keys from a program, the `credential_process` of a profile. It runs without a shell, for a bounded time, and its
//! errors are not shown: they may contain keys. Nothing that it starts in its process group outlives it.

use std::fmt;
use std::io::{self, Read};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use chrono::{DateTime, Utc};
use object_store::aws::AwsCredential;
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process_group, waitid};

use crate::keys::{Exchange, Fresh, SessionError};

/// How long the program may take. Some wait for a person, though not at the terminal: that belongs to the process group
/// of this program.
const LIMIT: Duration = Duration::from_secs(60);

/// The longest output that is read.
const OUTPUT_BYTES: u64 = 64 << 10;

const LOOK_EVERY: Duration = Duration::from_millis(20);

/// A program that prints keys.
#[derive(Clone)]
pub(crate) struct CredentialProcess {
    pub(crate) profile: String,
    /// The program and its arguments, at least one word.
    pub(crate) words: Vec<String>,
}

impl fmt::Debug for CredentialProcess {
    /// Without its arguments, which may be secrets.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CredentialProcess").field("profile", &self.profile).finish_non_exhaustive()
    }
}

#[async_trait]
impl Exchange for CredentialProcess {
    async fn obtain(&self) -> Result<Fresh, SessionError> {
        let failed = |what: &str| SessionError::failed(self.said(what));
        let program = self.clone();
        let ran = tokio::task::spawn_blocking(move || program.run(LIMIT)).await;
        let output = ran.unwrap_or_else(|error| Err(SessionError::failed_by(self.said("was not run"), error)))?;
        let printed = serde_json::from_slice::<serde_json::Value>(&output).unwrap_or_default();
        let text = |name: &str| printed.get(name).and_then(|value| value.as_str()).map(str::to_owned);
        let (1, Some(key_id), Some(secret_key)) =
            (printed["Version"].as_u64().unwrap_or_default(), text("AccessKeyId"), text("SecretAccessKey"))
        else {
            return Err(failed("printed no keys: JSON with Version 1, AccessKeyId and SecretAccessKey"));
        };
        let end = text("Expiration").map(|end| DateTime::parse_from_rfc3339(&end)).transpose();
        let end = end.map_err(|_| failed("printed an Expiration that is not a time"))?;
        let now = DateTime::<Utc>::from(std::time::SystemTime::now());
        let left = end.map(|end| end.with_timezone(&Utc).signed_duration_since(now));
        let credential = AwsCredential { key_id, secret_key, token: text("SessionToken") };
        Fresh::new(credential, left).map_err(|what| SessionError::failed(self.said(&what)))
    }
}

impl CredentialProcess {
    fn said(&self, what: &str) -> String {
        format!("credential_process of the profile {:?} {what}", self.profile)
    }

    /// Runs the program and returns its output.
    fn run(&self, limit: Duration) -> Result<Vec<u8>, SessionError> {
        let failed = |what: &str| SessionError::failed(self.said(what));
        let cannot = |error: io::Error| SessionError::failed_by(self.said("cannot be run"), error);
        let (program, arguments) = self.words.split_first().ok_or_else(|| failed("is empty"))?;
        let mut command = Command::new(program);
        command.args(arguments).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null()).process_group(0);
        let mut child = command.spawn().map_err(cannot)?;
        let printed = output(&mut child, limit);
        // What it has left running would be one process more with each attempt. The group still has its number, because
        // the program has not been waited for.
        let _ = kill_process_group(Pid::from_child(&child), Signal::KILL);
        let status = child.wait().map_err(cannot)?;
        match printed.map_err(cannot)? {
            Some(bytes) if bytes.len() as u64 > OUTPUT_BYTES => {
                Err(failed(&format!("printed more than {OUTPUT_BYTES} bytes")))
            }
            Some(bytes) if status.success() => Ok(bytes),
            Some(_) => Err(failed(&format!("failed ({status}): run it by hand to see why"))),
            None => Err(failed(&format!("did not end within {limit:?}"))),
        }
    }
}

/// The output of a program until it ends, or until it is too long; `None` if the program does not end within `limit`.
/// Does not wait for the end of the output: processes that the program leaves may keep it open.
fn output(child: &mut Child, limit: Duration) -> io::Result<Option<Vec<u8>>> {
    let (started, mut bytes) = (Instant::now(), Vec::new());
    let Some(out) = child.stdout.take() else { return Ok(Some(bytes)) };
    rustix::io::ioctl_fionbio(&out, true)?;
    let mut out = out.take(OUTPUT_BYTES + 1);
    loop {
        // Before the read: a program that has ended prints no more.
        let status = waitid(
            WaitId::Pid(Pid::from_child(child)),
            WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT,
        )?;
        match out.read_to_end(&mut bytes) {
            Err(error) if error.kind() != io::ErrorKind::WouldBlock => return Err(error),
            Ok(_) | Err(_) if status.is_some() || bytes.len() as u64 > OUTPUT_BYTES => return Ok(Some(bytes)),
            Ok(_) | Err(_) if started.elapsed() >= limit => return Ok(None),
            Ok(_) | Err(_) => std::thread::sleep(LOOK_EVERY),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::error::Error;

    use super::*;

    fn shell(script: &str) -> CredentialProcess {
        let words = ["sh", "-c", script].map(str::to_owned).to_vec();
        CredentialProcess { profile: "p".to_owned(), words }
    }

    #[tokio::test]
    async fn printed_keys_are_used_and_anything_else_is_refused_without_a_word_of_it() {
        let keys = r#"{"Version": 1, "AccessKeyId": "A", "SecretAccessKey": "hunter2", "SessionToken": "T"}"#;
        let fresh = shell(&format!("echo '{keys}'")).obtain().await.unwrap_or_else(|error| panic!("{error}"));
        let (credential, _) = fresh.into_parts();
        assert_eq!((credential.key_id.as_str(), credential.secret_key.as_str()), ("A", "hunter2"));
        assert_eq!(credential.token.as_deref(), Some("T"));
        let expired = keys.replace("}", r#", "Expiration": "2001-01-01T00:00:00Z"}"#);
        for (script, words) in [
            (format!("echo '{expired}'"), "expire within 1s"),
            (format!("echo '{}'", expired.replace("2001-01-01T00:00:00Z", "hunter2")), "not a time"),
            ("echo hunter2".to_owned(), "printed no keys"),
            (format!("echo '{}'", keys.replace(": 1", ": 2")), "printed no keys"),
            (format!("echo '{keys}'; echo hunter2 >&2; exit 3"), "run it by hand"),
            ("head -c 100000 /dev/zero".to_owned(), "more than 65536 bytes"),
        ] {
            let error = shell(&script).obtain().await.err().unwrap().to_string();
            assert!(error.contains(words) && error.contains("\"p\"") && !error.contains("hunter2"), "{error}");
        }
        assert!(!format!("{:?}", shell("hunter2")).contains("hunter2"));
    }

    #[test]
    fn a_program_that_does_not_end_is_ended() {
        for script in ["sleep 600", "exec >&-; sleep 600"] {
            let error = shell(script).run(Duration::from_millis(50)).unwrap_err().to_string();
            assert!(error.contains("did not end"), "{script}: {error}");
        }
        let missing = CredentialProcess { words: vec!["/nonexistent/program".to_owned()], ..shell("") };
        let error = missing.run(LIMIT).unwrap_err();
        assert!(error.to_string().contains("cannot be run") && error.source().is_some(), "{error:?}");
    }

    #[test]
    fn a_program_that_leaves_another_with_its_output_open_is_not_waited_for_and_the_other_is_ended() {
        let printed = shell("sleep 600 & echo $!").run(LIMIT).expect("the output");
        let left: u32 = String::from_utf8(printed).expect("text").trim().parse().expect("a number");
        // Nobody may have waited for it yet.
        let is_running = || {
            let stat = std::fs::read_to_string(format!("/proc/{left}/stat"));
            stat.is_ok_and(|stat| !stat.contains(") Z "))
        };
        let ended = (0..1000).any(|_| {
            std::thread::sleep(Duration::from_millis(10));
            !is_running()
        });
        assert!(ended, "process {left} is still running");
    }
}
