//! The engine of a node's cache.
