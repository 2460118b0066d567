//! The JSON that fio prints.

use anyhow::{Context, bail, ensure};
use larder_epochs::epochs::Epoch;
use serde::{Deserialize, Serialize};

/// The figures of one run, all of its jobs together.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct FioResult {
    /// Bytes read.
    pub bytes: u64,
    /// MB (10^6 bytes) a second.
    pub mb_per_second: f64,
    /// Reads a second.
    pub iops: f64,
    /// Half of the reads took at most this many microseconds.
    pub p50_us: f64,
    /// 99 of 100 reads took at most this many microseconds.
    pub p99_us: f64,
}

/// Each thing that was read, such as a tensor, counts as one read.
impl From<Epoch> for FioResult {
    fn from(epoch: Epoch) -> Self {
        Self {
            bytes: epoch.bytes,
            mb_per_second: epoch.mb_per_second,
            iops: epoch.files_per_second,
            p50_us: epoch.p50_ms * 1e3,
            p99_us: epoch.p99_ms * 1e3,
        }
    }
}

#[derive(Deserialize)]
struct Document {
    jobs: Vec<Job>,
}

#[derive(Deserialize)]
struct Job {
    jobname: String,
    error: i32,
    read: Reads,
}

#[derive(Deserialize)]
struct Reads {
    io_bytes: u64,
    bw_bytes: u64,
    iops: f64,
    clat_ns: Latency,
}

#[derive(Deserialize)]
struct Latency {
    percentile: Option<Percentiles>,
}

#[derive(Deserialize)]
struct Percentiles {
    #[serde(rename = "50.000000")]
    p50_ns: f64,
    #[serde(rename = "99.000000")]
    p99_ns: f64,
}

/// Reads the output of a run whose jobs report as one group. Errors: fio failed, or read nothing.
pub(super) fn parse(text: &str) -> anyhow::Result<FioResult> {
    // fio writes its warnings into the same file, before the JSON document.
    let start = text.lines().take_while(|line| !line.starts_with('{')).map(|line| line.len() + 1).sum::<usize>();
    let document: Document =
        serde_json::from_str(text.get(start..).unwrap_or_default()).context("parse the output of fio")?;
    let [job] = &document.jobs[..] else { bail!("fio reports {} groups instead of one", document.jobs.len()) };
    ensure!(job.error == 0, "fio: {}: error {}", job.jobname, job.error);
    ensure!(job.read.io_bytes > 0, "fio: {}: nothing was read", job.jobname);
    let times = job.read.clat_ns.percentile.as_ref().context("fio reported no percentiles")?;
    Ok(FioResult {
        bytes: job.read.io_bytes,
        mb_per_second: job.read.bw_bytes as f64 / 1e6,
        iops: job.read.iops,
        p50_us: times.p50_ns / 1e3,
        p99_us: times.p99_ns / 1e3,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The output of fio 3.33 with four jobs and a warning before the JSON document.
    const SAMPLE: &str = include_str!("../../fio/sample.json");

    #[test]
    fn the_output_of_a_real_fio_is_parsed() {
        let said = parse(SAMPLE).unwrap();
        assert_eq!(said.bytes, 67_108_864);
        assert!((said.iops - said.mb_per_second * 1e6 / 131_072.0).abs() / said.iops < 0.01, "{said:?}");
        assert!(said.p50_us > 1.0 && said.p50_us < said.p99_us, "{said:?}");
    }

    #[test]
    fn a_failed_or_empty_run_is_an_error() {
        for (what, with, expected) in [
            ("\"error\": 0", "\"error\": 5", "error 5"),
            ("\"io_bytes\": 67108864", "\"io_bytes\": 0", "nothing was read"),
            ("\"jobs\": [", "\"jobs\": [], \"others\": [", "0 groups"),
        ] {
            assert!(SAMPLE.contains(what), "{what}");
            let error = parse(&SAMPLE.replacen(what, with, 1)).unwrap_err();
            assert!(error.to_string().contains(expected), "{error}");
        }
        parse("").unwrap_err();
        parse("fio: no such file\n").unwrap_err();
    }
}
