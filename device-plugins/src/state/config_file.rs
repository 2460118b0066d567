//! Watches the configuration's file by reading it every few seconds.
//!
//! A ConfigMap's mount changes by a swapped link, other mounts by other means, and an edited file piece by piece: the text
//! itself is the same for all of them, no change is missed, and the kubelet takes a minute to bring one anyhow.

use std::path::{Path, PathBuf};
use std::time::Duration;

use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use super::Event;
use crate::config::{self, Config};

/// How often the file is read.
pub const INTERVAL: Duration = Duration::from_secs(5);

/// Sends an [`Event::Config`] whenever the file's text is another than before; `text` is that of the configuration in force. An
/// error of `parse` names the file and the line. Ends when `stop` is cancelled or nobody takes events.
pub async fn watch(
    path: PathBuf,
    text: String,
    parse: fn(&Path, &str) -> Result<Config, String>,
    events: mpsc::Sender<Event>,
    stop: CancellationToken,
) {
    let mut before = Ok(text);
    loop {
        tokio::select! {
            () = stop.cancelled() => return,
            () = tokio::time::sleep(INTERVAL) => {}
        }
        let read = read(&path).await;
        if read == before {
            continue;
        }
        let config = read.as_ref().map_err(String::clone).and_then(|text| parse(&path, text));
        before = read;
        if events.send(Event::Config(config)).await.is_err() {
            return;
        }
    }
}

/// The text of the file, or why it cannot be read.
async fn read(path: &Path) -> Result<String, String> {
    let path = path.to_owned();
    let read = tokio::task::spawn_blocking(move || config::read(&path).map_err(|error| error.to_string()));
    read.await.unwrap_or_else(|error| Err(error.to_string()))
}
