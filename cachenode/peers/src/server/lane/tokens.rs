//! The tokens of a lane's reads.

use tokio::io::{self, AsyncRead, AsyncReadExt};

use crate::convert::NO_TOKEN;
use crate::token::Token;

/// Reads tokens. Consecutive reads nearly always carry the same token, which is then shared in memory.
#[derive(Default)]
pub(super) struct Tokens {
    bytes: Vec<u8>,
    last: Option<Token>,
}

impl Tokens {
    /// Reads the token of `len` bytes that follows a read. Error: the reason why it is invalid.
    pub(super) async fn read(
        &mut self,
        reader: &mut (impl AsyncRead + Unpin),
        len: usize,
    ) -> io::Result<Result<Option<Token>, &'static str>> {
        if len == 0 {
            return Ok(Ok(None));
        }
        self.bytes.resize(len, 0);
        reader.read_exact(&mut self.bytes).await?;
        if self.last.as_ref().is_none_or(|last| last.reveal().as_bytes() != self.bytes) {
            self.last = std::str::from_utf8(&self.bytes).ok().and_then(|text| Token::new(text).ok());
        }
        Ok(self.last.clone().map(Some).ok_or(NO_TOKEN))
    }
}
