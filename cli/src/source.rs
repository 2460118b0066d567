//! Finds the dataset of a command and shows the progress of its listing.

use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, bail};
use larder_cachenode::Home;
use larder_cachenode::kept_listing::now_ns;
use larder_cachenode::source::{self, Here, ResolvedSource, WantedListing};
use larder_dataset::Refresh;
use larder_dataset::size::show_duration;
use larder_import::{Imported, SkippedKey};
use larder_origin::{Env, Origin, OriginConfig, OriginUrl, RateCaps, SharedLimits};
use tokio::runtime::Runtime;

use crate::args::{OriginArgs, RefreshFlag};
use crate::output::{self, ProgressView};

/// How long a command waits for the origin before it prints a note.
const SILENCE: Duration = Duration::from_secs(3);

impl OriginArgs {
    /// The variables of this process, and those that are files. Errors: their directory cannot be read.
    pub(crate) fn env(&self) -> anyhow::Result<Env> {
        let Some(dir) = &self.origin_credentials_dir else { return Ok(Env::of_process()) };
        let env = Env::of_process().with_files(dir).context("read the credentials (--origin-credentials-dir)")?;
        for file in env.left_out() {
            output::note(format_args!("warning: a file of --origin-credentials-dir is not used: {file}"));
        }
        Ok(env)
    }

    /// The origin's configuration, from the flags, the environment and the files of credentials.
    pub(crate) fn config(&self) -> anyhow::Result<OriginConfig> {
        Ok(OriginConfig {
            endpoint: self.endpoint.clone(),
            region: self.region.clone(),
            anonymous: self.anonymous,
            attempt_timeout: self.attempt_timeout,
            deadline: self.read_deadline,
            concurrency: self.origin_concurrency as usize,
            limits: self.limits.get_or_init(|| self.limits_with(None)).clone(),
            env: self.env()?,
            ..OriginConfig::default()
        })
    }

    /// The limits of a process that these flags configure, and this cap on warm-ups.
    pub(crate) fn limits_with(&self, warming: Option<u64>) -> SharedLimits {
        SharedLimits::new(self.origin_concurrency as usize, RateCaps { origin: self.origin_rate, warming })
    }

    /// Opens an origin, without sending a request yet.
    pub(crate) fn open(&self, url: &OriginUrl) -> anyhow::Result<Arc<dyn Origin>> {
        Ok(larder_origin::open(url, &self.config()?)?)
    }
}

/// A runtime for a command that mostly waits for the network.
pub(crate) fn runtime() -> anyhow::Result<Runtime> {
    tokio::runtime::Builder::new_multi_thread().enable_all().build().context("start the runtime")
}

/// Runs `work`, and prints what the command is waiting for if the origin does not answer for a while. Errors: the
/// endpoint refuses connections, or its host is unknown. A daemon would wait; in a command it is most likely misspelt.
pub(crate) async fn with_waiting_note<T>(
    text: &str,
    origin: &OriginArgs,
    progress: &ProgressView,
    work: impl Future<Output = T>,
) -> anyhow::Result<T> {
    let mut work = std::pin::pin!(work);
    if let Ok(done) = tokio::time::timeout(SILENCE, &mut work).await {
        return Ok(done);
    }
    if !progress.has_moved() {
        let doubt = match no_server(text, origin).await {
            Some(NoServer::Permanently(why)) => bail!("{why}"),
            Some(NoServer::ForNow(why)) => format!(" ({why})"),
            None => String::new(),
        };
        output::note(format_args!(
            "waiting for the origin of {text}, which has not responded yet{doubt}; giving up after --read-deadline ({})",
            show_duration(origin.read_deadline)
        ));
    }
    Ok(work.await)
}

/// Why no server answers at the endpoint, in words.
#[derive(Debug, PartialEq, Eq)]
enum NoServer {
    /// Waiting is useless.
    Permanently(String),
    /// It may pass.
    ForNow(String),
}

/// The endpoint that was given, and by what. Larder's flag comes before the variables of the cloud's own tools.
fn given_endpoint(
    text: &str,
    origin: &OriginArgs,
    variable: impl Fn(&str) -> Option<String>,
) -> Option<(String, &'static str)> {
    // Only S3 has the variables.
    let by = |name| Some((variable(name).filter(|value| text.starts_with("s3://") && !value.is_empty())?, name));
    let flag = origin.endpoint.clone().map(|endpoint| (endpoint, "--endpoint"));
    flag.or_else(|| by("AWS_ENDPOINT_URL_S3")).or_else(|| by("AWS_ENDPOINT_URL"))
}

