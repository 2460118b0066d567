//! An S3 server with many datasets of equally large files, which can stop answering.

use std::time::Duration;

use anyhow::{Context, ensure};
use larder_dataset::size::show_bytes;
use larder_s3_server::{Distance, S3Server, S3ServerConfig};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use tokio::runtime::Runtime;

use crate::silence::Silence;
use crate::systems::Stop;
use larder_epochs::process::total_memory;
use larder_epochs::tree::MadeFile;

const BUCKET: &str = "bench";

/// The objects are kept in memory and may take one part in this many. The page cache and the node need the rest.
const PART_OF_MEMORY: u64 = 4;

/// The datasets to make.
pub(crate) struct OriginOptions {
    pub(crate) datasets: u32,
    /// Number of files of each dataset.
    pub(crate) files: u32,
    /// Size of each file.
    pub(crate) file_bytes: u64,
    /// Seed of their bytes.
    pub(crate) seed: u64,
    /// The shortest time that the server takes for an answer.
    pub(crate) delay: Duration,
    /// Number of threads of the server.
    pub(crate) threads: usize,
}

/// A running S3 server and its datasets. The server has a runtime of its own.
pub(crate) struct Origin {
    server: S3Server,
    runtime: Runtime,
    threads: usize,
    /// The files of each dataset. Their paths begin with the name of the dataset.
    datasets: Vec<Vec<MadeFile>>,
}

/// While it exists, the server accepts connections and answers nothing.
pub(crate) struct Outage<'a> {
    // A server whose threads are occupied cannot be dropped.
    _origin: &'a Origin,
    _silence: Silence,
}

impl Origin {
    /// Makes the datasets and starts the server. No two files have the same bytes.
    pub(crate) fn start(options: &OriginOptions, stop: &Stop) -> anyhow::Result<Self> {
        let OriginOptions { datasets, files, file_bytes, seed, delay, threads } = *options;
        let bytes = u64::from(datasets).saturating_mul(u64::from(files)).saturating_mul(file_bytes);
        let room = total_memory()? / PART_OF_MEMORY;
        ensure!(
            bytes <= room,
            "the datasets have {}, and the S3 server holds them in memory, of which they may take {}: use fewer or \
             smaller files",
            show_bytes(bytes),
            show_bytes(room)
        );
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(threads)
            .thread_name("s3-server")
            .enable_all()
            .build()
            .context("start the runtime of the S3 server")?;
        let config = S3ServerConfig {
            buckets: vec![BUCKET.to_owned()],
            unchecked_gets: true,
            distance: Distance { delay, ..Distance::default() },
            ..S3ServerConfig::default()
        };
        let server = runtime.block_on(S3Server::start(config)).context("start the S3 server")?;
        let mut made = Vec::new();
        for dataset in 0..datasets {
            stop.check()?;
            let put = |file: u32| {
                let key = format!("{}/{file:06}", name(dataset));
                let mut bytes = vec![0; file_bytes as usize];
                let seed = seed ^ (u64::from(dataset) << 32) ^ u64::from(file);
                StdRng::seed_from_u64(seed).fill_bytes(&mut bytes);
                let file =
                    MadeFile { path: key.clone().into(), size: file_bytes, crc32c: larder_dataset::crc32c(&bytes) };
                server.put(BUCKET, &key, bytes);
                file
            };
            made.push((0..files).map(put).collect());
        }
        Ok(Self { server, runtime, threads, datasets: made })
    }

    /// The names of the datasets, which are also their prefixes in the bucket.
    pub(crate) fn names(&self) -> Vec<String> {
        (0_u32..).take(self.datasets.len()).map(name).collect()
    }

    /// The URL of a dataset.
    pub(crate) fn url(name: &str) -> String {
        format!("s3://{BUCKET}/{name}")
    }

    /// The files of each dataset, with paths below the folder of all volumes.
    pub(crate) fn datasets(&self) -> &[Vec<MadeFile>] {
        &self.datasets
    }

    /// The endpoint of the server, and the variables with which a client reaches it.
    pub(crate) fn endpoint_and_variables(&self) -> (String, Vec<(&'static str, String)>) {
        (self.server.endpoint(), self.server.env())
    }

    /// Does `work`, and counts the GETs of that time.
    pub(crate) fn counting_gets<T>(&self, work: impl FnOnce() -> anyhow::Result<T>) -> anyhow::Result<(T, u64)> {
        let before = self.server.counters().gets;
        let done = work()?;
        Ok((done, self.server.counters().gets - before))
    }

    /// Stops answering, and returns once it has.
    pub(crate) fn stop_answering(&self) -> Outage<'_> {
        Outage { _origin: self, _silence: Silence::of(self.runtime.handle(), self.threads) }
    }
}

fn name(dataset: u32) -> String {
    format!("d{dataset:05}")
}

#[cfg(test)]
mod tests {
    use std::io::{ErrorKind, Read, Write};
    use std::net::TcpStream;

    use super::*;

    fn origin() -> Origin {
        let options =
            OriginOptions { datasets: 2, files: 3, file_bytes: 1000, seed: 7, delay: Duration::ZERO, threads: 2 };
        Origin::start(&options, &Stop::default()).unwrap()
    }

    /// A connection to the server that has sent a GET.
    fn get(origin: &Origin) -> TcpStream {
        let address = origin.server.address();
        let mut stream = TcpStream::connect(address).unwrap();
        write!(stream, "GET /{BUCKET}/d00001/000002 HTTP/1.1\r\nhost: {address}\r\n\r\n").unwrap();
        stream
    }

    #[test]
    fn no_two_files_have_the_same_bytes() {
        let origin = origin();
        assert_eq!(origin.names(), ["d00000", "d00001"]);
        let mut sums: Vec<u32> = origin.datasets().iter().flatten().map(|file| file.crc32c).collect();
        sums.sort_unstable();
        sums.dedup();
        assert_eq!(sums.len(), 6);
    }

    #[test]
    fn a_server_in_an_outage_answers_only_after_it() {
        let origin = origin();
        let outage = origin.stop_answering();
        let mut stream = get(&origin);
        stream.set_read_timeout(Some(Duration::from_millis(200))).unwrap();
        let mut head = [0; 12];
        let silent = stream.read(&mut head).unwrap_err();
        assert!(matches!(silent.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut), "{silent}");
        drop(outage);
        stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        stream.read_exact(&mut head).unwrap();
        assert_eq!(&head, b"HTTP/1.1 200");
    }

    #[test]
    fn datasets_that_do_not_fit_into_memory_are_refused_in_words() {
        let options = OriginOptions {
            datasets: 1000,
            files: 1_000_000,
            file_bytes: 1 << 30,
            seed: 7,
            delay: Duration::ZERO,
            threads: 1,
        };
        let Err(error) = Origin::start(&options, &Stop::default()) else { panic!("accepted") };
        assert!(error.to_string().contains("use fewer or smaller files"), "{error}");
    }
}
