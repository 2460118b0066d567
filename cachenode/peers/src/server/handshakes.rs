//! Bounds the connections whose handshake is not finished. Their peers are not authenticated yet.
//!
//! When an address has reached its limit, its oldest connection is closed in favour of the new one. When all places are
//! taken, the oldest of all connections is closed. Connections that send nothing therefore do not keep peers out: a
//! peer needs its place only for a few round trips.
//!
//! Invariant: at most [`ServerConfig::handshakes_most`](super::ServerConfig) places are taken, and at most
//! [`ServerConfig::handshakes_each_most`](super::ServerConfig) by one address.

use std::collections::{BTreeMap, HashMap};
use std::net::{IpAddr, Ipv6Addr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio_util::sync::CancellationToken;

/// The connections whose handshake is not finished.
#[derive(Debug)]
pub(super) struct Handshakes {
    most: usize,
    each_most: usize,
    places: Mutex<Places>,
}

#[derive(Debug, Default)]
struct Places {
    /// The places by age, oldest first, each with its address and the token that closes its connection.
    taken: BTreeMap<u64, (IpAddr, CancellationToken)>,
    /// The numbers of each address's places, oldest first.
    of_address: HashMap<IpAddr, Vec<u64>>,
    next: u64,
}

impl Places {
    fn free(&mut self, number: u64) -> Option<CancellationToken> {
        let (address, cancel) = self.taken.remove(&number)?;
        if let Some(numbers) = self.of_address.get_mut(&address) {
            numbers.retain(|other| *other != number);
            if numbers.is_empty() {
                self.of_address.remove(&address);
            }
        }
        Some(cancel)
    }
}

/// The address that counts for the limit. A host with one IPv6 address usually controls the whole 64-bit network.
fn counted(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => {
            let [a, b, c, d, ..] = address.segments();
            Ipv6Addr::new(a, b, c, d, 0, 0, 0, 0).into()
        }
        address => address,
    }
}

impl Handshakes {
    pub(super) fn new(most: usize, each_most: usize) -> Arc<Self> {
        Arc::new(Self { most: most.max(1), each_most: each_most.max(1), places: Mutex::default() })
    }

    fn lock(&self) -> MutexGuard<'_, Places> {
        self.places.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a place for a new connection. If none is free, the oldest connection of the address, or of all addresses,
    /// loses its place.
    pub(super) fn enter(self: &Arc<Self>, address: IpAddr) -> Place {
        let address = counted(address);
        let lost = CancellationToken::new();
        let mut places = self.lock();
        let of_address = places.of_address.get(&address).filter(|numbers| numbers.len() >= self.each_most);
        let oldest_of_address = of_address.and_then(|numbers| numbers.first()).copied();
        let oldest_of_all = || places.taken.first_key_value().map(|(number, _)| *number);
        let is_full = places.taken.len() >= self.most;
        if let Some(oldest) = oldest_of_address.or_else(|| is_full.then(oldest_of_all).flatten())
            && let Some(cancel) = places.free(oldest)
        {
            cancel.cancel();
        }
        let number = places.next;
        places.next += 1;
        places.taken.insert(number, (address, lost.clone()));
        places.of_address.entry(address).or_default().push(number);
        Place { handshakes: Arc::clone(self), number, lost }
    }
}

/// A connection's place. Dropping it frees the place.
#[derive(Debug)]
pub(super) struct Place {
    handshakes: Arc<Handshakes>,
    number: u64,
    /// Cancelled when a newer connection has taken the place.
    pub(super) lost: CancellationToken,
}

impl Drop for Place {
    fn drop(&mut self) {
        self.handshakes.lock().free(self.number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lost(places: &[Place]) -> Vec<usize> {
        (0..places.len()).filter(|&at| places[at].lost.is_cancelled()).collect()
    }

    #[test]
    fn an_address_takes_no_more_than_its_places_and_then_its_own_oldest() {
        let handshakes = Handshakes::new(100, 3);
        let other = handshakes.enter([10, 0, 0, 2].into());
        let mut places: Vec<Place> = (0..5).map(|_| handshakes.enter([10, 0, 0, 1].into())).collect();
        assert_eq!(lost(&places), [0, 1]);
        assert!(!other.lost.is_cancelled());
        // A place that was given back is free; one that was lost already frees none.
        drop(places.remove(3));
        drop(places.remove(0));
        places.push(handshakes.enter([10, 0, 0, 1].into()));
        assert_eq!(lost(&places), [0]);
        places.push(handshakes.enter([10, 0, 0, 1].into()));
        assert_eq!(lost(&places), [0, 1]);
        drop((places, other));
        let places = handshakes.lock();
        assert!(places.taken.is_empty() && places.of_address.is_empty(), "{places:?}");
    }

    #[test]
    fn when_all_places_are_taken_the_oldest_of_all_goes() {
        let handshakes = Handshakes::new(4, 2);
        let places: Vec<Place> = (0..6).map(|n| handshakes.enter([10, 0, 0, n].into())).collect();
        assert_eq!(lost(&places), [0, 1]);
        assert_eq!(handshakes.lock().taken.len(), 4);
    }

    #[test]
    fn an_ipv6_network_and_an_ipv4_address_in_ipv6_form_count_as_one_address() {
        for (one, same, another) in [
            ("fd00:1:2:3::1", "fd00:1:2:3:4:5:6:7", "fd00:1:2:4::1"),
            ("10.0.0.1", "::ffff:10.0.0.1", "::ffff:10.0.0.2"),
        ] {
            let [one, same, another] = [one, same, another].map(|text| counted(text.parse().unwrap()));
            assert!(one == same && one != another, "{one} {same} {another}");
        }
    }
}
