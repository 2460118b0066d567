//! Counts an origin's objects with a listing whose entries are dropped. An import takes at least as long.

use std::sync::Arc;

use larder_origin::Origin;

use crate::journal::PageRecord;
use crate::listing::{self, LinkObjects, ListError, PageOwner, Walk};

/// The totals of a listing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counted {
    /// The number of objects.
    pub keys: u64,
    /// The sum of their sizes in bytes.
    pub bytes: u64,
    /// The number of LIST calls.
    pub list_requests: u64,
}

/// Lists `origin` like an import, with at most `concurrency` concurrent calls, and counts the objects. Cancel-safe.
/// Errors: a call fails permanently, or the listing is inconsistent.
pub async fn count(origin: Arc<dyn Origin>, concurrency: usize) -> Result<Counted, ListError> {
    let mut owner = Counting { walk: Walk::new(origin.url().scheme()), counted: Counted::default() };
    let mut list_requests = 0;
    listing::drive(&origin, &mut owner, LinkObjects::AreFiles, concurrency, &mut list_requests).await?;
    Ok(Counted { list_requests, ..owner.counted })
}

struct Counting {
    walk: Walk,
    counted: Counted,
}

impl PageOwner for Counting {
    type Error = ListError;

    fn walk(&mut self) -> &mut Walk {
        &mut self.walk
    }

    async fn take(&mut self, mut page: PageRecord) -> Result<(), ListError> {
        self.walk.accept(&mut page)?;
        self.counted.keys += page.files.len() as u64;
        self.counted.bytes = page.files.iter().fold(self.counted.bytes, |sum, file| sum.saturating_add(file.size));
        Ok(())
    }
}
