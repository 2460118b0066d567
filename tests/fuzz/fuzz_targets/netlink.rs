//! Reads bytes as the kernel's answer to the question for the mode of RDMA.
//!
//! Invariant under test: no panic; a mode is told only by an answer that is as long as it says, and long enough to hold one.
#![no_main]
#![expect(dead_code, reason = "the target calls a part of what it includes")]

// Included rather than linked: the program's crate would compile kube and tonic, with the fuzzer's flags.
#[path = "../../../device-plugins/src/machine"]
mod machine {
    mod hca;
    mod place;
    pub use hca::RdmaMode;
    pub use place::{PciAddress, Place};
}
#[path = "../../../device-plugins/src/inventory/netlink/message.rs"]
mod message;

use libfuzzer_sys::fuzz_target;
use machine::RdmaMode;

fuzz_target!(|data: &[u8]| {
    let Ok(mode) = message::decode(data) else { return };
    assert_ne!(mode, RdmaMode::None);
    let length = u32::from_ne_bytes([data[0], data[1], data[2], data[3]]) as usize;
    assert!((21..=data.len()).contains(&length));
    // What follows the message says nothing about it.
    assert_eq!(message::decode(&data[..length]).ok(), Some(mode));
});
