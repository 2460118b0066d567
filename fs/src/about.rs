//! The files below `.larder`, generated on demand. They can be opened by name but are not listed in the root, so a
//! loader that walks the dataset does not find them.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use crate::inode::About;
use larder_cachenode::dataset::Dataset;

/// The text is padded with spaces to a multiple of this many bytes, so that its size rarely changes between a stat and
/// a read.
const PAD_BYTES: usize = 4096;

/// How long a text is reused, so that a reader that reads in pieces gets one version.
const FRESH: Duration = Duration::from_millis(50);

/// The text of a file at one moment.
#[derive(Clone, Debug)]
pub(crate) struct Text {
    pub(crate) bytes: std::sync::Arc<[u8]>,
    /// When the text was generated; shown as the file's modification time.
    pub(crate) made: SystemTime,
}

/// Generates and caches the texts.
#[derive(Debug, Default)]
pub(crate) struct AboutFiles {
    stats: Mutex<Option<(Instant, Text)>>,
}

impl AboutFiles {
    /// The current text of a file, for a stat. `None` for the folder.
    pub(crate) fn refresh(&self, file: About, dataset: &Dataset) -> Option<Text> {
        match file {
            About::Folder => None,
            About::Manifest => Some(text(dataset.describe(), SystemTime::UNIX_EPOCH)),
            About::Stats => {
                let mut kept = self.stats.lock().unwrap_or_else(PoisonError::into_inner);
                if let Some((at, text)) = &*kept
                    && at.elapsed() < FRESH
                {
                    return Some(text.clone());
                }
                let made = text(serde_json::to_value(dataset.stats()).unwrap_or_default(), SystemTime::now());
                *kept = Some((Instant::now(), made.clone()));
                Some(made)
            }
        }
    }

    /// Makes the next stat generate a new text even if the last one is recent.
    pub(crate) fn forget_stats(&self) {
        *self.stats.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }

    /// The text that the last stat showed. The read that follows the stat gets the same text.
    pub(crate) fn shown(&self, file: About, dataset: &Dataset) -> Option<Text> {
        if file == About::Stats {
            let kept = self.stats.lock().unwrap_or_else(PoisonError::into_inner);
            if let Some((_, text)) = &*kept {
                return Some(text.clone());
            }
        }
        self.refresh(file, dataset)
    }
}

fn text(value: serde_json::Value, made: SystemTime) -> Text {
    let mut bytes = format!("{value:#}\n").into_bytes();
    let padded = bytes.len().next_multiple_of(PAD_BYTES);
    // The last line ends with a newline; the padding comes before it.
    bytes.pop();
    bytes.resize(padded - 1, b' ');
    bytes.push(b'\n');
    Text { bytes: bytes.into(), made }
}
