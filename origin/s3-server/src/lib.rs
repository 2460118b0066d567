//! A small in-process S3 server for the quickstart, benchmarks and tests.
//!
//! - [`S3Server`] starts it on a loopback port, fills it without network requests, reads its counters and stops it.
//! - `store` holds the buckets and objects; a body is either bytes in memory or a file that is read on demand.
//! - `service` implements S3's operations over the store. s3s supplies the protocol, the signatures and the XML.
//! - [`ListingServer`] is another server, which lists any number of made-up objects.
//! - `plain_gets` answers plain GETs and HEADs without s3s, for benchmarks with a server that does not check their
//!   signatures.
//!
//! The invariant: a GET costs neither a hash nor a copy of a body in memory, so that a benchmark against this server
//! measures the reader. The server keeps nothing after its end and is not for production.

#![warn(missing_docs)]

mod config;
mod counters;
mod listing_server;
mod plain_gets;
mod server;
mod service;
mod store;

pub use crate::config::S3ServerConfig;
pub use crate::counters::Counters;
pub use crate::listing_server::{ListingConfig, ListingFault, ListingServer, MadeUpKeys};
pub use crate::server::S3Server;
