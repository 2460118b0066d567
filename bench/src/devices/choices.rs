//! The preferred allocation of 8 of 16 GPUs, computed within this process.

use std::fmt;
use std::time::Instant;

use anyhow::Context;
use larder_devices::config::Config;
use larder_devices::machine::{Gpu, Machine, Place};
use larder_devices::prefer::choose;
use larder_devices::resource::assign;
use larder_fake_machine::GpuPlan;
use serde::Serialize;

use super::hardware::{PAIRS, plan};
use larder_epochs::figures::Latencies;

/// Number of GPUs to choose.
const CHOSEN: usize = 8;

/// How the GPUs are linked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Links {
    /// NVSwitch: each GPU is linked to all others.
    Switch,
    /// A mesh: each GPU is linked to four others, to one of them twice.
    Mesh,
    /// No links: the GPUs differ only in their position on PCIe.
    None,
}

impl Links {
    const ALL: [Self; 3] = [Self::Switch, Self::Mesh, Self::None];

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Switch => "NVSwitch",
            Self::Mesh => "an NVLink mesh",
            Self::None => "PCIe alone",
        }
    }

    /// The number of links between two GPUs.
    fn between(self, one: usize, other: usize) -> u32 {
        match self {
            Self::Switch => 18,
            Self::Mesh if (one ^ other) == 1 => 2,
            Self::Mesh => u32::from((one ^ other).is_power_of_two()),
            Self::None => 0,
        }
    }
}

/// The times of the choices in one round.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct ChoiceRow {
    pub round: u32,
    /// How the GPUs are linked.
    pub links: Links,
    /// The time of each choice.
    pub times: Latencies,
}

impl fmt::Display for ChoiceRow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "8 of 16 GPUs, {}: {}", self.links.name(), self.times.milliseconds())
    }
}

pub(super) fn measure(round: u32, calls: u32) -> anyhow::Result<Vec<ChoiceRow>> {
    let config = Config::parse("the resources", "resources: [{name: larder.dev/gpu, kind: gpu}]\n")?;
    Links::ALL
        .into_iter()
        .map(|links| {
            let machine = machine(links)?;
            let resource = assign(&machine, &config).resources.pop().context("the machine has GPUs")?;
            let available: Vec<String> = machine.gpus.iter().map(|gpu| gpu.uuid.clone()).collect();
            let mut times = Vec::new();
            for _ in 0..calls {
                let begun = Instant::now();
                let chosen = choose(&machine, &resource, &available, &[], CHOSEN);
                times.push(begun.elapsed());
                anyhow::ensure!(chosen.len() == CHOSEN, "{} of {CHOSEN} GPUs were chosen", chosen.len());
            }
            Ok(ChoiceRow { round, links, times: Latencies::of(times.into_iter()) })
        })
        .collect()
}

/// The machine of [`plan`] with these links.
fn machine(links: Links) -> anyhow::Result<Machine> {
    let plan = plan();
    let uuid = |gpu: usize| plan.gpus[gpu].uuid.clone();
    let gpu = |(nth, GpuPlan { slot, .. }): (usize, &GpuPlan)| {
        let nvlinks = (0..usize::from(PAIRS)).filter(|&other| other != nth);
        let nvlinks = nvlinks.map(|other| (uuid(other), links.between(nth, other))).filter(|(_, links)| *links > 0);
        let place = Place {
            pci: slot.pci.parse()?,
            root: slot.root.clone(),
            bridges: slot.bridges.iter().map(|bridge| bridge.parse()).collect::<Result<_, _>>()?,
            numa: u32::try_from(slot.numa).ok(),
        };
        Ok(Gpu { uuid: uuid(nth), place, nvlinks: nvlinks.collect(), ..Gpu::default() })
    };
    let gpus: anyhow::Result<Vec<Gpu>> = plan.gpus.iter().enumerate().map(gpu).collect();
    Ok(Machine { gpus: gpus?, ..Machine::default() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_of_link_is_measured_on_sixteen_gpus() {
        let rows = measure(1, 2).unwrap();
        assert_eq!(
            rows.iter().map(|row| (row.links, row.times.count)).collect::<Vec<_>>(),
            Links::ALL.map(|links| (links, 2))
        );
        let links = |of| machine(of).unwrap().gpus[5].nvlinks.values().sum::<u32>();
        assert_eq!(Links::ALL.map(links), [18 * 15, 5, 0]);
    }
}
