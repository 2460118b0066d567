//! The quotas of a node: the limits that namespaces share. The store keeps them, so that a process that reaches no API
//! server enforces the last known ones.
//!
//! ```text
//!  the file `quotas`, see `standing`, with the magic LARDERQT
//!  a quota: length u16 and text of the name, namespaces u16, the same of each,
//!           limits u8 (1: reserved bytes, 2: mounts, 4: imports), reserved bytes u64, mounts u32, imports u32
//! ```

use crate::standing::{Entry, Standing, put_text, take, take_text};

/// The limits that some namespaces share on this node. Where a limit is missing there is none.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Quota {
    /// The name of the CacheQuota.
    pub name: String,
    /// The namespaces.
    pub namespaces: Vec<String>,
    /// Disk bytes that their datasets may have together, promised or open.
    pub reserved_bytes: Option<u64>,
    /// Volumes that their pods may have together.
    pub mounts: Option<u32>,
    /// Imports of theirs that may run at once.
    pub imports: Option<u32>,
}

impl Quota {
    /// True if the namespace is one of those that share the quota.
    pub fn is_for(&self, namespace: &str) -> bool {
        self.namespaces.iter().any(|name| name == namespace)
    }
}

/// The quotas in force: in memory, and in the file `quotas` of the folder.
pub(crate) type Quotas = Standing<Quota>;

impl Entry for Quota {
    const MAGIC: [u8; 8] = *b"LARDERQT";
    const VERSION: u8 = 1;
    const NAME: &'static str = "quotas";

    fn encode(&self, file: &mut Vec<u8>) {
        put_text(file, &self.name);
        let namespaces = &self.namespaces[..self.namespaces.len().min(u16::MAX.into())];
        file.extend((namespaces.len() as u16).to_le_bytes());
        namespaces.iter().for_each(|namespace| put_text(file, namespace));
        let limits = [self.reserved_bytes.is_some(), self.mounts.is_some(), self.imports.is_some()];
        file.push(limits.iter().rev().fold(0, |bits, is_there| bits << 1 | u8::from(*is_there)));
        file.extend(self.reserved_bytes.unwrap_or(0).to_le_bytes());
        file.extend(self.mounts.unwrap_or(0).to_le_bytes());
        file.extend(self.imports.unwrap_or(0).to_le_bytes());
    }

    fn decode(version: u8, rest: &mut &[u8]) -> Option<Self> {
        if version != Self::VERSION {
            return None;
        }
        let name = take_text(rest)?;
        let count = u16::from_le_bytes(*take(rest)?);
        let namespaces = (0..count).map(|_| take_text(rest)).collect::<Option<_>>()?;
        let [limits] = *take::<1>(rest)?;
        let reserved_bytes = u64::from_le_bytes(*take(rest)?);
        let (mounts, imports) = (u32::from_le_bytes(*take(rest)?), u32::from_le_bytes(*take(rest)?));
        Some(Self {
            name,
            namespaces,
            reserved_bytes: (limits & 1 != 0).then_some(reserved_bytes),
            mounts: (limits & 2 != 0).then_some(mounts),
            imports: (limits & 4 != 0).then_some(imports),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::standing::{assert_no_damage_decodes, decode, encode};

    fn quota() -> Quota {
        Quota {
            name: "research".into(),
            namespaces: vec!["team-a".into(), "team-b".into()],
            reserved_bytes: Some(1 << 40),
            mounts: None,
            imports: Some(2),
        }
    }

    #[test]
    fn the_file_is_still_written_and_read_as_version_1() {
        let mut golden = b"LARDERQT\x01\x01\0\0\0\x08\0research\x02\0\x06\0team-a\x06\0team-b\x05".to_vec();
        golden.extend(b"\0\0\0\0\0\x01\0\0\0\0\0\0\x02\0\0\0");
        golden.extend(larder_dataset::crc32c(&golden).to_le_bytes());
        assert_eq!(encode(&[quota()]), golden);
        assert_eq!(decode(&golden), Some(vec![quota()]));
    }

    #[test]
    fn damaged_bytes_decode_to_nothing_and_never_panic() {
        assert_no_damage_decodes(&[quota(), Quota { mounts: Some(0), ..Quota::default() }]);
    }

    #[test]
    fn quotas_that_cannot_be_written_count_and_are_written_once_that_works() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("quotas");
        let quotas = Quotas::load(file.clone());
        assert_eq!(quotas.all(), [], "a folder of a version without quotas");
        // A folder blocks the path of the temporary file, so the write fails.
        std::fs::create_dir(folder.path().join("quotas.new")).unwrap();
        quotas.impose(vec![quota()]).unwrap_err();
        assert_eq!((quotas.all(), Quotas::load(file.clone()).all()), (vec![quota()], vec![]));
        std::fs::remove_dir(folder.path().join("quotas.new")).unwrap();
        quotas.impose(vec![quota()]).unwrap();
        assert_eq!(Quotas::load(file).all(), [quota()]);
        let without_folder = Quotas::default();
        without_folder.impose(vec![quota()]).unwrap_err();
        assert_eq!(without_folder.all(), [quota()]);
    }
}
