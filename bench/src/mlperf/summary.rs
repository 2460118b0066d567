//! The figures that DLIO writes at the end of a run.

use anyhow::Context;
use serde::{Deserialize, Serialize};

/// The figures of one epoch.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Summary {
    /// The utilisation of the accelerator: the percentage of the epoch in which it computed.
    pub busy_percent: f64,
    /// Samples a second.
    pub samples_per_second: f64,
}

#[derive(Deserialize)]
struct Document {
    metric: Metric,
}

#[derive(Deserialize)]
struct Metric {
    train_au_percentage: Vec<f64>,
    train_throughput_samples_per_second: Vec<f64>,
}

/// Reads the summary of a run of one epoch. Errors: it measured none.
pub(super) fn parse(text: &str) -> anyhow::Result<Summary> {
    let Document { metric } = serde_json::from_str(text).context("parse the summary of DLIO")?;
    let last = |values: &[f64]| values.last().copied().context("DLIO measured no epoch");
    Ok(Summary {
        busy_percent: last(&metric.train_au_percentage)?,
        samples_per_second: last(&metric.train_throughput_samples_per_second)?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_summary_of_dlio_is_parsed_and_an_empty_one_is_an_error() {
        let summary = |au: &str| {
            parse(&format!(
                r#"{{"start": "2026", "num_accelerators": 1, "metric": {{"train_au_percentage": [{au}],
                "train_au_mean_percentage": 91.5, "train_throughput_samples_per_second": [223.25]}}}}"#
            ))
        };
        assert_eq!(summary("91.5").unwrap(), Summary { busy_percent: 91.5, samples_per_second: 223.25 });
        assert!(summary("").unwrap_err().to_string().contains("no epoch"));
        summary("NaN").unwrap_err();
        parse("").unwrap_err();
    }
}
