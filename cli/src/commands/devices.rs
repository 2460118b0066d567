//! `larder devices`

mod table;

use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, anyhow};
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::args::DevicesArgs;
use crate::{http, output};

/// The largest report: 16 GPUs with slices and 16 HCAs with hundreds of GIDs each take a part of it.
const MOST: usize = 16 << 20;
/// The timeout of a request.
const PATIENCE: Duration = Duration::from_secs(10);

pub(crate) fn run(args: &DevicesArgs) -> anyhow::Result<ExitCode> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let asked = runtime.block_on(async {
        let asked = async {
            let stream = TcpStream::connect(&args.address).await?;
            http::get(stream, &args.address, "/devices", MOST).await
        };
        // Created inside the runtime, because it uses the runtime's clock.
        timeout(PATIENCE, asked).await
    });
    let asked = asked.map_err(|_| anyhow!("no answer within {} s", PATIENCE.as_secs())).and_then(|asked| asked);
    let body = asked.with_context(|| {
        let json = if args.json { " --json" } else { "" };
        let hint = format!("kubectl exec -n larder-system ds/larder-devices -- larder devices{json}");
        format!("cannot ask larder-devices at {} (in a cluster: `{hint}`)", args.address)
    })?;
    if args.json {
        let report: serde_json::Value = serde_json::from_slice(&body).context("the answer is not a device report")?;
        output::json(&report)?;
    } else {
        let report = serde_json::from_slice(&body).context("this version cannot read the device report")?;
        output::text(&table::of(&report))?;
    }
    Ok(ExitCode::SUCCESS)
}
