//! `larder-bench extender`

use anyhow::{Context, bail};
use larder_bench::extender::{
    Crowd, ExtenderConfig, Known, Load, Programs, Scenario, Tools, run as run_extender, serve,
};
use larder_bench::jobs::Places;

use super::measure::measure;
use super::program;
use crate::args::ExtenderArgs;

pub(crate) fn run(args: &ExtenderArgs) -> anyhow::Result<()> {
    if let Some(known) = &args.serve {
        return serve(known);
    }
    let config = config(args)?;
    let needs_cluster = config.scenarios.iter().any(|scenario| *scenario != Scenario::Answers);
    let tools = tools(args, needs_cluster)?;
    measure(&args.output, "steps", |steps| run_extender(&config, &tools, steps), |outcome| outcome.table())?;
    Ok(())
}

fn config(args: &ExtenderArgs) -> anyhow::Result<ExtenderConfig> {
    let ExtenderArgs { known_nodes, rate, asks, nodes, pods, wakes, crowd, crowd_pods, .. } = *args;
    let holders = &args.holders;
    if pods > Crowd::room(nodes) {
        bail!("--pods {pods} do not fit on --nodes {nodes}");
    }
    let all: u32 = holders.iter().sum();
    if all > crowd {
        bail!("--holders need {all} nodes together, but --crowd is {crowd}");
    }
    if let Some(few) = holders.iter().find(|holders| crowd_pods > Crowd::room(**holders)) {
        bail!("--crowd-pods {crowd_pods}: {few} holders have room for {} pods", Crowd::room(*few));
    }
    if u32::from(wakes) > nodes {
        bail!("--wakes {wakes} exceeds --nodes {nodes}: each pod needs its own node");
    }
    Ok(ExtenderConfig {
        scenarios: args.only.chosen(),
        rounds: args.rounds.rounds,
        load: Load { known: Known::of(known_nodes as usize), rate, asks },
        nodes,
        pods,
        wakes,
        crowd: Crowd { nodes: crowd, holders: holders.clone(), pods: crowd_pods },
    })
}

/// The programs to run. The programs of a cluster must exist only if a chosen scenario needs a cluster.
fn tools(args: &ExtenderArgs, needs_cluster: bool) -> anyhow::Result<Tools> {
    let find = |flag, name, named: Option<&std::path::Path>| match needs_cluster {
        true => program::find(flag, name, named),
        false => Ok(named.map(std::path::Path::to_owned).unwrap_or_default()),
    };
    let extender = find("--extender", "larder-scheduler-ext", args.extender.as_deref())?;
    let controller = find("--controller", "larder-controller", args.cluster.controller.as_deref())?;
    Ok(Tools {
        larder: std::env::current_exe().context("locate this program")?,
        programs: Programs { scheduler: args.kube_scheduler.clone(), extender },
        places: Places { program: controller, kubeconfig: args.cluster.kubeconfig.clone() },
    })
}

#[cfg(test)]
mod tests {
    use clap::{Parser, ValueEnum};

    use super::*;
    use crate::args::{Cli, Command};

    fn args(flags: &[&str]) -> Result<ExtenderArgs, String> {
        let all = [&["larder-bench", "extender"], flags].concat();
        match Cli::try_parse_from(all).map_err(|error| error.to_string())?.command {
            Command::Extender(args) => Ok(args),
            other => Err(format!("{other:?}")),
        }
    }

    #[test]
    fn the_defaults_are_the_sizes_that_the_goals_are_for() {
        let config = config(&args(&[]).unwrap()).unwrap();
        let Known { nodes, datasets, pods } = config.load.known;
        assert_eq!([nodes, datasets, pods], [5_000, 1_000, 50_000]);
        assert_eq!((config.load.rate, config.crowd.holders.as_slice()), (500, [10, 50, 500].as_slice()));
        assert_eq!(config.scenarios, Scenario::value_variants());
    }

    #[test]
    fn impossible_sizes_are_rejected_naming_the_flag() {
        for (flags, word) in [
            (["--pods=20000", "--nodes=100"], "--pods 20000"),
            (["--holders=60,60", "--crowd=100"], "120 nodes together"),
            (["--crowd-pods=97", "--holders=2,5"], "2 holders have room for 96 pods"),
        ] {
            let error = config(&args(&flags).unwrap()).unwrap_err().to_string();
            assert!(error.contains(word), "{error}");
        }
        for wrong in [["--rate", "0"], ["--only", "binds"], ["--holders", "0"], ["--wakes", "101"]] {
            assert!(args(&wrong).unwrap_err().contains(wrong[0]), "{wrong:?}");
        }
    }

    #[test]
    fn programs_must_exist_only_if_a_cluster_is_used() {
        let args = args(&["--extender", "/nonexistent/extender", "--only", "answers"]).unwrap();
        assert!(tools(&args, false).is_ok());
        let error = tools(&args, true).unwrap_err().to_string();
        assert!(error.contains("/nonexistent/extender") && error.contains("--extender"), "{error}");
    }
}
