//! A local folder as an origin.
//!
//! Implemented directly over openat2, because a folder can contain entries that an object store cannot: names that are
//! not UTF-8, symbolic links, pipes. [`FolderOrigin`] moves every call off the runtime; `root` opens paths; `list`,
//! `read` and `put` do the work.

mod error;
mod list;
mod put;
mod read;
mod root;
mod stat;
#[cfg(test)]
mod tests;

use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use async_trait::async_trait;
use bytes::Bytes;
use futures::StreamExt;
use futures::stream::BoxStream;

use crate::config::OriginConfig;
use crate::error::OriginError;
use crate::key::Key;
use crate::listing::{Depth, ObjectInfo, Page};
use crate::origin::Origin;
use crate::url::OriginUrl;
use crate::version::Version;
use crate::watch::{self, Attempt};
use put::UnfinishedFile;
use root::Root;

/// An origin that is a folder of this machine.
#[derive(Debug)]
pub(crate) struct FolderOrigin {
    url: OriginUrl,
    root: Arc<Root>,
    deadline: Duration,
}

impl FolderOrigin {
    pub(crate) fn open(url: &OriginUrl, config: &OriginConfig) -> Result<Self, OriginError> {
        let path = url.path().ok_or_else(|| OriginError::Invalid { what: format!("{url} is not a folder") })?;
        Ok(Self { url: url.clone(), root: Arc::new(Root::new(path.to_path_buf())), deadline: config.deadline })
    }

    /// Runs blocking work off the runtime. If a dead network filesystem blocks it, the caller still gets an answer at
    /// the deadline; the blocked thread is abandoned.
    async fn blocking<T: Send + 'static>(
        &self,
        key: &[u8],
        work: impl FnOnce(&Root) -> Result<T, OriginError> + Send + 'static,
    ) -> Result<T, OriginError> {
        let (root, began) = (Arc::clone(&self.root), Instant::now());
        let done = match tokio::time::timeout(self.deadline, tokio::task::spawn_blocking(move || work(&root))).await {
            Ok(Ok(result)) => result,
            Ok(Err(error)) => Err(OriginError::Unavailable { source: Box::new(error) }),
            Err(_) => Err(OriginError::TimedOut { key: Key::from(key), after: self.deadline }),
        };
        let attempt = done.as_ref().err().map_or(Attempt::Answered, Attempt::failed);
        watch::report(|watch| watch.attempted(attempt, began.elapsed()));
        done
    }
}

#[async_trait]
impl Origin for FolderOrigin {
    fn url(&self) -> &OriginUrl {
        &self.url
    }

    async fn list(&self, prefix: &[u8], after: Option<&[u8]>, depth: Depth) -> Result<Page, OriginError> {
        let (folder, after) = (prefix.to_vec(), after.map(<[u8]>::to_vec));
        self.blocking(prefix, move |root| list::list(root, &folder, after.as_deref(), depth)).await
    }

    async fn read(&self, key: &[u8], range: Range<u64>, version: Option<&Version>) -> Result<Bytes, OriginError> {
        let (name, version) = (key.to_vec(), version.cloned());
        self.blocking(key, move |root| read::range(root, &name, range, version.as_ref())).await
    }

    async fn head(&self, key: &[u8]) -> Result<ObjectInfo, OriginError> {
        let name = key.to_vec();
        self.blocking(key, move |root| {
            let (_, metadata) = root.open_file(&name)?;
            Ok(stat::object_info(name, &metadata))
        })
        .await
    }

    async fn read_all(&self, key: &[u8], limit: u64) -> Result<(Bytes, Version), OriginError> {
        let name = key.to_vec();
        self.blocking(key, move |root| read::whole(root, &name, limit)).await
    }

    async fn put(&self, key: &[u8], bytes: Bytes) -> Result<Version, OriginError> {
        self.put_stream(key, futures::stream::iter([Ok(bytes)]).boxed()).await
    }

    async fn put_stream(
        &self,
        key: &[u8],
        mut chunks: BoxStream<'_, Result<Bytes, OriginError>>,
    ) -> Result<Version, OriginError> {
        let name = key.to_vec();
        let mut unfinished = self.blocking(key, move |root| UnfinishedFile::create(root, &name)).await?;
        while let Some(chunk) = chunks.next().await {
            // Returning an error drops the unfinished file, which removes it.
            let chunk = chunk?;
            unfinished = self
                .blocking(key, move |_| {
                    unfinished.write(&chunk)?;
                    Ok(unfinished)
                })
                .await?;
        }
        self.blocking(key, |_| unfinished.finish()).await
    }

    async fn delete(&self, key: &[u8]) -> Result<(), OriginError> {
        let name = key.to_vec();
        self.blocking(key, move |root| put::remove(root, &name)).await
    }
}
