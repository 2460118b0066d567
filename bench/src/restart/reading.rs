//! One reader for each mount.

use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};

use crate::node::Node;
use crate::systems::Stop;
use larder_epochs::epochs::Target;

/// How long a restart may take. One that needs more time is stuck.
const TIMEOUT: Duration = Duration::from_secs(900);

/// The interval at which the node and a stop request are looked at.
const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// The stack of a reader, of which there may be thousands. Its buffer is not on it.
const STACK_BYTES: usize = 128 << 10;

/// Reads each target in a thread of its own. Returns how long after `started` each was there. If that fails, the
/// threads that wait for a mount end with it.
pub(super) fn read_each(
    targets: &[Target],
    started: Instant,
    node: &mut Node,
    stop: &Stop,
) -> anyhow::Result<Vec<Duration>> {
    let (sender, answers) = channel();
    for target in targets {
        let (target, sender) = (target.clone(), sender.clone());
        let reader = move || {
            let read = read(&target).map(|()| started.elapsed());
            // The run may have given up.
            let _ = sender.send(read);
        };
        thread::Builder::new().stack_size(STACK_BYTES).spawn(reader).context("start a reader")?;
    }
    drop(sender);
    let mut times = Vec::with_capacity(targets.len());
    while times.len() < targets.len() {
        match answers.recv_timeout(POLL_INTERVAL) {
            Ok(read) => times.push(read?),
            Err(RecvTimeoutError::Disconnected) => bail!("a reader panicked"),
            Err(RecvTimeoutError::Timeout) => {
                stop.check()?;
                node.larderd()?;
                if started.elapsed() > TIMEOUT {
                    let (answered, all) = (times.len(), targets.len());
                    bail!("{answered} of {all} mounts answer after {} s; {}", TIMEOUT.as_secs(), node.last_words());
                }
            }
        }
    }
    Ok(times)
}

fn read(target: &Target) -> anyhow::Result<()> {
    let path = target.path.display();
    let bytes = std::fs::read(&target.path).with_context(|| format!("read {path}"))?;
    if target.size != Some(bytes.len() as u64) || target.crc32c != Some(larder_dataset::crc32c(&bytes)) {
        bail!("WRONG BYTES: {path}");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_read_with_a_wrong_byte_or_length_is_an_error() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("f");
        let crc32c = Some(larder_dataset::crc32c(b"hello"));
        let target = Target { path: path.clone(), size: Some(5), crc32c };
        std::fs::write(&path, b"hello").unwrap();
        read(&target).unwrap();
        for wrong in [&b"hellO"[..], b"hello!"] {
            std::fs::write(&path, wrong).unwrap();
            assert!(read(&target).unwrap_err().to_string().contains("WRONG BYTES"));
        }
    }
}
