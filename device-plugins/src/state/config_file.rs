//! Watches the configuration's file by reading it every few seconds.
//!
//! A ConfigMap's mount changes by a swapped link, other mounts by other means, and an edited file piece by piece: the text
//! itself is the same for all of them, no change is missed, and the kubelet takes a minute to bring one anyhow.

use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::time::Duration;

use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use super::Event;
use crate::config::Config;

/// How often the file is read.
pub const INTERVAL: Duration = Duration::from_secs(5);

/// The largest file that is read.
pub const LARGEST: u64 = 1 << 20;

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

/// The text of the file, or why it cannot be read. In one piece, off the runtime's threads: it wakes one other thread, once.
async fn read(path: &Path) -> Result<String, String> {
    let file = path.to_owned();
    let read = tokio::task::spawn_blocking(move || read_now(&file)).await;
    read.unwrap_or_else(|panic| Err(io::Error::other(panic))).map_err(|error| format!("{}: {error}", path.display()))
}

fn read_now(path: &Path) -> io::Result<String> {
    let mut text = String::new();
    let bytes = File::open(path)?.take(LARGEST + 1).read_to_string(&mut text)?;
    if bytes as u64 > LARGEST {
        return Err(io::Error::other(format!("it is larger than {LARGEST} bytes")));
    }
    Ok(text)
}