/// Why no server answers at the endpoint that was given for `text`; `None` if one may.
async fn no_server(text: &str, origin: &OriginArgs) -> Option<NoServer> {
    // Through a proxy, this machine need neither know nor reach the server.
    let proxies = ["HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "https_proxy", "all_proxy"];
    if proxies.iter().any(|name| std::env::var_os(name).is_some()) {
        return None;
    }
    let (endpoint, given_by) = given_endpoint(text, origin, |name| std::env::var(name).ok())?;
    let uri: http::Uri = endpoint.parse().ok()?;
    let (host, default_port) = (uri.host()?, if uri.scheme_str() == Some("https") { 443 } else { 80 });
    let address = (host.trim_matches(['[', ']']), uri.port_u16().unwrap_or(default_port));
    let connected = tokio::time::timeout(SILENCE, tokio::net::TcpStream::connect(address)).await.ok()?;
    classify(&connected.err()?, &endpoint, host, given_by)
}

/// Whether a connection that failed may succeed later.
fn classify(error: &std::io::Error, endpoint: &str, host: &str, given_by: &str) -> Option<NoServer> {
    // The resolver's errors have no kind.
    let said = error.to_string();
    let unknown = ["not known", "not resolve", "No address associated"].iter().any(|words| said.contains(words));
    match error.kind() {
        ErrorKind::ConnectionRefused => Some(NoServer::Permanently(format!(
            "{given_by} {endpoint}: connection refused: check the port, and that the server runs"
        ))),
        _ if unknown => {
            Some(NoServer::Permanently(format!("{given_by} {endpoint}: unknown host {host}: check its spelling")))
        }
        // The resolver calls this temporary: the network may be starting.
        _ if said.contains("failed to lookup") => {
            Some(NoServer::ForNow(format!("{given_by} {endpoint}: the name {host} cannot be resolved now")))
        }
        _ => None,
    }
}

/// Refuses a name that is neither a URL nor a file, before anything is asked of an origin.
fn check_name(text: &str) -> anyhow::Result<()> {
    if source::is_url(text) || Path::new(text).exists() {
        return Ok(());
    }
    for scheme in ["s3", "gs", "az", "file"] {
        if let Some(rest) = text.strip_prefix(scheme).and_then(|rest| rest.strip_prefix(':')) {
            let slashes = if scheme == "file" { "///" } else { "//" };
            bail!("{text} is not a URL: did you mean {scheme}:{slashes}{}?", rest.trim_start_matches('/'));
        }
    }
    bail!(
        "{text} is neither a URL nor the file of a manifest: the URL of a dataset begins with s3://, gs://, az:// or \
         file:///"
    )
}

/// Finds the dataset that `text` names, and lists its origin if necessary or if `refresh` requires it. If a refresh
/// fails, warns and uses the old listing.
pub(crate) fn resolve(
    text: &str,
    origin: &OriginArgs,
    RefreshFlag { when: refresh, best_effort }: RefreshFlag,
    runtime: &Runtime,
) -> anyhow::Result<ResolvedSource> {
    let _in_runtime = runtime.enter();
    check_name(text)?;
    if refresh != Refresh::Never && !source::is_url(text) {
        bail!("--refresh does not apply to a manifest file; use the dataset's URL instead of {text}");
    }
    let progress = ProgressView::new(0, "listing");
    let (config, home) = (origin.config()?, Home::of_process()?);
    let resolving = source::resolve(text, &config, &home, refresh, &Here, &progress);
    let found = runtime.block_on(with_waiting_note(text, origin, &progress, resolving));
    progress.finish();
    let found = found??;
    report_skipped(&found.skipped, &[]);
    if let Some(why) = found.refresh_failed.as_ref().filter(|_| refresh != Refresh::Never) {
        output::note(format_args!("warning: {why}"));
    }
    if refresh.is_due(found.manifest.created_ns(), now_ns()) && found.is_published() {
        let what = no_refresh(text, &found, &config)?;
        if !best_effort {
            bail!("{what}, or mount what is published with --refresh=best-effort");
        }
        output::note(format_args!("warning: {what}"));
    }
    Ok(found)
}

/// Why a refresh has no effect on a published listing, and the command that renews it.
fn no_refresh(text: &str, found: &ResolvedSource, config: &OriginConfig) -> anyhow::Result<String> {
    let what = format!("--refresh has no effect on {text}: its listing was published beside the data");
    if found.manifest.is_packed() {
        return Ok(format!("{what}, and only `larder pack` of the files that were packed renews it"));
    }
    let (_, origin) = found.manifest.name_and_origin()?;
    let renewing = match source::manifest_url(text) {
        Some(_) => config.command(&["import", origin, "--to", text]),
        None => source::publish_command(origin, config),
    };
    Ok(format!("{what}; renew it with `{renewing}`"))
}

/// Lists an origin, with a progress bar.
pub(crate) fn import(
    url: &OriginUrl,
    origin: &Arc<dyn Origin>,
    wanted: WantedListing<'_>,
    args: &OriginArgs,
    runtime: &Runtime,
) -> anyhow::Result<Imported> {
    let progress = ProgressView::new(0, "listing");
    let (config, home) = (args.config()?, Home::of_process()?);
    let listing = source::import_url(url, Arc::clone(origin), wanted, &config, &home, &progress);
    let imported = runtime.block_on(with_waiting_note(&url.to_string(), args, &progress, listing));
    progress.finish();
    let imported = imported??;
    if imported.resumed_files > 0 {
        output::note(format_args!(
            "resumed an unfinished import: {} files were already listed",
            imported.resumed_files
        ));
    }
    Ok(imported)
}

/// Prints the number of keys that cannot be files, by reason, and the first of these keys.
pub(crate) fn report_skipped(counts: &BTreeMap<String, u64>, first: &[SkippedKey]) {
    for (reason, count) in counts {
        output::note(format_args!("skipped {}: {reason}", output::count(*count, "key")));
        let keys = first.iter().filter(|skipped| skipped.reason == *reason);
        for skipped in keys.take(5) {
            output::note(format_args!("    {}", skipped.key.escape_ascii()));
        }
        if *count > 5 && !first.is_empty() {
            output::note(format_args!("    ... (--json lists more)"));
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Only {
        #[command(flatten)]
        origin: OriginArgs,
    }

    #[test]
    fn an_endpoint_that_is_refused_or_unknown_is_an_error_and_one_that_may_come_back_is_not() {
        let said = |error: std::io::Error| classify(&error, "http://h:1", "h", "--endpoint");
        let refused = said(rustix::io::Errno::CONNREFUSED.into());
        assert!(
            matches!(&refused, Some(NoServer::Permanently(why)) if why.starts_with("--endpoint http://h:1: connection refused")),
            "{refused:?}"
        );
        for resolver in [
            "Name or service not known",
            "No address associated with hostname",
            "nodename nor servname provided, or not known",
            "Name does not resolve",
        ] {
            let found = said(std::io::Error::other(format!("failed to lookup address information: {resolver}")));
            assert!(
                matches!(&found, Some(NoServer::Permanently(why)) if why.starts_with("--endpoint http://h:1: unknown host h")),
                "{found:?}"
            );
        }
        let offline = "failed to lookup address information: Temporary failure in name resolution";
        let found = said(std::io::Error::other(offline));
        assert!(matches!(&found, Some(NoServer::ForNow(why)) if why.contains("--endpoint")), "{found:?}");
        assert_eq!(said(ErrorKind::TimedOut.into()), None);
    }

    #[test]
    fn the_endpoint_of_a_variable_is_judged_under_its_name() {
        let origin = |args: &[&str]| Only::try_parse_from([&["x"], args].concat()).unwrap().origin;
        let set = |names: &'static [&'static str]| {
            move |name: &str| names.contains(&name).then(|| format!("http://{}", name.to_lowercase()))
        };
        let all: &[&str] = &["AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3"];
        let by = |args: &[&str], names| given_endpoint("s3://b", &origin(args), set(names)).map(|(_, by)| by);
        assert_eq!(by(&["--endpoint", "http://h"], all), Some("--endpoint"));
        assert_eq!(by(&[], all), Some("AWS_ENDPOINT_URL_S3"));
        assert_eq!(by(&[], &all[..1]), Some("AWS_ENDPOINT_URL"));
        assert_eq!(by(&[], &[]), None);
        assert_eq!(given_endpoint("gs://b", &origin(&[]), set(all)), None);
    }
}
