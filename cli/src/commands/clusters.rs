//! `larder cluster`

mod join;
mod view;

use std::process::ExitCode;

use larder_api::Cluster as Object;

use crate::args::{ClustersArgs, ClustersCommand, DescribeClusterArgs, ListClustersArgs};
use crate::cluster::{Asked, CLUSTER, Cluster, typed};
use crate::{output, source};
use view::ClusterView;

pub(crate) fn run(args: &ClustersArgs) -> anyhow::Result<ExitCode> {
    source::runtime()?.block_on(async {
        match &args.what {
            ClustersCommand::List(args) => list(args).await,
            ClustersCommand::Describe(args) => describe(args).await,
            ClustersCommand::Join(args) => join::run(args).await,
        }
    })
}

async fn list(args: &ListClustersArgs) -> anyhow::Result<ExitCode> {
    let cluster = Cluster::of(&args.cluster).await?;
    let (asked, mut views) = (Asked::all(CLUSTER, None), Vec::new());
    let listed = cluster.list(&asked, None, |object| {
        views.extend(typed::<Object>(object).ok().map(|object| ClusterView::of(&object)));
    });
    listed.await.map_err(|error| cluster.in_words(error, &asked))?;
    if args.json {
        output::json(&views)?;
    } else if views.is_empty() {
        output::note(format_args!(
            "there are no Clusters: `larder cluster join` makes them (docs/kubernetes/clusters.md)"
        ));
    } else {
        output::text(&view::all(&views))?;
    }
    Ok(ExitCode::SUCCESS)
}

async fn describe(args: &DescribeClusterArgs) -> anyhow::Result<ExitCode> {
    let cluster = Cluster::of(&args.cluster).await?;
    let asked = Asked { right: "get", kind: CLUSTER, namespace: None, name: &args.name };
    let view = ClusterView::of(&cluster.get::<Object>(&asked).await?);
    if args.json {
        output::json(&view)?;
    } else {
        output::text(&view::one(&view))?;
    }
    Ok(ExitCode::SUCCESS)
}
