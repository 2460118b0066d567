//! `larder-controller` as a process: its command line and its metrics.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::Context;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// The settings of a controller process.
#[derive(Clone, Debug)]
pub struct Program<'a> {
    /// The executable.
    pub path: &'a Path,
    /// The kubeconfig. Default: $KUBECONFIG.
    pub kubeconfig: Option<&'a Path>,
    /// `--namespace`: the namespace of the controller's Lease.
    pub namespace: &'a str,
    /// `--identity`: the controller's name in the Lease.
    pub identity: &'a str,
    /// `--admin-address`, which serves the metrics.
    pub admin: SocketAddr,
}

impl Program<'_> {
    /// The command that starts the controller, which logs to standard error.
    pub fn command(&self) -> Command {
        let mut command = Command::new(self.path);
        command.args(["--image", "larder.invalid/larder:fake", "--namespace", self.namespace]);
        command.args(["--identity", self.identity, "--admin-address", &self.admin.to_string()]);
        if let Some(path) = self.kubeconfig {
            command.env("KUBECONFIG", path);
        }
        command.stdin(Stdio::null());
        command
    }
}

/// A loopback address with a free port. Another process may take the port before it is used.
pub fn free_address() -> anyhow::Result<SocketAddr> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).context("find a free port")?;
    listener.local_addr().context("find a free port")
}

/// A scrape of the controller's metrics; the keys are names with labels, without the prefix.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Figures(BTreeMap<String, u64>);

impl Figures {
    /// Scrapes a controller; `None` if it does not answer with status 200.
    pub async fn of(admin: SocketAddr) -> Option<Self> {
        let mut stream = TcpStream::connect(admin).await.ok()?;
        let request = format!("GET /metrics HTTP/1.1\r\nHost: {admin}\r\nConnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).await.ok()?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.ok()?;
        let (_, body) = answer.split_once("\r\n\r\n").filter(|(head, _)| head.contains(" 200 "))?;
        Some(Self::parse(body))
    }

    fn parse(text: &str) -> Self {
        let lines = text.lines().filter_map(|line| {
            let (name, value) = line.strip_prefix("larder_controller_")?.rsplit_once(' ')?;
            Some((name.to_owned(), value.parse().ok()?))
        });
        Self(lines.collect())
    }

    /// The metric `larder_controller_NAME`; 0 if the scrape lacks it.
    pub fn get(&self, name: &str) -> u64 {
        self.0.get(name).copied().unwrap_or_default()
    }

    /// Writes by resource and verb.
    pub fn writes(&self) -> BTreeMap<(String, String), u64> {
        let writes = self.0.iter().filter_map(|(name, value)| {
            let labels = name.strip_prefix("writes_total{")?.strip_suffix('}')?;
            let label = |key: &str| labels.split(',').find_map(|label| label.strip_prefix(key)?.strip_prefix("=\""));
            let text = |key: &str| Some(label(key)?.trim_end_matches('"').to_owned());
            Some(((text("resource")?, text("verb")?), *value))
        });
        writes.collect()
    }

    /// The sum of all writes.
    pub fn all_writes(&self) -> u64 {
        self.writes().values().sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn writes_are_counted_by_resource_and_verb() {
        let figures = Figures::parse(
            "# TYPE larder_controller_writes_total counter\n\
             larder_controller_writes_total{verb=\"create\",resource=\"jobs\"} 7\n\
             larder_controller_writes_total{verb=\"patch\",resource=\"datasets/status\"} 12\n\
             larder_controller_decisions_total 40\n",
        );
        let writes: Vec<_> = figures.writes().into_iter().collect();
        let of = |resource: &str, verb: &str| (resource.to_owned(), verb.to_owned());
        assert_eq!(writes, [(of("datasets/status", "patch"), 12), (of("jobs", "create"), 7)]);
        assert_eq!((figures.all_writes(), figures.get("decisions_total"), figures.get("none")), (19, 40, 0));
    }
}
