//! Reports device health to the kubelet, which writes it into the status of the pods that hold the devices.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use larder_kubelet::dra_health::{DeviceHealth, DeviceIdentifier, HealthStatus};
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;

use super::devices::offered;
use crate::health::Reason;
use crate::view::View;
use larder_kube::events::within;

/// How often the list is sent again without a change.
const REPEAT: Duration = Duration::from_secs(20);

/// The kubelet treats a device's health as unknown when it was not sent for this long.
const FORGOTTEN: Duration = Duration::from_secs(60);

/// The longest message, in bytes.
const MESSAGE_BYTES: usize = 1024;

/// The health of each device, with a message.
type Known = BTreeMap<String, (HealthStatus, String)>;

/// The health of all devices that are offered through DRA.
fn known(view: &View) -> Known {
    let health = |(name, offered): (String, super::devices::Offered<'_>)| {
        let Some(fault) = view.faults.get(offered.key) else { return (name, (HealthStatus::Healthy, String::new())) };
        // While the driver does not answer, the state of the device is unknown.
        let is_unknown = fault.reason == Reason::DriverSilent;
        let status = if is_unknown { HealthStatus::Unknown } else { HealthStatus::Unhealthy };
        let message = format!("{}; it returns to service once {}", fault.message, fault.recovery);
        (name, (status, within(&message, MESSAGE_BYTES)))
    };
    offered(view).into_iter().map(health).collect()
}

/// One health stream.
#[derive(Debug)]
pub(super) struct Lists {
    pub(super) pool: String,
    pub(super) views: watch::Receiver<Arc<View>>,
    pub(super) stop: CancellationToken,
    /// The last list that was sent, and when.
    pub(super) sent: Option<(Known, Instant)>,
}

impl Lists {
    /// The next list, or `None` at the end.
    pub(super) async fn next(&mut self) -> Option<Vec<DeviceHealth>> {
        loop {
            let known = known(&self.views.borrow_and_update());
            let due = match &self.sent {
                Some((sent, at)) if *sent == known && at.elapsed() < REPEAT => *at + REPEAT,
                _ => {
                    self.sent = Some((known.clone(), Instant::now()));
                    return Some(self.list(known));
                }
            };
            tokio::select! {
                () = self.stop.cancelled() => return None,
                changed = self.views.changed() => changed.ok()?,
                () = sleep_until(due) => {}
            }
        }
    }

    fn list(&self, known: Known) -> Vec<DeviceHealth> {
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs();
        let one = |(device_name, (health, message))| DeviceHealth {
            device: Some(DeviceIdentifier { pool_name: self.pool.clone(), device_name }),
            health: HealthStatus::into(health),
            last_updated_time: now.try_into().unwrap_or_default(),
            health_check_timeout_seconds: FORGOTTEN.as_secs().try_into().unwrap_or_default(),
            message,
        };
        known.into_iter().map(one).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Mode;
    use crate::health::Fault;
    use crate::node::samples;

    fn view(reason: Option<Reason>) -> Arc<View> {
        let mut resources = samples::view().resources.to_vec();
        resources[0].config.mode = Mode::Dra;
        let (message, recovery) = ("Xid 79".to_owned(), "it is reset".to_owned());
        let fault = |reason| Fault { reason, message, since: SystemTime::UNIX_EPOCH, recovery };
        let faults = reason.map(|reason| (samples::gpu(1), fault(reason))).into_iter().collect();
        Arc::new(View { resources: resources.into(), faults: Arc::new(faults), ..samples::view() })
    }

    #[tokio::test(start_paused = true)]
    async fn dra_devices_are_sent_after_a_change_and_every_twenty_seconds() {
        let views = watch::Sender::new(view(None));
        let stop = CancellationToken::new();
        let mut lists = Lists { pool: "n1".into(), views: views.subscribe(), stop: stop.clone(), sent: None };
        let told = |list: Vec<DeviceHealth>| -> Vec<String> {
            let one = |device: &DeviceHealth| {
                assert_eq!((device.health_check_timeout_seconds, device.last_updated_time > 0), (60, true));
                let id = device.device.clone().unwrap();
                format!("{}/{} {:?} {}", id.pool_name, id.device_name, device.health(), device.message)
            };
            list.iter().map(one).collect()
        };
        let begin = Instant::now();
        let well = ["n1/gpu-0 Healthy ", "n1/gpu-1 Healthy "];
        assert_eq!(told(lists.next().await.unwrap()), well);
        views.send_replace(view(Some(Reason::GpuFault)));
        let ill = "n1/gpu-1 Unhealthy Xid 79; it returns to service once it is reset";
        assert_eq!(told(lists.next().await.unwrap()), [well[0], ill]);
        assert_eq!(begin.elapsed(), Duration::ZERO);
        views.send_modify(|_| {});
        assert_eq!(told(lists.next().await.unwrap()), [well[0], ill]);
        assert_eq!(begin.elapsed(), REPEAT);
        views.send_replace(view(Some(Reason::DriverSilent)));
        assert_eq!(told(lists.next().await.unwrap())[1], ill.replace("Unhealthy", "Unknown"));
        stop.cancel();
        assert_eq!(lists.next().await, None);
    }
}
