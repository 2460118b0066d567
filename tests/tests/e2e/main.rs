//! The scenarios, one module each: real binaries, real mounts, real servers.
//!
//! All are one program, since linking takes longer than compiling. nextest runs each test in a process of its own, so
//! tests share nothing but the machine.
#![expect(clippy::unwrap_used, reason = "this is test code: a panic is how it fails")]

mod architecture;
mod bench;
mod bench_sim;
mod cold;
mod command;
mod csi;
mod disk_faults;
mod documents;
mod handover;
mod keys;
mod kubernetes;
mod kubernetes_sharing;
mod main_job;
mod nodes;
mod old_cache;
mod origin_faults;
mod peers;
mod property;
mod read_only;
mod reservations;
mod restart;
mod secrets;
mod takeover;
mod tenants;
mod trees;
