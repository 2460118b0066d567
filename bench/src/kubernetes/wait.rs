//! Waiting for the cluster.

use std::time::{Duration, Instant};

use anyhow::bail;

use super::running::Running;
use crate::systems::Stop;

/// How often what is waited for is looked at.
const LOOK: Duration = Duration::from_millis(50);

/// Waits until `done`. Fails after `limit`, on Ctrl-C, and if the controller ends.
pub(crate) async fn until(
    stop: &Stop,
    what: &str,
    limit: Duration,
    mut controller: Option<&mut Running>,
    done: impl Fn() -> bool,
) -> anyhow::Result<()> {
    let started = Instant::now();
    while !done() {
        stop.check()?;
        if let Some(controller) = &mut controller {
            controller.check()?;
        }
        if started.elapsed() > limit {
            bail!("waited {} s in vain until {what}", limit.as_secs());
        }
        tokio::time::sleep(LOOK).await;
    }
    Ok(())
}
