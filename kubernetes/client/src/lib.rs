//! What every program of Larder shares of Kubernetes. Only the crates of `kubernetes/` link kube.
//!
//! The cast: [`mod@watch`] follows the objects of one kind, which a [`store`] keeps by their [`key`]; [`kinds`] are the
//! kinds of objects, and [`fields`] what objects of all kinds have; [`pod`] and [`node`] are the one reader of pods and
//! of nodes; [`endpoints`] follows the endpoints of a Service; [`lease`] elects a leader; [`events`] are Events about an
//! object; [`mod@short_hash`] makes names.
//!
//! Invariant: an object is read with the types of Kubernetes here, and cut to what a program keeps before it is kept.

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
// The types of kube that programs name: the client with its configuration, the parameters of requests, errors, and the
// traits of objects. `core` and `runtime` are for programs that follow other kinds than those of [`kinds`].
pub use kube::{Api, Client, Config, Error, Resource, ResourceExt, Result, api, client, config, core, runtime};
