//! The Secrets and tokens with which targets were published last. The kubelet repeats each publish about once a minute;
//! only one with another Secret or token has anything to do.

use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use larder_csi_api::csi;

use crate::attributes::EPHEMERAL;
use crate::json_dir::hex_hash;
use crate::pod_identity::{TOKENS, tokens};

/// Hashes of what was given for each target. In memory only: after a restart, nothing is known to have changed.
#[derive(Debug, Default)]
pub(crate) struct Given(Mutex<HashMap<PathBuf, String>>);

impl Given {
    fn lock(&self) -> MutexGuard<'_, HashMap<PathBuf, String>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The hash for a target, if it is known.
    pub(crate) fn before(&self, target: &Path) -> Option<String> {
        self.lock().get(target).cloned()
    }

    pub(crate) fn note(&self, target: &Path, given: Option<String>) {
        match given {
            Some(given) => drop(self.lock().insert(target.to_owned(), given)),
            None => self.forget(target),
        }
    }

    pub(crate) fn forget(&self, target: &Path) {
        self.lock().remove(target);
    }
}

/// True for a volume that is read with the pod's identity.
pub(crate) fn has_pod_identity(request: &csi::NodePublishVolumeRequest) -> bool {
    has(request, "identity", "pod")
}

fn has(request: &csi::NodePublishVolumeRequest, name: &str, value: &str) -> bool {
    request.volume_context.get(name).is_some_and(|found| found == value)
}

/// A hash of the Secret of a request, and of its tokens if its volume uses them. `None` if it has neither, and for the
/// Secret of a pod author, which had to be good when the pod started and is used for nothing else.
pub(crate) fn given(request: &csi::NodePublishVolumeRequest) -> Option<String> {
    let is_of_pod = has_pod_identity(request);
    let secrets: BTreeMap<_, _> = request.secrets.iter().filter(|(key, _)| *key != TOKENS).collect();
    if !is_of_pod && (secrets.is_empty() || has(request, EPHEMERAL, "true")) {
        return None;
    }
    let all = serde_json::json!([secrets, is_of_pod.then(|| tokens(request))]);
    Some(hex_hash(all.to_string().as_bytes()))
}
