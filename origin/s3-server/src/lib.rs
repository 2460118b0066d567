//! A small in-process S3 server for the quickstart, benchmarks and tests.
//!
//! - [`S3Server`] starts the server on a loopback port, fills it without network requests, reads its counters and stops
//!   it.
//! - `store` contains the buckets and objects. A body is either bytes in memory or a file that is read on demand.
//! - `service` implements S3's operations over the store. s3s supplies the protocol, the signatures and the XML.
//! - [`ListingServer`] is a separate server that lists any number of simulated objects.
//! - `line` has a server answer as if it were far away; `pacing` limits each of its connections.
//! - `plain_gets` answers plain GETs and HEADs without s3s, for benchmarks with a server that does not check
//!   signatures.
//!
//! The invariant: a GET neither hashes nor copies a body in memory, so that a benchmark against this server measures
//! the reader. The server is not for production: it keeps nothing after it stops.

#![warn(missing_docs)]

mod config;
mod counters;
mod line;
mod listing_server;
mod pacing;
mod plain_gets;
mod server;
mod service;
mod store;

pub use crate::config::{Distance, S3ServerConfig};
pub use crate::counters::Counters;
pub use crate::listing_server::{ListingConfig, ListingFault, ListingServer, MadeUpKeys};
pub use crate::server::S3Server;
