//! Lines of `rdma.max`, such as `mlx5_2 hca_handle=2 hca_object=2000`.

use std::fmt;
use std::str::FromStr;

/// The kernel shows this number and all higher numbers as `max`, so a limit must be lower.
pub const UNLIMITED: u32 = i32::MAX as u32;

/// The longest name of an RDMA device in the kernel, without the terminating NUL.
const DEVICE_BYTES_MOST: usize = 63;

/// The limit of one HCA.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Line {
    /// The kernel's name of the HCA.
    pub device: String,
    pub max: Max,
}

/// The limits of an HCA: at least one of the two, each less than [`UNLIMITED`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Max {
    /// `hca_handle`.
    pub handles: Option<u32>,
    /// `hca_object`.
    pub objects: Option<u32>,
}

impl Max {
    /// The lower of each pair of limits.
    #[must_use]
    pub fn min(self, other: Self) -> Self {
        let lower = |a: Option<u32>, b: Option<u32>| a.into_iter().chain(b).min();
        Self { handles: lower(self.handles, other.handles), objects: lower(self.objects, other.objects) }
    }

    fn words(self) -> impl Iterator<Item = String> {
        let word = |name: &str, value: Option<u32>| value.map(|value| format!("{name}={value}"));
        [word("hca_handle", self.handles), word("hca_object", self.objects)].into_iter().flatten()
    }
}

impl Line {
    /// True if the text of an `rdma.max` shows this limit.
    pub fn is_in(&self, text: &str) -> bool {
        let mut lines =
            text.lines().filter_map(|line| line.split_once(' ')).filter(|(device, _)| *device == self.device);
        let shown = lines.next_back().map(|(_, words)| words);
        shown.is_some_and(|shown| self.max.words().all(|word| shown.split(' ').any(|shown| shown == word)))
    }
}

/// The flag whose value is a line.
pub(crate) const MAX_FLAG: &str = "--max";

impl fmt::Display for Line {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.device)?;
        self.max.words().try_for_each(|word| write!(f, " {word}"))
    }
}

/// The text is not a valid limit of an HCA.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not a limit, such as \"mlx5_2 hca_handle=2 hca_object=2000\"")]
pub struct UnsoundLine(String);

impl FromStr for Line {
    type Err = UnsoundLine;

    fn from_str(text: &str) -> Result<Self, UnsoundLine> {
        parse(text).ok_or_else(|| UnsoundLine(text.chars().take(200).collect()))
    }
}

fn parse(text: &str) -> Option<Line> {
    let mut words = text.split(' ');
    let device = words.next().filter(|name| (1..=DEVICE_BYTES_MOST).contains(&name.len()))?;
    if !device.bytes().all(|byte| byte.is_ascii_graphic() && byte != b'/') {
        return None;
    }
    let mut max = Max::default();
    for word in words {
        let (name, value) = word.split_once('=')?;
        let counter = match name {
            "hca_handle" => &mut max.handles,
            "hca_object" => &mut max.objects,
            _ => return None,
        };
        let is_number = value.bytes().all(|digit| digit.is_ascii_digit());
        let value = is_number.then(|| value.parse().ok()).flatten().filter(|value| *value < UNLIMITED)?;
        if counter.replace(value).is_some() {
            return None;
        }
    }
    (max != Max::default()).then(|| Line { device: device.to_owned(), max })
}

/// Parses a text in which each line is a limit.
pub fn parse_lines(text: &str) -> Result<Vec<Line>, UnsoundLine> {
    text.lines().map(str::parse).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(text: &str) -> Line {
        text.parse().unwrap()
    }

    #[test]
    fn a_line_is_a_device_with_one_or_two_limits() {
        for text in ["mlx5_2 hca_handle=2 hca_object=2000", "rocep1s0 hca_object=0", "a hca_handle=2147483646"] {
            assert_eq!(line(text).to_string(), text);
        }
        let long = format!("{} hca_handle=1", "x".repeat(64));
        for wrong in [
            "",
            "mlx5_2",
            "mlx5_2 ",
            " hca_handle=2",
            "mlx5_2 hca_handle=max",
            "mlx5_2 hca_handle=2147483647",
            "mlx5_2 hca_handle=-1",
            "mlx5_2 hca_handle=+1",
            "mlx5_2 hca_handle=",
            "mlx5_2 hca_handle=2 hca_handle=3",
            "mlx5_2 hca_handle=2  hca_object=3",
            "mlx5_2 hca_handles=2",
            "mlx5_2\thca_handle=2",
            "../x hca_handle=2",
            "mlx5_2 hca_handle=2\nmlx5_3 hca_handle=2",
            &long,
        ] {
            assert!(wrong.parse::<Line>().is_err(), "{wrong:?}");
        }
        assert_eq!(parse_lines("a hca_handle=1\nb hca_object=2\n").unwrap().len(), 2);
        assert!(parse_lines("a hca_handle=1\n\nb hca_object=2").is_err());
    }

    #[test]
    fn arguments_and_limits_are_the_same() {
        let line = line("mlx5_2 hca_handle=2");
        assert_eq!(line.to_args(), ["larder-rdma-limit", "--max", "mlx5_2 hca_handle=2"]);
        assert_eq!(Line::from_args(&line.to_args()), Some(line));
        let args = ["x", "--cgroup-root", "/x", "--max", "mlx5_2 hca_object=0"].map(str::to_owned);
        assert_eq!(Line::from_args(&args).unwrap().max.objects, Some(0));
        assert_eq!(Line::from_args(&args[..4]), None);
        assert_eq!(Line::from_args(&[]), None);
    }

    #[test]
    fn the_lower_limit_holds_of_each_counter() {
        let max = |handles, objects| Max { handles, objects };
        assert_eq!(max(Some(2), Some(2000)).min(max(Some(3), Some(500))), max(Some(2), Some(500)));
        assert_eq!(max(Some(2), None).min(max(None, Some(500))), max(Some(2), Some(500)));
        assert_eq!(max(Some(2), None).min(max(None, None)), max(Some(2), None));
    }

    // SEMANTICS: D20
    #[test]
    fn a_limit_is_in_force_if_the_kernel_shows_its_numbers() {
        let shown = "mlx5_1 hca_handle=max hca_object=max\nmlx5_2 hca_handle=2 hca_object=2000\n";
        assert!(line("mlx5_2 hca_handle=2 hca_object=2000").is_in(shown));
        assert!(line("mlx5_2 hca_object=2000").is_in(shown));
        for not in ["mlx5_1 hca_handle=2", "mlx5_2 hca_handle=20", "mlx5_2 hca_object=200", "mlx5 hca_handle=2"] {
            assert!(!line(not).is_in(shown), "{not}");
        }
        // The last line counts.
        assert!(!line("a hca_handle=2").is_in("a hca_handle=2\na hca_handle=max"));
    }
}
