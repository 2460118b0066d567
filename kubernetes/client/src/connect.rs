//! The clients of the API server that programs share.
//!
//! Invariant: a client does not retry. By default, kube retries the statuses 429, 503 and 504 for minutes without a log
//! line, so a caller could not distinguish an overloaded API server from a silent one, and a leader could lose its
//! lease. Each caller retries with its own pauses and time limits.

use std::env;
use std::fs;
use std::net::Ipv6Addr;
use std::path::Path;
use std::time::Duration;

use anyhow::Context;
use bytes::Bytes;
use futures::StreamExt;
use http::header::{AUTHORIZATION, HeaderValue};
use http::{Response, Uri};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, BodyStream, StreamBody};
use kube::client::{ClientBuilder, DynBody};
use kube::config::{KubeConfigOptions, Kubeconfig, KubeconfigError};
use kube::{Client, Config};
use tower::BoxError;
use tower::util::MapResponseLayer;

/// The folder with the token and the CA of the pod's service account.
const SERVICE_ACCOUNT: &str = "/var/run/secrets/kubernetes.io/serviceaccount";
/// The time limit of connecting to another cluster.
const CONNECT: Duration = Duration::from_secs(10);
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

/// The longest kubeconfig.
const KUBECONFIG_BYTES_MOST: usize = 256 << 10;

/// Why a kubeconfig is not used.
#[derive(Debug, thiserror::Error)]
pub enum KubeconfigRefused {
    /// It names something outside of itself.
    #[error(
        "the kubeconfig has `{0}`, and nothing outside of it is run or read: put the token or the certificates into it, \
         as `kubectl config view --flatten` does"
    )]
    NamesOthers(&'static str),
    /// The connection would not be safe.
    #[error("the kubeconfig has `{0}`: the server must be an https URL, and its certificate is always verified")]
    Insecure(&'static str),
    /// It is too large.
    #[error("the kubeconfig has more than 256 KiB")]
    TooLarge,
    /// It is no kubeconfig. The message of the parser would quote it, with its secrets.
    #[error("it is not a kubeconfig in YAML: `kubectl config view --kubeconfig FILE` says what is wrong with it")]
    Unparsed,
    /// It has no current context, or lacks a part of it.
    #[error("the kubeconfig cannot be used: {0}")]
    Unusable(#[source] KubeconfigError),
    /// Its certificates cannot be used.
    #[error("the kubeconfig cannot be used: {0}")]
    Unconnected(#[source] kube::Error),
}

/// A client with a kubeconfig that has everything in itself. No command is run and no file is read, whatever it says.
/// It refuses an answer with a line over 16 MiB.
///
/// # Errors
/// The kubeconfig names a command or a file, or cannot be used.
pub async fn with_kubeconfig(text: &str) -> Result<Client, KubeconfigRefused> {
    if text.len() > KUBECONFIG_BYTES_MOST {
        return Err(KubeconfigRefused::TooLarge);
    }
    let kubeconfig = Kubeconfig::from_yaml(text).map_err(|error| match error {
        KubeconfigError::Parse(_) => KubeconfigRefused::Unparsed,
        error => KubeconfigRefused::Unusable(error),
    })?;
    for user in kubeconfig.auth_infos.iter().filter_map(|named| named.auth_info.as_ref()) {
        let names = [
            ("exec", user.exec.is_some()),
            ("auth-provider", user.auth_provider.is_some()),
            ("tokenFile", user.token_file.is_some()),
            ("client-certificate", user.client_certificate.is_some()),
            ("client-key", user.client_key.is_some()),
        ];
        if let Some((name, _)) = names.into_iter().find(|(_, is_there)| *is_there) {
            return Err(KubeconfigRefused::NamesOthers(name));
        }
    }
    for cluster in kubeconfig.clusters.iter().filter_map(|named| named.cluster.as_ref()) {
        if cluster.certificate_authority.is_some() {
            return Err(KubeconfigRefused::NamesOthers("certificate-authority"));
        }
        if cluster.insecure_skip_tls_verify == Some(true) {
            return Err(KubeconfigRefused::Insecure("insecure-skip-tls-verify"));
        }
        if !cluster.server.as_deref().is_some_and(|server| server.starts_with("https://")) {
            return Err(KubeconfigRefused::Insecure("server"));
        }
    }
    let config = Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await;
    let mut config = config.map_err(KubeconfigRefused::Unusable)?;
    config.default_retry = false;
    config.connect_timeout = Some(CONNECT);
    let bounded = MapResponseLayer::new(|answer: Response<Box<DynBody>>| answer.map(bounded));
    let client = ClientBuilder::try_from(config).map_err(KubeconfigRefused::Unconnected)?;
    Ok(client.with_layer(&bounded).build())
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
    async fn a_kubeconfig_runs_no_command_and_reads_no_file() {
        let config = |cluster: &str, user: &str| {
            format!(
                "apiVersion: v1\nkind: Config\ncurrent-context: c\n\
                 clusters: [{{name: c, cluster: {{{cluster}}}}}]\nusers: [{{name: u, user: {{{user}}}}}]\n\
                 contexts: [{{name: c, context: {{cluster: c, user: u}}}}]\n"
            )
        };
        let server = "server: \"https://10.0.0.1:6443\"";
        let refused = async |cluster: &str, user: &str| {
            with_kubeconfig(&config(cluster, user)).await.err().map(|error| error.to_string()).unwrap_or_default()
        };
        let sound = with_kubeconfig(&config(server, "token: secret")).await;
        assert!(!matches!(sound, Err(KubeconfigRefused::NamesOthers(_) | KubeconfigRefused::Insecure(_))));
        for (cluster, user, name) in [
            (server, "exec: {apiVersion: client.authentication.k8s.io/v1, command: /bin/false}", "exec"),
            (server, "tokenFile: /etc/passwd", "tokenFile"),
            (server, "client-certificate: /etc/passwd", "client-certificate"),
            (server, "client-key: /etc/passwd", "client-key"),
            (&*format!("{server}, certificate-authority: /etc/passwd"), "token: secret", "certificate-authority"),
            (&*format!("{server}, insecure-skip-tls-verify: true"), "token: secret", "insecure-skip-tls-verify"),
            ("server: \"http://10.0.0.1\"", "token: secret", "server"),
        ] {
            let said = refused(cluster, user).await;
            assert!(said.contains(&format!("`{name}`")) && !said.contains("secret"), "{name}: {said}");
        }
        assert!(matches!(with_kubeconfig("kind: Config").await, Err(KubeconfigRefused::Unusable(_))));
        // Nothing of one that cannot be parsed is quoted: it may be the token alone.
        for text in ["hush", "users: [{name: u, user: {token: hush", "users: {token: hush}"] {
            let said = with_kubeconfig(text).await.err().map(|error| error.to_string()).unwrap_or_default();
            assert!(said.contains("not a kubeconfig") && !said.contains("hush"), "{said}");
        }
        assert!(matches!(with_kubeconfig(&"#".repeat(300 << 10)).await, Err(KubeconfigRefused::TooLarge)));
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
