//! GPUs and HCAs for pods: `larder-devices` on two real kubelets that align devices to NUMA nodes. The hardware is fake; its
//! device nodes are real ones, which no driver serves: opening one fails with ENXIO, and with EPERM where a cgroup forbids it.

mod aligned;
mod dra;
mod faults;
mod figures;
mod limits;
mod restarts;
mod rights;
