//! The frames of NRI's socket, which carries two connections.
//!
//! ```text
//! frame = connection:u32  length:u32  payload[length]      big-endian
//! ```
//!
//! The payloads of one connection, put together, are a stream of ttrpc messages; a frame may end anywhere in one.

/// The bytes before a payload.
pub(super) const HEADER_BYTES: usize = 8;

/// The longest payload that is sent: the runtime reads a frame into a buffer of this size, and gives the connection up if a
/// frame with the beginning of a message does not fit.
pub(super) const SENT_BYTES_MOST: usize = 4096;

/// The longest payload that is received: a ttrpc message of 4 MiB, and its header.
pub(super) const RECEIVED_BYTES_MOST: usize = (4 << 20) + 10;

/// The connection on which the runtime calls the plugin.
pub(super) const PLUGIN: u32 = 1;

/// The connection on which the plugin calls the runtime.
pub(super) const RUNTIME: u32 = 2;

/// What is before a payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Header {
    /// [`PLUGIN`], [`RUNTIME`], or one that is not known.
    pub(super) connection: u32,
    /// The length of the payload, at most [`RECEIVED_BYTES_MOST`].
    pub(super) length: usize,
}

impl Header {
    /// `None` if the payload is too long.
    pub(super) fn decode(bytes: [u8; HEADER_BYTES]) -> Option<Self> {
        let [a, b, c, d, e, f, g, h] = bytes;
        let length = u32::from_be_bytes([e, f, g, h]).try_into().ok()?;
        (length <= RECEIVED_BYTES_MOST).then_some(Self { connection: u32::from_be_bytes([a, b, c, d]), length })
    }

    /// As bytes.
    pub(super) fn encode(self) -> [u8; HEADER_BYTES] {
        let [a, b, c, d] = self.connection.to_be_bytes();
        // Whoever sends keeps to SENT_BYTES_MOST.
        let [e, f, g, h] = (self.length as u32).to_be_bytes();
        [a, b, c, d, e, f, g, h]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_names_a_connection_and_a_length() {
        let bytes = [0, 0, 0, 2, 0, 0, 16, 1];
        assert_eq!(Header::decode(bytes), Some(Header { connection: RUNTIME, length: 4097 }));
        assert_eq!(Header::decode(bytes).unwrap().encode(), bytes);
        let length = |length: usize| {
            let [a, b, c, d] = (length as u32).to_be_bytes();
            Header::decode([0, 0, 0, 1, a, b, c, d])
        };
        assert!(length(RECEIVED_BYTES_MOST).is_some());
        assert_eq!(length(RECEIVED_BYTES_MOST + 1), None);
    }
}
