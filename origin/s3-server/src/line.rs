//! The line to a server that seems to be far away: its delay, and its bytes per second, of all connections and of each.

use std::io;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use hyper::{Response, header};
use tokio::net::TcpStream;
use tokio::time::Instant;

use crate::config::Distance;
use crate::pacing::pace;

/// The line that all connections of a server share.
#[derive(Debug)]
pub(crate) struct Line {
    distance: Distance,
    /// When it has sent everything that it has taken so far.
    free: Mutex<Instant>,
}

impl Line {
    /// `None` if the server is here.
    pub(crate) fn new(distance: Distance) -> Option<Self> {
        (distance != Distance::default()).then(|| Self { distance, free: Mutex::new(Instant::now()) })
    }

    /// Limits a new connection.
    pub(crate) fn limit(&self, connection: &TcpStream) -> io::Result<()> {
        self.distance.connection_bytes_per_second.map_or(Ok(()), |rate| pace(connection, rate))
    }

    /// When the body of an answer that is sent now has arrived.
    pub(crate) fn arrival_of<B>(&self, answer: &Response<B>) -> Instant {
        let length = answer.headers().get(header::CONTENT_LENGTH).and_then(|length| length.to_str().ok()?.parse().ok());
        self.arrival(length.unwrap_or(0))
    }

    fn arrival(&self, bytes: u64) -> Instant {
        let mut free = self.free.lock().unwrap_or_else(PoisonError::into_inner);
        let time = self.distance.bytes_per_second.map_or(Duration::ZERO, |bytes_per_second| {
            Duration::from_secs_f64(bytes as f64 / bytes_per_second.max(1) as f64)
        });
        *free = (*free).max(Instant::now()) + time;
        *free + self.distance.delay
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn answers_share_the_bytes_per_second_and_each_takes_the_delay() {
        let delay = Duration::from_millis(40);
        let line =
            Line::new(Distance { delay, bytes_per_second: Some(1_000_000), ..Distance::default() }).expect("it is far");
        let sent = Instant::now();
        let arrivals = [line.arrival(500_000), line.arrival(500_000), line.arrival(0)];
        let second = Duration::from_secs(1);
        assert!(arrivals[0] >= sent + second / 2 + delay);
        assert_eq!(arrivals[1] - arrivals[0], second / 2);
        assert_eq!(arrivals[2], arrivals[1]);
        assert!(Line::new(Distance::default()).is_none());
    }
}
