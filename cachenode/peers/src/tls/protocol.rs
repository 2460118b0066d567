//! The protocols that share one port. TLS negotiates which one a connection uses (ALPN).

/// The protocol of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AppProtocol {
    /// gRPC over HTTP/2.
    Grpc,
    /// Bytes of blocks in frames.
    Lane,
}

impl AppProtocol {
    /// All protocols, in the order of their numbers.
    pub(super) const ALL: [Self; 2] = [Self::Grpc, Self::Lane];

    /// The protocol's name in the ALPN handshake.
    pub(super) fn alpn(self) -> &'static [u8] {
        match self {
            Self::Grpc => b"h2",
            Self::Lane => b"larder-blocks/1",
        }
    }

    /// The protocol that both sides agreed on; gRPC over HTTP/2 if they agreed on none.
    pub(crate) fn of_alpn(agreed: Option<&[u8]>) -> Self {
        if agreed == Some(Self::Lane.alpn()) { Self::Lane } else { Self::Grpc }
    }
}
