//! Reads bytes as an ioctl about a plan: its number in the first byte, its data behind it.
//!
//! Invariant under test: no panic; what is decoded keeps within its limits, and what can be encoded is decoded again.
#![no_main]
#![expect(dead_code, reason = "the target calls a part of what it includes")]

// Included rather than linked: the engine's crate would compile RocksDB, with the fuzzer's flags.
#[path = "../../../cachenode/src/plan/command.rs"]
mod command;

use command::{
    AT_IOCTL, CLOSE_IOCTL, Command, ITEMS_BYTES, Items, OPEN_IOCTL, PART_BYTES, PATHS_IOCTL, RANGES_IOCTL, ROWS_IOCTL,
    SHORT_BYTES, encode_at,
};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let Some((&number, data)) = data.split_first() else { return };
    let ioctls = [OPEN_IOCTL, ROWS_IOCTL, PATHS_IOCTL, RANGES_IOCTL, AT_IOCTL, CLOSE_IOCTL];
    let ioctl = ioctls[usize::from(number) % ioctls.len()];
    decoded(ioctl, data);
    // As the kernel passes it: with the size that its number says.
    let mut sized = data.to_vec();
    sized.resize((ioctl >> 16 & 0x3fff) as usize, 0);
    assert!(sized.len() == SHORT_BYTES || sized.len() == PART_BYTES);
    decoded(ioctl, &sized);
});

fn decoded(ioctl: u32, data: &[u8]) {
    let Some(Ok(command)) = Command::decode(ioctl, data) else { return };
    assert_eq!(command.id().0, data[..16]);
    match &command {
        Command::Open(open) => {
            assert_eq!(Command::decode(OPEN_IOCTL, &open.encode()), Some(Ok(command)));
        }
        Command::Put(put, items) => {
            assert!(put.position.checked_add(items.len() as u64).is_some());
            assert!(items.len() <= ITEMS_BYTES);
            if let Items::Paths(paths) = items {
                assert!(paths.iter().all(|path| !path.contains(&0)));
                let mut joined = paths.join(&0);
                if !paths.is_empty() {
                    joined.push(0);
                }
                assert_eq!(Command::decode(PATHS_IOCTL, &put.encode_paths(&joined)[..]), Some(Ok(command.clone())));
            }
        }
        &Command::At { id, passed } => {
            assert_eq!(Command::decode(AT_IOCTL, &encode_at(id, passed)), Some(Ok(command)));
        }
        Command::Close { id } => {
            assert_eq!(Command::decode(CLOSE_IOCTL, &encode_at(*id, 0)), Some(Ok(command)));
        }
    }
}
