//! Nodes that share their caches: a real `larderd` on each, in a network of its own, real mounts, and an S3 server that
//! counts its requests. Every read is compared with the bytes that were put.

mod arriving;
mod copies;
mod dataset;
mod fetched_once;
mod flags;
mod growth;
mod membership;
mod readers;
mod secrecy;
mod streams;
mod trouble;

pub(crate) use flags::{PARTITIONED, listed, peering, plaintext, start_in_the_clear};
