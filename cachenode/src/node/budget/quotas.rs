//! The room that the quota of a namespace leaves to a dataset that the namespace pays for.

use larder_store::{DatasetInfo, Quota};

use super::limit::Limit;
use super::{Budget, Promises, is_shown, promised_bytes};

impl Budget<'_> {
    /// True if a quota limits what a namespace reserves.
    pub(super) fn has_quota(&self, namespace: &str) -> bool {
        self.store.quotas().iter().any(|quota| quota.reserved_bytes.is_some() && quota.is_for(namespace))
    }

    /// Bytes on the disk that the quotas of a namespace leave to a dataset beside the other datasets that they count:
    /// those that are open or promised room. With what limits them. The dataset keeps at least what it has. `None`: no
    /// quota limits them.
    pub(super) fn left_by_quotas<'d>(
        &self,
        payer: &str,
        own: Option<&'d DatasetInfo>,
        others: impl Iterator<Item = &'d DatasetInfo> + Clone,
    ) -> Option<(u64, Limit)> {
        let kept = own.map_or(0, |own| if is_shown(own) { promised_bytes(own) } else { own.promised_disk_bytes });
        let left = |quota: &Quota| {
            let limit_bytes = quota.reserved_bytes?;
            let counted = others.clone().filter(|info| quota.is_for(&info.payer));
            let reserved_bytes = Promises::beside(own, counted);
            let left = limit_bytes.saturating_sub(reserved_bytes).max(kept);
            Some((left, Limit::Quota { reserved_bytes, limit_bytes }))
        };
        let quotas = self.store.quotas();
        quotas.iter().filter(|quota| quota.is_for(payer)).filter_map(left).min_by_key(|(left, _)| *left)
    }
}
