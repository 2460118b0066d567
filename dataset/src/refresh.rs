//! When the origin of a dataset must be listed again.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::size::{exact_duration, parse_duration};

/// A listing that is further than this in the future was made with a wrong clock, so its age is unknown.
const CLOCK_SKEW: Duration = Duration::from_secs(300);

/// When the origin of a dataset must be listed again before it is mounted.
///
/// ```
/// use larder_dataset::Refresh;
///
/// let second = 1_000_000_000;
/// let refresh: Refresh = "1h".parse()?;
/// assert!(!refresh.is_due(0, 3599 * second));
/// assert!(refresh.is_due(0, 3601 * second));
/// # Ok::<(), larder_dataset::InvalidRefresh>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Refresh {
    /// The existing listing is used at any age.
    #[default]
    Never,
    /// The origin is listed before each mount.
    Always,
    /// The origin is listed if the listing is older than this.
    After(Duration),
}

impl Refresh {
    /// True if a listing made at `listed_ns` must be renewed at `now_ns`. Both are nanoseconds since the epoch.
    pub fn is_due(self, listed_ns: i64, now_ns: i64) -> bool {
        let age_ns = i128::from(now_ns) - i128::from(listed_ns);
        match self {
            Self::Never => false,
            Self::Always => true,
            Self::After(most) => {
                age_ns > most.as_nanos().cast_signed() || age_ns < -CLOCK_SKEW.as_nanos().cast_signed()
            }
        }
    }
}

impl fmt::Display for Refresh {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Never => f.pad("never"),
            Self::Always => f.pad("always"),
            Self::After(most) => f.pad(&exact_duration(*most)),
        }
    }
}

/// Text that is not a valid refresh setting.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{text:?} is neither always, never, nor an age with its unit (ms, s, m, h or d): write for example 24h for a day, \
     or 7d for a week"
)]
pub struct InvalidRefresh {
    text: String,
}

impl FromStr for Refresh {
    type Err = InvalidRefresh;

    fn from_str(text: &str) -> Result<Self, InvalidRefresh> {
        match text {
            "never" => Ok(Self::Never),
            "always" => Ok(Self::Always),
            // A number without a unit would count as seconds, but its author more likely means hours. It is rejected.
            age if !age.ends_with(|last: char| last.is_ascii_digit()) => {
                parse_duration(age).map(Self::After).map_err(|_| InvalidRefresh { text: text.to_owned() })
            }
            _ => Err(InvalidRefresh { text: text.to_owned() }),
        }
    }
}

impl Serialize for Refresh {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Refresh {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refresh_is_read_as_it_was_written() {
        for text in ["never", "always", "24h", "90m", "61s", "1500ms"] {
            let refresh: Refresh = text.parse().unwrap();
            assert_eq!(refresh.to_string(), text);
            let json = serde_json::to_string(&refresh).unwrap();
            assert_eq!(serde_json::from_str::<Refresh>(&json).unwrap(), refresh);
        }
        assert_eq!("7d".parse::<Refresh>().unwrap().to_string(), "168h");
        for text in ["", "often", "0h", "-1h", "1 day", "24", "0"] {
            let error = text.parse::<Refresh>().unwrap_err().to_string();
            assert!(error.contains("unit") && error.contains("24h") && error.contains("always"), "{error}");
        }
    }

    #[test]
    fn a_listing_is_due_when_it_is_older_than_accepted_or_its_clock_was_wrong() {
        let hour = 3600 * 1_000_000_000_i64;
        let day = Refresh::After(Duration::from_secs(24 * 3600));
        for (age, due) in [(0, false), (hour, false), (24 * hour, false), (25 * hour, true), (-1, false), (-hour, true)]
        {
            assert_eq!(day.is_due(100 * hour, 100 * hour + age), due, "{age}");
        }
        assert!(Refresh::Always.is_due(0, 0) && !Refresh::Never.is_due(i64::MIN, i64::MAX));
        assert!(day.is_due(i64::MIN, i64::MAX), "no overflow");
    }
}
