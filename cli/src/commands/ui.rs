//! `larder ui`: a page about this machine and a cluster, on the loopback.
//!
//! The cast: `server` serves the page and the state; `state` has what was read last; `cluster` reads a cluster's
//! objects. The page asks for the state each second, and gets the parts that have changed. Nothing is read while no
//! page asks.
//!
//! Invariants: the state is served only to programs with the token, which is printed and nowhere else. The page asks no
//! other server, and works without a network.

mod cluster;
mod server;
mod state;

use std::net::Ipv4Addr;
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::Context;
use larder_telemetry::server::{Plain, Server};

use crate::args::UiArgs;
use crate::cluster::Cluster;
use crate::{output, source};
use state::State;

pub(crate) fn run(args: &UiArgs) -> anyhow::Result<ExitCode> {
    source::runtime()?.block_on(async {
        let cluster = if args.cluster { Some(Cluster::of(&args.of).await?) } else { None };
        let server = Server::bind((Ipv4Addr::LOCALHOST, args.port).into(), server::LIMITS).await;
        let server = server.with_context(|| format!("serve on 127.0.0.1:{} (--port)", args.port))?;
        let address = server.address().context("find the page's port")?;
        let token = format!("{:032x}", rand::random::<u128>());
        output::line(format_args!("http://{address}/#{token}"))?;
        output::note(format_args!("open the address in a browser; Ctrl-C ends the page"));
        let state = Arc::new(State::new(cluster.is_some()));
        state::follow_machine(Arc::clone(&state));
        let stop = async {
            let _ = tokio::signal::ctrl_c().await;
        };
        let serving = server.serve(Plain, server::router(Arc::clone(&state), token), || {}, stop);
        match cluster {
            None => serving.await,
            Some(cluster) => tokio::select! {
                () = serving => {}
                () = state::follow_cluster(state, cluster) => {}
            },
        }
        Ok(ExitCode::SUCCESS)
    })
}
