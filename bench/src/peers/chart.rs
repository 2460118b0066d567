//! The figures as bars: files per second with the largest number of readers, cold, warm and hot.

use super::outcome::{PeersOutcome, RAW};
use crate::side_by_side::State;
use larder_epochs::plot::{Bar, Bars, Group};

impl PeersOutcome {
    /// A group of bars for each state, with a bar for each system measured in that state.
    pub fn bars(&self) -> Bars {
        let most = self.most_readers();
        let systems = self.systems.iter().filter(|system| system.name != RAW);
        let names: Vec<String> = systems.map(|system| system.name.clone()).collect();
        let groups = State::ALL.map(|state| Group {
            name: state.name().to_owned(),
            bars: names
                .iter()
                .map(|name| {
                    let spread = self.spread(name, state, most, |one| one.epoch.files_per_second)?;
                    Some(Bar { value: spread.median, low: spread.min, high: spread.max })
                })
                .collect(),
        });
        Bars { title: format!("Files a second, {most} readers"), y: "files/s".to_owned(), names, groups: groups.into() }
    }
}

#[cfg(test)]
mod tests {
    use crate::peers::table::tests::outcome;

    #[test]
    fn every_system_has_a_bar_in_every_state() {
        let bars = outcome().bars();
        assert_eq!(bars.names, ["ext4", "larder", "s3fs", "rclone tuned"]);
        assert_eq!(bars.groups.len(), 3);
        let larder = bars.groups[0].bars[1].as_ref().unwrap();
        assert!((larder.value - 1200.0).abs() < 1e-6 && (larder.high - 2400.0).abs() < 1e-6);
    }
}
