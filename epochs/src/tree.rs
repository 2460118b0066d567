//! Creates a folder of files like those of a training set: many small files, a few large files, and random bytes that a
//! seed reproduces.

use std::path::{Path, PathBuf};

use anyhow::Context;
use rand::rngs::StdRng;
use rand::{Rng, RngExt, SeedableRng};

/// The sizes of images, as in the talk that introduced NR (README.md): 16 KB to 5 MB.
pub const SIZES: std::ops::RangeInclusive<u64> = 16_000..=5_000_000;

/// Spread of the sizes: sigma of the log-normal distribution.
const SIGMA: f64 = 0.75;

/// Number of files in one folder.
const FILES_IN_A_FOLDER: u32 = 200;

/// A file that was created.
#[derive(Clone, Debug)]
pub struct MadeFile {
    /// The path below the root.
    pub path: PathBuf,
    /// Size in bytes.
    pub size: u64,
    /// CRC32C of its bytes.
    pub crc32c: u32,
}

/// Sizes of `files` files with the given mean, log-normal and clipped to [`SIZES`].
pub fn sizes(files: u32, mean: u64, seed: u64) -> Vec<u64> {
    let mut random = StdRng::seed_from_u64(seed);
    let normal: Vec<f64> = (0..files)
        .map(|_| {
            // Box-Muller: two uniform numbers give a normally distributed one.
            let (a, b): (f64, f64) = (1.0 - random.random::<f64>(), random.random());
            (-2.0 * a.ln()).sqrt() * (std::f64::consts::TAU * b).cos()
        })
        .collect();
    let clipped = |median: f64| {
        normal.iter().map(move |z| ((median * (SIGMA * z).exp()) as u64).clamp(*SIZES.start(), *SIZES.end()))
    };
    // Clipping moves the mean, so search for the median that gives the requested mean.
    let (mut low, mut high) = (1.0, 1e8);
    for _ in 0..60 {
        let middle = f64::sqrt(low * high);
        if clipped(middle).sum::<u64>() < mean * u64::from(files) { low = middle } else { high = middle }
    }
    clipped(low).collect()
}

/// Writes the files below `root` and calls `made` for each. Errors name the file.
pub fn make(root: &Path, sizes: &[u64], seed: u64, mut made: impl FnMut(&MadeFile)) -> anyhow::Result<Vec<MadeFile>> {
    let mut files = Vec::with_capacity(sizes.len());
    let mut bytes = Vec::new();
    for (number, &size) in (0_u32..).zip(sizes) {
        let path = PathBuf::from(format!("class-{:04}/image-{number:07}.jpg", number / FILES_IN_A_FOLDER));
        bytes.resize(size as usize, 0);
        StdRng::seed_from_u64(seed ^ (u64::from(number) << 32)).fill_bytes(&mut bytes);
        let target = root.join(&path);
        if let Some(folder) = target.parent() {
            std::fs::create_dir_all(folder).with_context(|| format!("make folder {}", folder.display()))?;
        }
        std::fs::write(&target, &bytes).with_context(|| format!("write {}", target.display()))?;
        let file = MadeFile { path, size, crc32c: larder_dataset::crc32c(&bytes) };
        made(&file);
        files.push(file);
    }
    Ok(files)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_the_requested_mean_and_stay_within_bounds() {
        let sizes = sizes(5000, 111_000, 42);
        let mean = sizes.iter().sum::<u64>() / 5000;
        assert!((110_000..112_000).contains(&mean), "{mean}");
        assert!(sizes.iter().all(|size| SIZES.contains(size)));
        assert!(sizes.iter().max() > Some(&1_000_000));
        assert_eq!(sizes, super::sizes(5000, 111_000, 42));
    }
}
