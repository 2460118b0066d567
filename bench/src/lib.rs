//! Measuring: epochs over a mount, and the quickstart that shows them under every policy.
//!
//! The cast: [`tree`] makes files of a training set's sizes; [`epochs`] reads a folder the way training does and checks
//! what it reads, in the order that [`order`] gives; [`quickstart`] puts an embedded S3, a mount and the readers together;
//! [`sim`] tells without a mount which reads would hit; [`systems`] are Larder and its peers, [`peers`] measures them side
//! by side, [`meta`] their names and attributes, [`fio`] what fio makes of them; [`peers_net`] measures reads from another node; [`fuse_requests`] counts what they
//! ask of a daemon; [`plot`] draws.
//!
//! Invariant: a figure is counted or timed, never computed from what it should be.

pub mod epochs;
pub mod fio;
pub mod fuse_requests;
pub mod meta;
pub mod order;
pub mod peers;
pub mod peers_net;
pub mod plot;
pub mod quickstart;
mod side_by_side;
pub mod sim;
pub mod systems;
pub mod tree;
