//! Bounds the connections whose handshake is finished, in total and per address, so that no peer can use up the places
//! of others.
//!
//! Invariant: at most [`ServerConfig::connections_most`](super::ServerConfig) places are taken, and at most
//! [`ServerConfig::connections_each_most`](super::ServerConfig) by one address.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// The connections whose handshake is finished.
pub(super) struct Connections {
    all: Arc<Semaphore>,
    each_most: usize,
    /// The free places of each address that has a connection.
    each: Mutex<HashMap<IpAddr, Weak<Semaphore>>>,
}

impl Connections {
    pub(super) fn new(most: usize, each_most: usize) -> Self {
        let permits = |most: usize| most.clamp(1, Semaphore::MAX_PERMITS);
        Self { all: Arc::new(Semaphore::new(permits(most))), each_most: permits(each_most), each: Mutex::default() }
    }

    /// Takes a place for a connection from this address; dropping the permits frees it. Error: the reason why no place
    /// is free.
    pub(super) fn enter(&self, address: IpAddr) -> Result<[OwnedSemaphorePermit; 2], &'static str> {
        // Counted per full address, not per IPv6 network: one network may contain all nodes of a cluster.
        let own = self.places_of(address.to_canonical());
        let own = own.try_acquire_owned().map_err(|_| {
            "too many connections from its address are open \
            (--peer-connections)"
        })?;
        let all = Arc::clone(&self.all).try_acquire_owned().map_err(|_| "too many connections are open")?;
        Ok([own, all])
    }

    fn places_of(&self, address: IpAddr) -> Arc<Semaphore> {
        let mut each = self.each.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(places) = each.get(&address).and_then(Weak::upgrade) {
            return places;
        }
        each.retain(|_, places| places.strong_count() > 0);
        let places = Arc::new(Semaphore::new(self.each_most));
        each.insert(address, Arc::downgrade(&places));
        places
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_takes_its_places_and_all_take_no_more_than_there_are() {
        let connections = Connections::new(5, 2);
        let enter = |text: &str| connections.enter(text.parse().unwrap());
        let mut held: Vec<_> =
            ["10.0.0.1", "::ffff:10.0.0.1", "fd00::1", "fd00::2"].map(|it| enter(it).unwrap()).into();
        assert!(enter("10.0.0.1").unwrap_err().contains("address"), "the same address in IPv6 form");
        held.push(enter("10.0.0.2").unwrap());
        assert!(!enter("10.0.0.3").unwrap_err().contains("address"));
        drop(held.remove(0));
        held.push(enter("10.0.0.1").unwrap());
        drop(held);
        drop(enter("10.0.0.4").unwrap());
        assert_eq!(connections.each.lock().unwrap().len(), 1, "addresses without connections are forgotten");
    }
}
