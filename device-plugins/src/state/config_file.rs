//! Watches the configuration file by reading it every few seconds.
//!
//! A ConfigMap's mount changes by a swapped link, other mounts change in other ways, and an editor writes a file in pieces.
//! Comparing the text works for all of them and misses no change. The kubelet takes a minute to deliver a change anyway.

use std::path::{Path, PathBuf};
use std::time::Duration;

use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use super::Event;
use crate::config::{self, Config, ConfigError};

/// How often the file is read.
pub const INTERVAL: Duration = Duration::from_secs(5);

/// Sends an [`Event::Config`] whenever the file's text has changed; `text` is that of the configuration in force. Returns when `stop`
/// is cancelled or the receiver of events is gone.
pub async fn watch(
    path: PathBuf,
    text: String,
    parse: fn(&Path, &str) -> Result<Config, ConfigError>,
    events: mpsc::Sender<Event>,
    stop: CancellationToken,
) {
    let mut before = Ok(text);
    loop {
        tokio::select! {
            () = stop.cancelled() => return,
            () = tokio::time::sleep(INTERVAL) => {}
        }
        let (config, seen) = match read(&path).await {
            Ok(text) => (parse(&path, &text), Ok(text)),
            Err(error) => {
                let seen = error.to_string();
                (Err(error), Err(seen))
            }
        };
        if seen == before {
            continue;
        }
        before = seen;
        if events.send(Event::Config(config)).await.is_err() {
            return;
        }
    }
}

async fn read(path: &Path) -> Result<String, ConfigError> {
    let (file, path) = (path.display().to_string(), path.to_owned());
    let read = tokio::task::spawn_blocking(move || config::read(&path)).await;
    read.unwrap_or_else(|error| Err(ConfigError::Read { file, source: std::io::Error::other(error) }))
}
