//! The workloads of MLPerf Storage, and the options that scale them to a machine.

use serde::Serialize;

/// A training workload.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, clap::ValueEnum)]
pub enum Workload {
    /// ResNet-50 with a JPEG for each sample.
    #[value(name = "resnet50-jpeg")]
    #[serde(rename = "resnet50-jpeg")]
    Resnet50Jpeg,
    /// ResNet-50 as MLPerf Storage has it: TFRecords of 1,251 samples.
    #[value(name = "resnet50")]
    #[serde(rename = "resnet50")]
    Resnet50,
    /// 3D U-Net: large files, one sample each. They have 20 MB here instead of 147 MB.
    #[value(name = "unet3d")]
    #[serde(rename = "unet3d")]
    Unet3d,
    /// CosmoFlow: a TFRecord of 2.8 MB for each sample.
    #[value(name = "cosmoflow")]
    #[serde(rename = "cosmoflow")]
    Cosmoflow,
}

/// How large and how fast a workload is.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Scale {
    /// About the bytes of its data.
    pub bytes: u64,
    /// The speed of the simulated accelerator; 1 is an H100.
    pub speed: f64,
    /// Reader threads or processes.
    pub threads: u32,
}

/// A workload's data, and what its accelerator takes.
struct Shape {
    /// The name of DLIO's configuration.
    config: &'static str,
    /// The bytes of a sample.
    sample_bytes: u64,
    samples_in_a_file: u64,
    /// Samples in a batch here.
    batch: u64,
    /// Seconds that an H100 takes for a sample.
    sample_seconds: f64,
    /// Whether DLIO deals samples out to the readers, as it does for TensorFlow. It then divides by the number of each
    /// reader's samples, of training and of validation alike, so both sets need one for each reader.
    dealt_to_readers: bool,
    /// Options that differ from the configuration.
    options: &'static [&'static str],
}

impl Workload {
    /// The name in tables and for `--workloads`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Resnet50Jpeg => "resnet50-jpeg",
            Self::Resnet50 => "resnet50",
            Self::Unet3d => "unet3d",
            Self::Cosmoflow => "cosmoflow",
        }
    }

    fn shape(self) -> Shape {
        match self {
            Self::Resnet50Jpeg => Shape {
                config: "resnet50_h100",
                sample_bytes: 114_660,
                samples_in_a_file: 1,
                batch: 50,
                sample_seconds: 0.224 / 400.0,
                dealt_to_readers: false,
                options: &[
                    "framework=pytorch",
                    "dataset.format=jpeg",
                    "dataset.num_subfolders_train=10",
                    "reader.data_loader=pytorch",
                ],
            },
            Self::Resnet50 => Shape {
                config: "resnet50_h100",
                sample_bytes: 114_660,
                samples_in_a_file: 1251,
                batch: 50,
                sample_seconds: 0.224 / 400.0,
                dealt_to_readers: true,
                options: &[],
            },
            Self::Unet3d => Shape {
                config: "unet3d_h100",
                sample_bytes: 20_000_000,
                samples_in_a_file: 1,
                batch: 7,
                sample_seconds: 0.323 / 7.0,
                dealt_to_readers: false,
                options: &["dataset.record_length=20000000", "dataset.record_length_stdev=0"],
            },
            Self::Cosmoflow => Shape {
                config: "cosmoflow_h100",
                sample_bytes: 2_828_486,
                samples_in_a_file: 1,
                batch: 1,
                sample_seconds: 0.0035,
                dealt_to_readers: true,
                options: &[],
            },
        }
    }

    /// DLIO's options for the data and the accelerator.
    pub(super) fn options(self, scale: Scale) -> Vec<String> {
        let Shape { config, sample_bytes, samples_in_a_file, batch, sample_seconds, dealt_to_readers, options } =
            self.shape();
        let dealt = if dealt_to_readers { u64::from(scale.threads) } else { 1 };
        // At least two batches.
        let least_files = dealt.max(2 * batch).div_ceil(samples_in_a_file);
        let files = (scale.bytes / (sample_bytes * samples_in_a_file)).max(least_files);
        // An object store has no empty folder, and DLIO lists the one for validation, whose files it does not read.
        let eval_files = dealt.div_ceil(samples_in_a_file);
        let computation_seconds = sample_seconds * batch as f64 / scale.speed;
        let mut all = vec![format!("workload={config}")];
        all.extend(options.iter().map(|option| format!("++workload.{option}")));
        all.extend([
            format!("++workload.dataset.num_files_train={files}"),
            format!("++workload.dataset.num_files_eval={eval_files}"),
            format!("++workload.dataset.num_samples_per_file={samples_in_a_file}"),
            format!("++workload.reader.batch_size={batch}"),
            format!("++workload.reader.read_threads={}", scale.threads),
            format!("++workload.train.computation_time={computation_seconds:.6}"),
            "++workload.workflow.checkpoint=False".to_owned(),
        ]);
        all
    }
}

#[cfg(test)]
mod tests {
    use clap::ValueEnum;

    use super::*;

    /// The number that an option has.
    fn value(options: &[String], name: &str) -> f64 {
        let start = format!("++workload.{name}=");
        options.iter().find_map(|option| option.strip_prefix(&start)).unwrap().parse().unwrap()
    }

    #[test]
    fn a_workload_has_about_the_bytes_and_the_speed_that_are_asked_for() {
        let scale = Scale { bytes: 1 << 30, speed: 0.5, threads: 3 };
        for &workload in Workload::value_variants() {
            let options = workload.options(scale);
            let value = |name| value(&options, name);
            let shape = workload.shape();
            let samples = value("dataset.num_files_train") * value("dataset.num_samples_per_file");
            let share = samples * shape.sample_bytes as f64 / scale.bytes as f64;
            assert!((0.85..=1.0).contains(&share), "{}: {share}", workload.name());
            let rate = value("reader.batch_size") / value("train.computation_time");
            assert!((rate * shape.sample_seconds / scale.speed - 1.0).abs() < 0.001, "{}: {rate}", workload.name());
        }
    }

    #[test]
    fn the_smallest_data_are_two_batches() {
        for (workload, files) in [
            (Workload::Resnet50Jpeg, 100.0),
            (Workload::Resnet50, 1.0),
            (Workload::Unet3d, 14.0),
            (Workload::Cosmoflow, 2.0),
        ] {
            let options = workload.options(Scale { bytes: 1, speed: 1.0, threads: 1 });
            assert_eq!(value(&options, "dataset.num_files_train"), files, "{options:?}");
            assert_eq!(value(&options, "dataset.num_files_eval"), 1.0, "{options:?}");
        }
    }

    #[test]
    fn each_reader_of_tensorflow_has_a_sample_for_training_and_one_for_validation() {
        for workload in [Workload::Resnet50, Workload::Cosmoflow] {
            let options = workload.options(Scale { bytes: 1, speed: 1.0, threads: 256 });
            let readers = value(&options, "reader.read_threads");
            for files in ["dataset.num_files_train", "dataset.num_files_eval"] {
                let samples = value(&options, files) * value(&options, "dataset.num_samples_per_file");
                assert!(samples >= readers, "{}: {samples} samples in {files}", workload.name());
            }
        }
        // The large files of 3D U-Net are not made in vain.
        let options = Workload::Unet3d.options(Scale { bytes: 1, speed: 1.0, threads: 256 });
        assert_eq!(["train", "eval"].map(|set| value(&options, &format!("dataset.num_files_{set}"))), [14.0, 1.0]);
    }
}
