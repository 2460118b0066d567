//! Sizes and durations as users write them: `64MiB`, `111KB`, `2.5GiB`, `1000`, also `64Mi` as in Kubernetes; `250ms`,
//! `60s`, `2m`, `24h`, `7d`.

use std::time::Duration;

const UNITS: [(&str, u64); 10] = [
    ("KiB", 1 << 10),
    ("MiB", 1 << 20),
    ("GiB", 1 << 30),
    ("TiB", 1 << 40),
    ("KB", 1_000),
    ("MB", 1_000_000),
    ("GB", 1_000_000_000),
    ("TB", 1_000_000_000_000),
    ("B", 1),
    ("", 1),
];

/// Parses a number of bytes. The error lists the accepted forms.
pub fn parse_bytes(text: &str) -> Result<u64, String> {
    let accepted = || {
        format!(
            "`{text}` is not a size; write for example 64MiB, 100GiB, 111KB or 1048576 (B, KB, MB, GB and TB are \
             powers of 1000, KiB, MiB, GiB and TiB of 1024)"
        )
    };
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let unit = text[digits.len()..].trim();
    // Kubernetes leaves out the B, and an m is a thousandth there.
    let is_unit = |name: &str| {
        name.eq_ignore_ascii_case(unit)
            || unit != "m" && name.len() > 1 && name[..name.len() - 1].eq_ignore_ascii_case(unit)
    };
    let (_, factor) = UNITS.iter().find(|(name, _)| is_unit(name)).ok_or_else(accepted)?;
    let digits = digits.trim();
    if let Ok(whole) = digits.parse::<u64>() {
        return whole.checked_mul(*factor).ok_or_else(accepted);
    }
    let number: f64 = digits.parse().map_err(|_| accepted())?;
    let bytes = number * *factor as f64;
    if number.is_finite() && (0.0..9e18).contains(&bytes) && digits.starts_with(|c: char| c.is_ascii_digit()) {
        Ok(bytes as u64)
    } else {
        Err(accepted())
    }
}

/// The lowest rate that [`parse_rate`] accepts. At a lower one, a block of 4 MiB would take a good part of the time
/// that a read may wait.
const RATE_LEAST: u64 = 1 << 20;

/// Parses a number of bytes per second: a size, with or without `/s`. The error lists the accepted forms, or says that
/// the rate is too low.
pub fn parse_rate(text: &str) -> Result<u64, String> {
    let bytes = parse_bytes(text.strip_suffix("/s").unwrap_or(text))?;
    if bytes < RATE_LEAST {
        return Err(format!("`{text}` is less than {}/s, at which reads would time out", exact_bytes(RATE_LEAST)));
    }
    Ok(bytes)
}

/// Formats a number of bytes such that [`parse_bytes`] returns exactly the same number: `100GiB`, `1536KiB`, `1001`.
pub fn exact_bytes(bytes: u64) -> String {
    let binary = UNITS[..4].iter().rev().find(|(_, factor)| bytes != 0 && bytes.is_multiple_of(*factor));
    binary.map_or_else(|| bytes.to_string(), |(unit, factor)| format!("{}{unit}", bytes / factor))
}

/// Serde functions for an optional size as text.
pub mod optional {
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    /// Serializes the size with [`super::exact_bytes`].
    pub fn serialize<S: Serializer>(bytes: &Option<u64>, serializer: S) -> Result<S::Ok, S::Error> {
        bytes.map(super::exact_bytes).serialize(serializer)
    }

    /// Deserializes the size with [`super::parse_bytes`].
    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<u64>, D::Error> {
        let text = Option::<String>::deserialize(deserializer)?;
        text.map(|text| super::parse_bytes(&text)).transpose().map_err(serde::de::Error::custom)
    }
}

/// Parses a duration. A number without a unit counts as seconds. The error lists the accepted forms.
pub fn parse_duration(text: &str) -> Result<Duration, String> {
    let accepted = || format!("`{text}` is not a time; write for example 250ms, 60s, 2m, 24h or 7d");
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let number: u64 = digits.parse().map_err(|_| accepted())?;
    let ms = match &text[digits.len()..] {
        "ms" => 1,
        "s" | "" => 1_000,
        "m" => 60_000,
        "h" => 3_600_000,
        "d" => 86_400_000,
        _ => return Err(accepted()),
    };
    match number.checked_mul(ms) {
        Some(ms) if ms > 0 => Ok(Duration::from_millis(ms)),
        _ => Err(accepted()),
    }
}

/// Formats a duration of whole milliseconds such that [`parse_duration`] returns exactly the same: `24h`, `90m`,
/// `1500ms`.
pub fn exact_duration(time: Duration) -> String {
    let ms = time.as_millis();
    let units = [("h", 3_600_000), ("m", 60_000), ("s", 1_000)];
    let whole = units.iter().find(|(_, factor)| ms != 0 && ms.is_multiple_of(*factor));
    whole.map_or_else(|| format!("{ms}ms"), |(unit, factor)| format!("{}{unit}", ms / factor))
}

