//! `larder bench epochs`

use std::collections::HashMap;
use std::process::ExitCode;
use std::sync::Mutex;

use anyhow::{Context, bail};
use larder_epochs::epochs::{ReadOptions, read_expected, read_first, walk};
use larder_epochs::kernel_caches::drop_kernel_caches;
use larder_epochs::plot::{Line, Plot};

use crate::args::bench::{Drop, EpochsArgs};
use crate::files::write_json;
use crate::output;

pub(crate) fn run(args: &EpochsArgs) -> anyhow::Result<ExitCode> {
    let targets = match &args.expect {
        Some(list) => read_expected(&args.dir, list).context("--expect")?,
        None => walk(&args.dir)?,
    };
    if targets.is_empty() {
        bail!("{} contains no files: choose a directory with files", args.dir.display());
    }
    let files = args.files.map_or(targets.len(), |files| targets.len().min(files as usize));
    let bar = output::bar(u64::from(args.epochs) * files as u64, "{msg} {bar:30} {pos}/{len} files {per_sec} {eta}");
    let sums = Mutex::new(HashMap::new());
    let mut epochs = Vec::new();
    output::line(format_args!(
        "{:>5} {:>9} {:>11} {:>9} {:>9} {:>9}",
        "epoch", "files", "files/s", "MB/s", "p50 ms", "p99 ms"
    ))?;
    for number in 1..=args.epochs {
        bar.set_message(format!("epoch {number}"));
        if args.drop == Drop::All {
            drop_kernel_caches().context("--drop all")?;
        }
        let options = ReadOptions {
            readers: args.readers as usize,
            drop_pages: args.drop == Drop::Pages,
            files_per_second: None,
            seed: args.seed.wrapping_add(u64::from(number)),
        };
        let epoch = read_first(&targets, files, &sums, options, &bar)?;
        bar.suspend(|| {
            output::line(format_args!(
                "{number:>5} {:>9} {:>11.0} {:>9.0} {:>9.2} {:>9.2}",
                epoch.files, epoch.files_per_second, epoch.mb_per_second, epoch.p50_ms, epoch.p99_ms
            ))
        })?;
        epochs.push(epoch);
    }
    bar.finish_and_clear();
    write_json(args.json.as_deref(), &epochs)?;
    if let Some(path) = &args.plot {
        let points = epochs.iter().zip(1_u32..).map(|(epoch, number)| (f64::from(number), epoch.files_per_second));
        let line = Line { name: args.dir.display().to_string(), points: points.collect(), is_reference: false };
        let plot = Plot { title: "Speed of epochs".into(), x: "epoch".into(), y: "files/s".into(), lines: vec![line] };
        plot.write(path).context("--plot")?;
    }
    Ok(ExitCode::SUCCESS)
}
