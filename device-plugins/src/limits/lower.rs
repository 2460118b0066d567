//! The annotation by which a pod requests lower limits: `hca_handle=1 hca_object=500 memlock=1Gi`.

use std::str::FromStr;

use larder_dataset::size::parse_bytes;

/// The lower limits that a pod requests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LowerLimits {
    /// Handles of each of its HCAs.
    pub hca_handles: Option<u32>,
    /// Objects of each of its HCAs.
    pub hca_objects: Option<u32>,
    /// Bytes that each process may lock.
    pub memlock: Option<u64>,
}

/// The annotation is malformed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not one of hca_handle=N, hca_object=N and memlock=BYTES (such as 1Gi), or is repeated")]
pub struct Unreadable(String);

impl FromStr for LowerLimits {
    type Err = Unreadable;

    fn from_str(text: &str) -> Result<Self, Unreadable> {
        let mut limits = Self::default();
        for word in text.split_ascii_whitespace() {
            limits.add(word).ok_or_else(|| Unreadable(word.chars().take(100).collect()))?;
        }
        Ok(limits)
    }
}

impl LowerLimits {
    fn add(&mut self, word: &str) -> Option<()> {
        let (name, value) = word.split_once('=')?;
        let is_new = match name {
            "hca_handle" => self.hca_handles.replace(number(value)?.try_into().ok()?).is_none(),
            "hca_object" => self.hca_objects.replace(number(value)?.try_into().ok()?).is_none(),
            "memlock" => self.memlock.replace(parse_bytes(value).ok()?).is_none(),
            _ => false,
        };
        is_new.then_some(())
    }
}

fn number(text: &str) -> Option<u64> {
    text.bytes().all(|digit| digit.is_ascii_digit()).then(|| text.parse().ok()).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    // SEMANTICS: D21
    #[test]
    fn an_annotation_has_any_of_three_numbers() {
        let limits = LowerLimits { hca_handles: Some(1), hca_objects: Some(500), memlock: Some(1 << 30) };
        assert_eq!("hca_handle=1 hca_object=500 memlock=1Gi".parse(), Ok(limits));
        assert_eq!(" memlock=1024Mi\n hca_object=500  hca_handle=1 ".parse(), Ok(limits));
        assert_eq!("".parse(), Ok(LowerLimits::default()));
        assert_eq!("memlock=4096".parse::<LowerLimits>().unwrap().memlock, Some(4096));
        assert_eq!("memlock=2Ti".parse::<LowerLimits>().unwrap().memlock, Some(2 << 40));
        assert_eq!("memlock=2TiB".parse::<LowerLimits>().unwrap().memlock, Some(2 << 40));
        for wrong in [
            "hca_handle",
            "hca_handle=",
            "hca_handle=max",
            "hca_handle=-1",
            "hca_handle=1 hca_handle=1",
            "hca_handle=4294967296",
            "hca_handles=1",
            "memlock=Gi",
            "memlock=unlimited",
            "memlock=16777216Ti",
            "hca_handle=1,hca_object=2",
        ] {
            assert!(wrong.parse::<LowerLimits>().is_err(), "{wrong}");
        }
        let error = "hca_handle=1 hca_objekt=2".parse::<LowerLimits>().unwrap_err().to_string();
        assert!(error.starts_with("\"hca_objekt=2\" is not one of"), "{error}");
    }
}
