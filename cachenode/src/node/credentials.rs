//! The node's own credentials, where they are files: they are read again when they change.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tracing::{info, warn};

use super::Node;

/// Interval between two looks at the files.
const LOOK_EVERY: Duration = Duration::from_secs(5);

impl Node {
    /// Changes when the node's own credentials have changed. [`Node::renew`] then makes open datasets use them.
    pub fn own_credentials(&self) -> watch::Receiver<()> {
        self.own_credentials.subscribe()
    }

    /// Uses the files of the node's own credentials as they are, until [`Self::stopping`] is cancelled. While the
    /// folder cannot be read, which is logged once, the former ones stay in use.
    pub(super) async fn follow_credentials(self: &Arc<Self>) {
        let mut reported = String::new();
        while self.stopping.run_until_cancelled(tokio::time::sleep(LOOK_EVERY)).await.is_some() {
            let own = self.finder.own_variables();
            if !own.has_folder() {
                return;
            }
            // The runtime is shutting down: it drops blocking tasks that have not started.
            let Ok(read) = tokio::task::spawn_blocking(move || own.reread()).await else { return };
            match read {
                Ok(None) => reported.clear(),
                Ok(Some(env)) => {
                    info!(?env, "reloaded the node's own credentials");
                    env.warn_of_left_out();
                    self.finder.set_own_variables(env);
                    self.own_credentials.send_replace(());
                    reported.clear();
                }
                Err(error) => {
                    let error = error.to_string();
                    if error != reported {
                        warn!(error, "cannot read the node's own credentials; the former ones stay in use");
                    }
                    reported = error;
                }
            }
        }
    }
}
