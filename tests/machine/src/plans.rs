//! The fake machines that tests share.

use super::plan::{GpuPlan, HcaPlan, MachinePlan, PcieSlot};

impl MachinePlan {
    /// Eight GPUs and eight InfiniBand HCAs on two NUMA nodes: eight switches, each on its own root complex, with one
    /// GPU and one HCA below each switch.
    pub fn eight_pairs() -> Self {
        let slot = |nth: u8, device: u8| {
            let root = 0x10 * (nth + 1);
            PcieSlot::on_switch(root, 1, root + 1, device, i32::from(nth / 4))
        };
        Self {
            gpus: (0..8).map(|nth| GpuPlan::h100(nth.into(), slot(nth, 0))).collect(),
            hcas: (0..8).map(|nth| HcaPlan::infiniband(nth.into(), slot(nth, 1))).collect(),
            ..Self::default()
        }
    }

    /// RoCE beside InfiniBand: four switches on two NUMA nodes, each with a GPU and an InfiniBand HCA, and on each NUMA
    /// node a RoCE card on a root port, away from all GPUs.
    pub fn roce_beside_infiniband() -> Self {
        let numa = |nth: u8| i32::from(nth / 2);
        let slot = |nth: u8, device: u8| {
            let root = 0x10 * (nth + 1);
            PcieSlot::on_switch(root, 1, root + 1, device, numa(nth))
        };
        let mut hcas: Vec<HcaPlan> = (0..4).map(|nth| HcaPlan::infiniband(nth.into(), slot(nth, 1))).collect();
        hcas.push(HcaPlan::roce(4, PcieSlot::on_root_port(0x80, 1, 0x81, 0), "ens1np0"));
        hcas.push(HcaPlan::roce(5, PcieSlot::on_root_port(0xa0, 1, 0xa1, 1), "ens2np0"));
        let gpus = (0..4).map(|nth| GpuPlan::h100(nth.into(), slot(nth, 0))).collect();
        Self { gpus, hcas, ..Self::default() }
    }

    /// A switch with three HCAs and a GPU, and a switch with only a GPU on the same root complex.
    pub fn three_hcas_on_a_switch() -> Self {
        let first = |device: u8| PcieSlot::on_switch(0x10, 1, 0x11, device, 0);
        let second = PcieSlot::on_switch(0x10, 2, 0x21, 0, 0);
        Self {
            gpus: vec![GpuPlan::h100(0, first(0)), GpuPlan::h100(1, second)],
            hcas: (0..3).map(|nth| HcaPlan::infiniband(nth, first(nth as u8 + 1))).collect(),
            ..Self::default()
        }
    }

    /// A switch with a GPU and a RoCE card. The card has four virtual functions, each a separate HCA.
    pub fn virtual_functions() -> Self {
        let slot = |device: u8| PcieSlot::on_switch(0x10, 1, 0x11, device, 0);
        let card = slot(1);
        let mut physical = HcaPlan::roce(0, card.clone(), "ens1f0np0");
        let mut hcas: Vec<HcaPlan> = (1..5_u8)
            .map(|nth| HcaPlan {
                device: "101e".to_owned(),
                physical_function: Some(card.pci.clone()),
                ..HcaPlan::roce(nth.into(), card.function(nth), &format!("ens1f0v{}", nth - 1))
            })
            .collect();
        physical.virtual_functions = hcas.iter().map(|hca| hca.slot.pci.clone()).collect();
        hcas.insert(0, physical);
        Self { gpus: vec![GpuPlan::h100(0, slot(0))], hcas, ..Self::default() }
    }

    /// A machine without GPUs and HCAs, and without the sysfs class of HCAs.
    pub fn none() -> Self {
        Self::default()
    }
}
