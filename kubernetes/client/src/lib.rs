//! What every program of Larder shares of Kubernetes. Only the crates of `kubernetes/` link kube.
//!
//! The cast: [`mod@watch`] follows the objects of one kind, which a [`store`] keeps by their [`key`]; [`pod`] and [`node`]
//! are the one reading of both; [`kinds`] are the kinds that the controller uses and [`fields`] what objects of all
//! kinds have; [`lease`] elects a leader, [`endpoints`] follows those of a Service, [`events`] tell people about an object, and [`mod@short_hash`] makes names.

#![warn(missing_docs)]

mod connect;
pub mod endpoints;
pub mod events;
pub mod fields;
pub mod key;
pub mod kinds;
pub mod lease;
pub mod node;
pub mod pod;
pub mod short_hash;
pub mod store;
pub mod watch;

pub use connect::connect;
pub use key::{Key, Meta};
pub use kube::{Api, Client, Config, Error, Resource, ResourceExt, Result, api, client, config, core, runtime};
