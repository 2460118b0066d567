//! The process that serves: the daemon that owns the cache, with its first mount.

use std::process::ExitCode;
use std::sync::Arc;

use anyhow::Context;
use larder_cachenode::Home;
use larder_cachenode::allocator::bound_kept_memory;
use larder_cachenode::importing::Importer;
use larder_cachenode::node::NodeConfig;
use larder_cachenode::process::{memory_budget, raise_file_limit};
use larder_cachenode::source::ResolvedSource;
use larder_dataset::Chain;
use larder_fs::daemon::{Daemon, DaemonConfig};
use larder_fs::process::Verify;
use larder_fs::{Pool, default_threads};
use larder_origin::OriginConfig;
use larder_store::StoreError;
use tokio::runtime::Runtime;
use tokio::signal::unix::{SignalKind, signal};
use tracing::warn;

use super::announcement::Announcement;
use super::preflight;
use super::request::{cache_dir, mirror_variables, request, run_dir};
use super::result;
use crate::args::MountArgs;
use crate::output;
use crate::source;

pub(super) fn run(args: &MountArgs) -> anyhow::Result<ExitCode> {
    if args.announce {
        rustix::process::setsid()?;
    } else {
        preflight::check(args)?;
    }
    raise_file_limit();
    bound_kept_memory();
    let runtime = source::runtime()?;
    let _in_runtime = runtime.enter();
    let (daemon, dataset) = match start(args, &runtime) {
        Ok(started) => started,
        Err(error) => {
            if args.announce {
                // The error goes to the log too.
                let text = Chain(&*error).to_string();
                let busy = matches!(error.downcast_ref(), Some(StoreError::InUse { .. }));
                let failed = if busy { Announcement::Busy(text) } else { Announcement::Failed(text) };
                let _ = output::line(format_args!("{failed}"));
            }
            return Err(error);
        }
    };
    if args.announce {
        // The error is ignored: if the caller has exited, the mount stays.
        let _ = output::line(format_args!("{}", Announcement::Ready));
    } else {
        // As above: the output may be closed.
        let _ = result::tell(args, &dataset);
    }
    drop(dataset);
    runtime.block_on(async {
        let signals = tokio::spawn(stop_on_signal(Arc::clone(&daemon)));
        let outcome = Arc::clone(&daemon).run().await;
        signals.abort();
        daemon.stop().await?;
        outcome
    })?;
    Ok(ExitCode::SUCCESS)
}

async fn stop_on_signal(daemon: Arc<Daemon>) {
    let (Ok(mut terminate), Ok(mut interrupt)) = (signal(SignalKind::terminate()), signal(SignalKind::interrupt()))
    else {
        warn!("cannot listen for signals; unmount with `larder umount`");
        return;
    };
    tokio::select! {
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
    }
    daemon.stopping().cancel();
}

/// Starts a daemon with its first mount, which serves the dataset.
fn start(args: &MountArgs, runtime: &Runtime) -> anyhow::Result<(Arc<Daemon>, ResolvedSource)> {
    let found = source::resolve(&args.src, &args.origin, args.refresh, runtime)?;
    let cache_dir = cache_dir(args)?;
    let threads = args.threads.map_or_else(default_threads, |threads| threads as usize);
    let mut origin = OriginConfig { limits: args.origin.limits_with(args.warm_rate), ..args.origin.config()? };
    mirror_variables(args)?.into_iter().for_each(|(name, value)| origin.env.set(name, value));
    let config = DaemonConfig {
        run_dirs: vec![run_dir(&cache_dir)?],
        node: NodeConfig {
            cache_dir,
            more_cache_dirs: Vec::new(),
            cache_bytes: None,
            keep_free_percent: 0,
            home: Home::of_process()?,
            origin,
            importer: Importer::own_process(),
            peers: None,
            memory: memory_budget(args.memory_target),
            socket: None,
        },
        admin: None,
        threads,
        verify_always: args.verify == Verify::Always,
        store: None,
        stop_when_idle: true,
    };
    let pool = Pool::for_many_mounts(threads).context("start the threads that serve mounts (--threads)")?;
    let daemon = Daemon::open(config, pool).context("open the cache (--cache-dir)")?;
    runtime.block_on(daemon.mount(request(args, &found.path, None)?))?;
    Ok((daemon, found))
}
