//! `larder queue`

mod view;

use std::process::ExitCode;

use anyhow::bail;
use larder_api::Queue;
use larder_kube::ResourceExt;

use crate::args::QueueArgs;
use crate::cluster::Cluster;
use crate::queues::Seen;
use crate::{output, queues, source};
use view::QueueView;

pub(crate) fn run(args: &QueueArgs) -> anyhow::Result<ExitCode> {
    source::runtime()?.block_on(show(args))
}

async fn show(args: &QueueArgs) -> anyhow::Result<ExitCode> {
    let cluster = Cluster::within(&args.cluster, &args.namespace).await?;
    let all = queues::all(&cluster).await?;
    let is_chosen = |queue: &&Queue| args.name.as_ref().is_none_or(|name| queue.name_any() == *name);
    let chosen: Vec<&Queue> = all.iter().filter(is_chosen).collect();
    if let (Some(name), true) = (&args.name, chosen.is_empty()) {
        bail!("there is no Queue {name}: `{}` lists all queues", cluster.command("larder queue"));
    }
    // The list of all queues has their own counts.
    let seen = if args.name.is_some() || args.json {
        let is_chosen = |queue: &str| args.name.as_ref().is_none_or(|name| name == queue);
        let is_in = |queue: Option<&str>| queue.is_some_and(is_chosen);
        queues::jobs(&cluster, &cluster.namespace, is_in).await?
    } else {
        Seen::default()
    };
    let priorities = queues::with_queues(seen.priorities, &all);
    let views: Vec<QueueView> =
        chosen.iter().map(|queue| QueueView::of(queue, &all, &seen.jobs, &priorities)).collect();
    seen.notes.iter().for_each(|note| output::note(format_args!("{note}")));
    if args.json {
        output::json(&views)?;
    } else if args.name.is_some() {
        views.iter().try_for_each(|view| output::text(&view::one(view)))?;
    } else if views.is_empty() {
        output::note(format_args!("there are no Queues: an administrator creates them (kubectl explain queue.spec)"));
    } else {
        output::text(&view::all(&views))?;
    }
    Ok(ExitCode::SUCCESS)
}
