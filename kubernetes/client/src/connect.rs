//! The clients of the API server that programs share.
//!
//! Invariant: a client does not retry. By default, kube retries the statuses 429, 503 and 504 for minutes without a log
//! line, so a caller could not distinguish an overloaded API server from a silent one, and a leader could lose its
//! lease. Each caller retries with its own pauses and time limits.

use std::env;
use std::fs;
use std::net::Ipv6Addr;
use std::path::Path;

use anyhow::Context;
use bytes::Bytes;
use futures::StreamExt;
use http::header::{AUTHORIZATION, HeaderValue};
use http::{Response, Uri};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, BodyStream, StreamBody};
use kube::client::{ClientBuilder, DynBody};
use kube::{Client, Config};
use tower::BoxError;
use tower::util::MapResponseLayer;

/// The folder with the token and the CA of the pod's service account.
const SERVICE_ACCOUNT: &str = "/var/run/secrets/kubernetes.io/serviceaccount";
/// The longest line of an answer to [`in_cluster`]'s clients: a page of a list, or an event of a watch.
const LINE_BYTES_MOST: usize = 16 << 20;

/// Connects with the pod's service account, or with the kubeconfig that KUBECONFIG names.
///
/// # Errors
/// Neither a service account nor a kubeconfig was found.
pub async fn connect() -> anyhow::Result<Client> {
    let connect = async {
        let mut config = Config::infer().await?;
        config.default_retry = false;
        anyhow::Ok(Client::try_from(config)?)
    };
    let client = connect.await;
    client.context("connect to the Kubernetes API: run in a pod with a service account, or set KUBECONFIG")
}

/// A client with the pod's service account, of which only the token and the CA are needed. See [`with_account`].
pub(crate) fn in_cluster() -> anyhow::Result<Client> {
    let variable = |name| env::var(name).with_context(|| format!("read the environment variable {name}"));
    let api = address(&variable("KUBERNETES_SERVICE_HOST")?, &variable("KUBERNETES_SERVICE_PORT")?)?;
    with_account(api, Path::new(SERVICE_ACCOUNT))
}

/// The address of the API server. An IPv6 address is written in brackets.
fn address(host: &str, port: &str) -> anyhow::Result<Uri> {
    let host = if host.parse::<Ipv6Addr>().is_ok() { format!("[{host}]") } else { host.to_owned() };
    let address = format!("https://{host}:{port}");
    address.parse().with_context(|| format!("invalid address of the API server: {address}"))
}

/// A client with the `token` and, for an encrypted connection, the `ca.crt` in this folder. It reads them once: the
/// caller creates another client when it may have to use newer ones. It refuses an answer with a line over 16 MiB.
pub(crate) fn with_account(api: Uri, folder: &Path) -> anyhow::Result<Client> {
    let path = folder.join("token");
    let token = fs::read_to_string(&path).with_context(|| format!("read {}", path.display()))?;
    let bearer = HeaderValue::try_from(format!("Bearer {}", token.trim()));
    let mut bearer = bearer.with_context(|| format!("no token in {}", path.display()))?;
    bearer.set_sensitive(true);
    let (ca, is_encrypted) = (folder.join("ca.crt"), api.scheme_str() == Some("https"));
    let mut config = Config::new(api);
    config.default_retry = false;
    config.headers.push((AUTHORIZATION, bearer));
    if is_encrypted {
        // Without a list of roots, kube first loads those of the system, which an image may lack.
        config.root_cert = Some(Vec::new());
        config.root_cert_file = Some(ca.clone());
    }
    let bounded = MapResponseLayer::new(|answer: Response<Box<DynBody>>| answer.map(bounded));
    let client = ClientBuilder::try_from(config).with_context(|| format!("use the CA in {}", ca.display()))?;
    Ok(client.with_layer(&bounded).build())
}

/// Fails a body with a line over [`LINE_BYTES_MOST`].
fn bounded(body: Box<DynBody>) -> UnsyncBoxBody<Bytes, BoxError> {
    let mut line = 0;
    let frames = BodyStream::new(body).map(move |frame| {
        frame.and_then(|frame| {
            if let Some(data) = frame.data_ref() {
                let end = data.iter().rposition(|byte| *byte == b'\n');
                line = end.map_or(line + data.len(), |end| data.len() - end - 1);
            }
            let is_bounded = line <= LINE_BYTES_MOST;
            is_bounded.then_some(frame).ok_or_else(|| "the API server sent a line of more than 16 MiB".into())
        })
    });
    StreamBody::new(frames).boxed_unsync()
}

#[cfg(test)]
mod tests {
    use http_body_util::Full;

    use super::*;

    #[test]
    fn an_ipv6_address_of_the_api_server_is_written_in_brackets() {
        let shown = |host: &str| address(host, "443").unwrap().to_string();
        assert_eq!(shown("10.96.0.1"), "https://10.96.0.1:443/");
        assert_eq!(shown("fd00::1"), "https://[fd00::1]:443/");
        assert_eq!(shown("kubernetes.default.svc"), "https://kubernetes.default.svc:443/");
        address("two words", "443").unwrap_err();
    }

    #[tokio::test]
    async fn a_service_account_is_a_token_and_a_ca() {
        let folder = tempfile::tempdir().unwrap();
        let create = || with_account(address("fd00::1", "443").unwrap(), folder.path()).map(|_| ());
        let missing = |name: &str| {
            let error = format!("{:#}", create().unwrap_err());
            assert!(error.contains(name), "{error}");
        };
        missing("token");
        // A newline after the token is not part of it.
        fs::write(folder.path().join("token"), "secret\n").unwrap();
        missing("ca.crt");
        let ca = rcgen::generate_simple_self_signed(["ca".to_owned()]).unwrap();
        fs::write(folder.path().join("ca.crt"), ca.cert.pem()).unwrap();
        create().unwrap();
        fs::write(folder.path().join("token"), "two\nlines").unwrap();
        missing("no token");
    }

    #[tokio::test]
    async fn a_body_may_be_long_but_its_lines_may_not() {
        let read = async |body: Vec<u8>| {
            let body = Full::new(Bytes::from(body)).map_err(|never| match never {});
            bounded(Box::new(body)).collect().await.map(|body| body.to_bytes().len())
        };
        assert_eq!(read(vec![b'x'; LINE_BYTES_MOST]).await.unwrap(), LINE_BYTES_MOST);
        read(vec![b'x'; LINE_BYTES_MOST + 1]).await.unwrap_err();
        let mut lines = vec![b'x'; LINE_BYTES_MOST * 2];
        lines[LINE_BYTES_MOST] = b'\n';
        assert_eq!(read(lines).await.unwrap(), LINE_BYTES_MOST * 2);
    }
}
