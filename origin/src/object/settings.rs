//! The settings that all of object_store's stores share.

use std::time::Duration;

use object_store::{BackoffConfig, ClientOptions, HeaderValue, RetryConfig};

use crate::clients::SharedConnector;
use crate::config::OriginConfig;

/// The settings of the HTTP client that object_store uses, and how to connect it.
pub(crate) fn client_options(config: &OriginConfig) -> (ClientOptions, SharedConnector) {
    let options = ClientOptions::new()
        .with_user_agent(HeaderValue::from_static(concat!("larder/", env!("CARGO_PKG_VERSION"))))
        .with_connect_timeout(config.connect_timeout)
        // This limits the whole transfer of a part, which may take longer than an attempt may go without progress.
        .with_timeout(config.attempt_timeout.max(config.deadline / 3))
        .with_pool_max_idle_per_host(config.concurrency);
    (options, config.clients.connector(Vec::new()))
}

/// The settings for object_store's own retries.
pub(crate) fn retry_config(config: &OriginConfig) -> RetryConfig {
    RetryConfig {
        backoff: BackoffConfig {
            init_backoff: Duration::from_millis(100).min(config.deadline / 16),
            max_backoff: Duration::from_secs(5).min(config.deadline / 8),
            base: 2.0,
        },
        max_retries: 10,
        // Ends before our own deadline, so that errors report the store's last refusal instead of a timeout.
        retry_timeout: config.deadline * 3 / 4,
    }
}

/// The settings for reads, which we retry ourselves: all of object_store's attempts must fit into one of ours.
pub(crate) fn single_retry(config: &OriginConfig) -> RetryConfig {
    RetryConfig { max_retries: 1, ..retry_config(config) }
}
