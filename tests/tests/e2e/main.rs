//! The scenarios, one module each: real binaries, real mounts, real servers.
//!
//! All are one program, since linking takes longer than compiling. nextest runs each test in a process of its own, so
//! tests share nothing but the machine.
#![expect(clippy::unwrap_used, reason = "this is test code: a panic is how it fails")]

mod architecture;
mod bench;
mod bench_node;
mod bench_sim;
mod charts;
mod clouds;
mod cold;
mod command;
mod csi;
mod day;
mod disk_faults;
mod documents;
mod first_hour;
mod floods;
mod freshness;
mod handover;
mod identity;
mod imports;
mod keys;
mod kubernetes;
mod kubernetes_charts;
mod kubernetes_datasets;
mod kubernetes_devices;
mod kubernetes_identity;
mod kubernetes_jobs;
mod kubernetes_kueue;
mod kubernetes_scheduler;
mod kubernetes_serving;
mod kubernetes_sharing;
mod kubernetes_tenants;
mod kubernetes_warming;
mod links;
mod lists;
mod main_job;
mod memory;
mod nodes;
mod old_cache;
mod origin_faults;
mod overlays;
mod ownership;
mod passthrough;
mod peers;
mod plans;
mod property;
mod read_only;
mod reservations;
mod restart;
mod secrets;
mod service;
mod serving;
mod smallest;
mod snapshots;
mod starts;
mod streams;
mod symlinks;
mod takeover;
mod tenants;
mod tensors;
mod trees;
mod walks;
