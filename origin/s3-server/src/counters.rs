//! The counts of requests.

/// Requests since the start or the last reset. Rejected requests count too, but their bytes do not.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counters {
    /// GETs of objects.
    pub gets: u64,
    /// Bytes of the bodies of these GETs, sent or still to be sent.
    pub get_bytes: u64,
    /// Pages of listings.
    pub lists: u64,
    /// HEADs of objects.
    pub heads: u64,
    /// Puts of objects, counting each part of an upload.
    pub puts: u64,
}