/// Formats a duration for people, rounded: `5 minutes`, `3 days`.
pub fn show_duration(time: Duration) -> String {
    let seconds = time.as_secs();
    let (count, unit) = match seconds {
        0..60 => (seconds, "second"),
        60..3_600 => (seconds / 60, "minute"),
        3_600..86_400 => (seconds / 3_600, "hour"),
        _ => (seconds / 86_400, "day"),
    };
    format!("{count} {unit}{}", if count == 1 { "" } else { "s" })
}

/// Formats a number of bytes for people, rounded, in the units of the flags' examples: `1.5 MiB`. [`parse_bytes`]
/// accepts the result.
pub fn show_bytes(bytes: u64) -> String {
    let shown = |(unit, factor): &(&str, u64)| {
        let tenths = (u128::from(bytes) * 10 + u128::from(factor / 2)) / u128::from(*factor);
        // What rounds to 1024.0 is shown in the next unit.
        (tenths < 10_240 || *unit == "TiB").then(|| format!("{}.{} {unit}", tenths / 10, tenths % 10))
    };
    match bytes {
        0..1_024 => format!("{bytes} B"),
        _ => UNITS[..4].iter().find_map(shown).unwrap_or_else(|| format!("{bytes} B")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_as_written() {
        for (text, bytes) in [
            ("0", 0),
            ("64MiB", 64 << 20),
            ("111KB", 111_000),
            ("2.5GiB", 5 << 29),
            ("100 gib", 100 << 30),
            ("7B", 7),
            ("64Gi", 64 << 30),
            ("512Mi", 512 << 20),
            ("1.5Ti", 3 << 39),
            ("500M", 500_000_000),
        ] {
            assert_eq!(parse_bytes(text), Ok(bytes), "{text}");
        }
    }

    #[test]
    fn a_rate_is_a_size_each_second_and_not_too_low() {
        assert_eq!((parse_rate("1GiB/s"), parse_rate("100MB")), (Ok(1 << 30), Ok(100_000_000)));
        assert!(parse_rate("1GiB/h").unwrap_err().contains("100GiB"));
        for low in ["0", "100KB/s", "1"] {
            assert!(parse_rate(low).unwrap_err().contains("less than 1MiB/s"), "{low}");
        }
    }

    #[test]
    fn nonsense_sizes_are_refused_with_an_example() {
        for text in ["", "MiB", "-1", "1XB", "nan", "inf", "99999999TiB", "1e3x", "0x10", "1,5MB", "500m", "7BB", "Gi"]
        {
            let error = parse_bytes(text).unwrap_err();
            assert!(error.contains("100GiB"), "{text}: {error}");
        }
    }

    #[test]
    fn an_exact_size_is_read_as_the_same_number() {
        for (bytes, text) in [(0, "0"), (1, "1"), (1001, "1001"), (1536 << 10, "1536KiB"), (100 << 30, "100GiB")] {
            assert_eq!(exact_bytes(bytes), text);
            assert_eq!(parse_bytes(text), Ok(bytes));
        }
        assert_eq!(parse_bytes(&exact_bytes(u64::MAX)), Ok(u64::MAX));
    }

    #[test]
    fn a_size_is_shown_in_the_unit_in_which_it_was_given() {
        for (given, shown) in [
            ("0", "0 B"),
            ("1023", "1023 B"),
            ("1KiB", "1.0 KiB"),
            ("20MiB", "20.0 MiB"),
            ("100GiB", "100.0 GiB"),
            ("1.5TiB", "1.5 TiB"),
            ("4096TiB", "4096.0 TiB"),
            ("1048575", "1.0 MiB"),
            ("1MB", "976.6 KiB"),
        ] {
            let bytes = parse_bytes(given).unwrap();
            assert_eq!(show_bytes(bytes), shown, "{given}");
            // What was shown may be pasted as the value of a flag.
            let pasted = parse_bytes(shown).unwrap();
            assert!(pasted.abs_diff(bytes) <= bytes / 1_000, "{shown}");
        }
        assert_eq!(show_bytes(u64::MAX), "16777216.0 TiB");
    }

    #[test]
    fn times_are_read_as_written() {
        assert_eq!(parse_duration("250ms"), Ok(Duration::from_millis(250)));
        assert_eq!(parse_duration("2m"), Ok(Duration::from_secs(120)));
        assert_eq!(parse_duration("7d"), parse_duration("168h"));
        for (seconds, text) in [(0, "0 seconds"), (119, "1 minute"), (7_200, "2 hours"), (86_400 * 40, "40 days")] {
            assert_eq!(show_duration(Duration::from_secs(seconds)), text);
        }
        for text in ["", "0s", "-1s", "5 parsecs", "1.5s", "999999999999d"] {
            assert!(parse_duration(text).is_err(), "{text}");
        }
    }
}
