//! Waits until the agents of all hosts answer, so that a launcher starts when every name resolves and every pod runs.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::{Duration, Instant};

use crate::connect::connect;
use crate::resolver;
use crate::settings::Settings;
use crate::wire::Wire;

/// Why the wait ended before all hosts answered.
#[derive(Debug, thiserror::Error)]
pub(crate) enum WaitError {
    #[error("read the hosts {path}: {source}")]
    Hosts { path: PathBuf, source: std::io::Error },
    #[error(
        "gave up after {} s (LARDER_AGENT_WAIT_SECONDS): {missing}. Look at those pods, and at policies that keep this one from their port {port}",
        time.as_secs()
    )]
    Late { time: Duration, missing: String, port: u16 },
}

/// The limit of concurrent connection attempts.
const AT_ONCE: usize = 64;
/// The interval between two attempts to reach a host.
const PAUSE: Duration = Duration::from_secs(1);
/// The interval between two progress lines.
const REPORT: Duration = Duration::from_secs(10);
/// The most hosts that one progress line names.
const NAMED: usize = 5;

/// Returns once the agent of every listed host has answered.
pub(crate) fn wait(settings: &Settings, path: &Path) -> Result<(), WaitError> {
    let text = std::fs::read_to_string(path).map_err(|source| WaitError::Hosts { path: path.to_owned(), source })?;
    resolver::choose_sources();
    let hosts = text.lines().map(str::trim).filter(|host| !host.is_empty());
    let mut missing: Missing<'_> = hosts.map(|host| (host, "not asked yet".to_owned())).collect();
    let count = missing.len();
    let start = Instant::now();
    let mut reported = start;
    loop {
        ask(settings, start, &mut missing, |missing| {
            if reported.elapsed() >= REPORT && !missing.is_empty() {
                reported = Instant::now();
                eprintln!("larder-agent: waiting for {} of {count} hosts: {}", missing.len(), name_some(missing));
            }
        });
        if missing.is_empty() {
            eprintln!("larder-agent: {count} of {count} hosts answer");
            return Ok(());
        }
        if start.elapsed() + PAUSE >= settings.wait {
            let missing = format!("{} of {count} hosts do not answer: {}", missing.len(), name_some(&missing));
            return Err(WaitError::Late { time: settings.wait, missing, port: settings.port });
        }
        std::thread::sleep(PAUSE);
    }
}

/// The hosts that have not answered, each with the most recent reason.
type Missing<'a> = BTreeMap<&'a str, String>;

/// Contacts every missing host once, unless the time is over. Calls `look` from time to time.
fn ask(settings: &Settings, start: Instant, missing: &mut Missing<'_>, mut look: impl FnMut(&Missing<'_>)) {
    let hosts: Vec<&str> = missing.keys().copied().collect();
    let next = AtomicUsize::new(0);
    let (answers, answered) = mpsc::channel();
    std::thread::scope(|scope| {
        for _ in 0..hosts.len().min(AT_ONCE) {
            let (answers, hosts, next) = (answers.clone(), &hosts, &next);
            scope.spawn(move || {
                while let Some(host) = hosts.get(next.fetch_add(1, Ordering::Relaxed)) {
                    if start.elapsed() >= settings.wait {
                        return;
                    }
                    // The receiver lives until the end of this scope, so sending cannot fail.
                    let _ = answers.send((*host, connect(settings, host).map(Wire::finish)));
                }
            });
        }
        drop(answers);
        loop {
            match answered.recv_timeout(PAUSE) {
                Ok((host, Ok(()))) => drop(missing.remove(host)),
                Ok((host, Err(error))) => drop(missing.insert(host, error.to_string())),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => break,
            }
            look(missing);
        }
    });
    look(missing);
}

fn name_some(missing: &Missing<'_>) -> String {
    let named: Vec<String> = missing.iter().take(NAMED).map(|(host, why)| format!("{host}: {why}")).collect();
    let more = missing.len().saturating_sub(NAMED);
    if more > 0 { format!("{}; and {more} more", named.join("; ")) } else { named.join("; ") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_names_some_hosts_with_their_reasons() {
        let missing: Missing<'_> = ["a", "b"].map(|host| (host, "refused".to_owned())).into();
        assert_eq!(name_some(&missing), "a: refused; b: refused");
        let hosts: Vec<String> = (0..7).map(|index| format!("w-{index}")).collect();
        let missing: Missing<'_> = hosts.iter().map(|host| (host.as_str(), "late".to_owned())).collect();
        assert!(name_some(&missing).ends_with("w-4: late; and 2 more"), "{}", name_some(&missing));
    }
}
