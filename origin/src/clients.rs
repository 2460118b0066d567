//! The HTTP clients of a process.
//!
//! Origins and key servers with the same settings share a client, and so the connections to a server and the
//! certificates that it trusts. A node with a thousand datasets would otherwise read all certificates of the machine a
//! thousand times when it starts, and keep as many copies.
//!
//! Invariant: a client is shared only if all of its settings are the same. Credentials are not among them, because each
//! request brings its own.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use async_trait::async_trait;
use object_store::ClientOptions;
use object_store::client::{
    HttpClient, HttpConnector, HttpError, HttpRequest, HttpResponse, HttpService, ReqwestConnector,
};

/// The clients of a process. Clones share them.
#[derive(Clone, Default)]
pub struct SharedClients(Arc<Mutex<HashMap<Settings, Weak<HttpClient>>>>);

/// The options of a client as text, and the certificates that it trusts besides those of the machine, which the text
/// does not show.
type Settings = (String, Vec<u8>);

impl SharedClients {
    /// Connects clients that trust these certificates (PEM) too, besides those of the machine. They have to be among
    /// the options as well.
    pub(crate) fn connector(&self, certificates: Vec<u8>) -> SharedConnector {
        SharedConnector { clients: self.clone(), certificates }
    }
}

impl fmt::Debug for SharedClients {
    /// Without their settings: a proxy's URL may contain a password.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SharedClients").finish_non_exhaustive()
    }
}

/// Gives a client that another origin has already, if its settings are the same.
#[derive(Clone, Debug)]
pub(crate) struct SharedConnector {
    clients: SharedClients,
    certificates: Vec<u8>,
}

impl HttpConnector for SharedConnector {
    fn connect(&self, options: &ClientOptions) -> object_store::Result<HttpClient> {
        let settings = (format!("{options:?}"), self.certificates.clone());
        // Locked until the client is there, so that a thousand origins that are opened at once wait for one client.
        let mut clients = self.clients.0.lock().unwrap_or_else(PoisonError::into_inner);
        let client = match clients.get(&settings).and_then(Weak::upgrade) {
            Some(client) => client,
            None => {
                clients.retain(|_, client| client.strong_count() > 0);
                let client = Arc::new(ReqwestConnector {}.connect(options)?);
                clients.insert(settings, Arc::downgrade(&client));
                client
            }
        };
        Ok(HttpClient::new(Shared(client)))
    }
}

/// A client that others may use too.
#[derive(Debug)]
struct Shared(Arc<HttpClient>);

#[async_trait]
impl HttpService for Shared {
    async fn call(&self, request: HttpRequest) -> Result<HttpResponse, HttpError> {
        self.0.execute(request).await
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    /// How many clients there are, in use or not.
    fn count(clients: &SharedClients) -> usize {
        clients.0.lock().unwrap().len()
    }

    #[test]
    fn clients_are_shared_if_all_of_their_settings_are_the_same_and_end_with_the_last_user() {
        let clients = SharedClients::default();
        let connect = |certificates: &[u8], options: ClientOptions| {
            clients.connector(certificates.to_vec()).connect(&options).expect("a client")
        };
        let all: Vec<_> = (0..3).map(|_| connect(b"", ClientOptions::new())).collect();
        assert_eq!(count(&clients), 1);
        let others = [
            connect(b"a", ClientOptions::new()),
            connect(b"b", ClientOptions::new()),
            connect(b"", ClientOptions::new().with_allow_http(true)),
            connect(b"", ClientOptions::new().with_allow_invalid_certificates(true)),
            connect(b"", ClientOptions::new().with_connect_timeout(Duration::from_secs(7))),
            connect(b"", ClientOptions::new().with_proxy_url("http://127.0.0.1:9")),
        ];
        assert_eq!(count(&clients), 1 + others.len());
        drop((all, others));
        let _again = connect(b"", ClientOptions::new());
        assert_eq!(count(&clients), 1);
    }

    #[test]
    fn debug_shows_no_settings() {
        let clients = SharedClients::default();
        let options = ClientOptions::new().with_proxy_url("http://user:hunter2@127.0.0.1:9");
        let _client = clients.connector(Vec::new()).connect(&options).expect("a client");
        assert!(!format!("{clients:?}").contains("hunter2"));
    }
}
