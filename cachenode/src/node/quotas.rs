//! The limits of namespaces on this node: quotas.

use std::sync::Arc;

use larder_store::Quota;

use super::Node;
use super::error::NodeError;
use crate::request::PodVolume;

impl Node {
    /// Replaces the quotas. Mounts, room and imports beyond a new quota stay until they end. Errors: the quotas cannot
    /// be written down, so a later process does not know them.
    pub async fn set_quotas(self: &Arc<Self>, quotas: Vec<Quota>) -> Result<(), NodeError> {
        self.config.importer.limit(&quotas);
        let node = Arc::clone(self);
        Ok(tokio::task::spawn_blocking(move || node.store.set_quotas(quotas)).await??)
    }

    /// Checks that a pod may have one more volume. Errors: `Quota`.
    pub fn admit(&self, pod: &PodVolume) -> Result<(), NodeError> {
        let PodVolume { namespace, volumes } = pod;
        for quota in self.store.quotas().iter().filter(|quota| quota.is_for(namespace)) {
            let Some(limit) = quota.mounts else { continue };
            let counted = volumes.iter().filter(|(of, _)| quota.is_for(of)).map(|(_, count)| *count);
            let used = counted.fold(0, u32::saturating_add);
            if used >= limit {
                return Err(NodeError::Quota {
                    namespace: namespace.clone(),
                    quota: quota.name.clone(),
                    uses: format!("has {used} of {limit} mounts"),
                    advice: "end another pod or ask an administrator for more",
                });
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use larder_origin::OriginConfig;

    use super::*;
    use crate::home::Home;
    use crate::importing::Importer;
    use crate::node::{ErrorKind, NodeConfig};

    fn node(folder: &std::path::Path) -> Arc<Node> {
        Node::open(NodeConfig {
            cache_dir: folder.join("cache"),
            more_cache_dirs: Vec::new(),
            cache_bytes: Some(1 << 20),
            keep_free_percent: 0,
            home: Home::new(folder.join("home")),
            origin: OriginConfig::default(),
            importer: Importer::Here,
            peers: None,
            memory: Arc::default(),
            socket: None,
        })
        .unwrap()
    }

    fn quota(name: &str, namespaces: &[&str], mounts: Option<u32>) -> Quota {
        let namespaces = namespaces.iter().map(|&it| it.into()).collect();
        Quota { name: name.into(), namespaces, mounts, ..Quota::default() }
    }

    /// The refusal of one more volume of this namespace, beside these.
    fn refused(node: &Node, namespace: &str, volumes: &[(&str, u32)]) -> Option<String> {
        let volumes = volumes.iter().map(|&(name, count)| (name.to_owned(), count)).collect();
        let error = node.admit(&PodVolume { namespace: namespace.into(), volumes }).err()?;
        assert_eq!(error.kind(), ErrorKind::NoRoom);
        Some(error.to_string())
    }

    // SEMANTICS: K22
    #[tokio::test]
    async fn a_volume_beyond_the_quota_of_its_namespace_is_refused_in_words_that_name_no_other() {
        let folder = tempfile::tempdir().unwrap();
        let mut now = node(folder.path());
        assert_eq!(refused(&now, "team-a", &[("team-a", 1000)]), None, "there is no quota");
        let quotas = vec![
            quota("research", &["team-a", "team-b"], Some(3)),
            quota("none", &["team-c"], None),
            quota("closed", &["team-d"], Some(0)),
        ];
        now.set_quotas(quotas).await.unwrap();
        for restart in [false, true] {
            if restart {
                now.close().await.unwrap();
                drop(now);
                now = node(folder.path());
            }
            assert_eq!(refused(&now, "team-a", &[("team-a", 2), ("team-c", 9)]), None);
            let words = "the namespace team-a (CacheQuota research) has 3 of 3 mounts on this node; end another pod or \
                         ask an administrator for more";
            assert_eq!(refused(&now, "team-a", &[("team-a", 1), ("team-b", 2)]).as_deref(), Some(words));
            assert_eq!(refused(&now, "team-c", &[("team-c", 1000)]), None);
            assert!(refused(&now, "team-d", &[]).unwrap().contains("0 of 0 mounts"));
            assert_eq!(refused(&now, "", &[("team-a", 9)]), None, "not a pod's, or it is unknown whose");
        }
        // Lowered below what there is, and raised.
        for (mounts, is_refused) in [(1, true), (3, true), (4, false)] {
            now.set_quotas(vec![quota("research", &["team-a"], Some(mounts))]).await.unwrap();
            let words = refused(&now, "team-a", &[("team-a", 3)]);
            assert_eq!(words.is_some(), is_refused, "{mounts}");
            assert!(words.is_none_or(|words| words.contains(&format!("has 3 of {mounts} mounts"))));
        }
    }
}
