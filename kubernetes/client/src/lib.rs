//! The Kubernetes code that all programs of Larder share. Only the crates of `kubernetes/` link kube.
//!
//! The parts: [`mod@watch`] watches the objects of one kind, which are [`unparsed`] at first, and a [`store`] keeps
//! them by [`key`]. [`kinds`] lists the kinds of objects, and [`fields`] reads the fields that all kinds have. [`pod`]
//! and [`node`] are the only readers of pods and nodes. [`endpoints`] watches the endpoints of a Service. [`lease`]
//! elects a leader. [`events`] creates Events about an object. [`mod@short_hash`] computes short digests for names.
//!
//! Invariant: an object is read here with the types of Kubernetes, and reduced to the fields that a program needs
//! before it is stored.

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
pub mod unparsed;
pub mod watch;

pub use connect::{KubeconfigRefused, connect, with_kubeconfig};
pub use key::{Key, Meta};
// The types of kube that programs name: the client with its configuration, the parameters of requests, errors, and the
// traits of objects. `core` and `runtime` are for programs that watch kinds other than those of [`kinds`].
pub use kube::{Api, Client, Config, Error, Resource, ResourceExt, Result, api, client, config, core, runtime};
