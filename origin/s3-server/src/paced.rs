//! A body whose bytes leave at the rate of a slow connection.

use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use hyper::body::{Body as HttpBody, Frame, SizeHint};
use s3s::Body;
use tokio::time::{Instant, Sleep, sleep_until};

/// The bytes that leave at once.
const CHUNK_BYTES: usize = 64 << 10;

/// A body that leaves at a rate, if it has one. A connection has one body at a time.
pub(crate) struct Paced {
    body: Pin<Box<Body>>,
    bytes_per_second: Option<u64>,
    /// What is left of the last bytes of `body`.
    rest: Bytes,
    /// Until when the connection is busy with the bytes that have left.
    busy: Pin<Box<Sleep>>,
}

impl Paced {
    pub(crate) fn new(body: Body, bytes_per_second: Option<u64>) -> Self {
        let (body, busy) = (Box::pin(body), Box::pin(sleep_until(Instant::now())));
        Self { body, bytes_per_second, rest: Bytes::new(), busy }
    }
}

impl HttpBody for Paced {
    type Data = Bytes;
    type Error = <Body as HttpBody>::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Self::Data>, Self::Error>>> {
        let this = self.get_mut();
        let Some(bytes_per_second) = this.bytes_per_second else { return this.body.as_mut().poll_frame(context) };
        ready!(this.busy.as_mut().poll(context));
        if this.rest.is_empty() {
            match ready!(this.body.as_mut().poll_frame(context)) {
                Some(Ok(frame)) => match frame.into_data() {
                    Ok(data) => this.rest = data,
                    Err(trailers) => return Poll::Ready(Some(Ok(trailers))),
                },
                end => return Poll::Ready(end),
            }
        }
        let chunk = this.rest.split_to(this.rest.len().min(CHUNK_BYTES));
        let time = Duration::from_secs_f64(chunk.len() as f64 / bytes_per_second.max(1) as f64);
        // Counted from when it was free, not from now: a late wake-up must not make it slower.
        let free = this.busy.deadline() + time;
        this.busy.as_mut().reset(free);
        Poll::Ready(Some(Ok(Frame::data(chunk))))
    }

    fn is_end_stream(&self) -> bool {
        self.rest.is_empty() && self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        if self.rest.is_empty() { self.body.size_hint() } else { SizeHint::default() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn frame(body: &mut Paced) -> Option<Bytes> {
        let frame = std::future::poll_fn(|context| Pin::new(&mut *body).poll_frame(context)).await?;
        frame.expect("bytes in memory").into_data().ok()
    }

    #[tokio::test(start_paused = true)]
    async fn the_bytes_of_a_body_leave_at_its_rate_and_all_of_them() {
        let bytes: Vec<u8> = (0..1_000_000_u32).map(|at| at as u8).collect();
        let begun = Instant::now();
        for (rate, least, most) in [(None, 0.0, 0.0), (Some(1_000_000), 0.9, 1.0)] {
            let mut body = Paced::new(Body::from(bytes.clone()), rate);
            assert_eq!(body.size_hint().exact(), Some(1_000_000));
            let mut got = Vec::new();
            while let Some(data) = frame(&mut body).await {
                got.extend_from_slice(&data);
            }
            assert!(got == bytes);
            let seconds = begun.elapsed().as_secs_f64();
            assert!((least..=most + 0.01).contains(&seconds), "{rate:?}: {seconds}");
        }
    }
}
