//! The limits that the origins of a process share.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use larder_origin::{Env, Origin, OriginConfig, RateCaps, SharedLimits, Urgency, open};
use larder_s3_server::{S3Server, S3ServerConfig};
use larder_testkit::{FakeSts, StsAnswer, seeded_bytes};
use tokio::io::AsyncReadExt;
use tokio::net::TcpListener;

/// Far longer than any wait of a test that passes.
const HANG: Duration = Duration::from_secs(30);

/// A server that answers nothing, and counts the requests by bucket and first folder.
struct Silent {
    endpoint: String,
    requests: Arc<Mutex<HashMap<String, usize>>>,
}

impl Silent {
    async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let endpoint = format!("http://{}", listener.local_addr().expect("an address"));
        let requests = Arc::<Mutex<HashMap<String, usize>>>::default();
        let counted = Arc::clone(&requests);
        tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                let counted = Arc::clone(&counted);
                tokio::spawn(async move {
                    let (mut head, mut buffer) = (Vec::new(), [0; 4096]);
                    while let Ok(read @ 1..) = stream.read(&mut buffer).await {
                        head.extend_from_slice(&buffer[..read]);
                        if head.ends_with(b"\r\n\r\n") {
                            let text = String::from_utf8_lossy(&head).into_owned();
                            let place = text.split('/').skip(1).take(2).collect::<Vec<_>>().join("/");
                            *counted.lock().expect("the lock").entry(place).or_default() += 1;
                            head.clear();
                        }
                    }
                });
            }
        });
        Self { endpoint, requests }
    }

    fn of(&self, place: &str) -> usize {
        let requests = self.requests.lock().expect("the lock");
        requests.iter().filter(|(asked, _)| asked.starts_with(place)).map(|(_, count)| count).sum()
    }
}

fn origin(url: &str, config: &OriginConfig) -> Arc<dyn Origin> {
    open(&url.parse().expect("a URL"), config).expect("an origin")
}

// SEMANTICS: O7
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn datasets_tenants_and_renewals_of_one_bucket_share_its_requests_and_another_bucket_has_its_own() {
    let server = Silent::start().await;
    let keys = |id: &str| -> Env { [("AWS_ACCESS_KEY_ID", id), ("AWS_SECRET_ACCESS_KEY", "s")].into_iter().collect() };
    let config = OriginConfig {
        endpoint: Some(server.endpoint.clone()),
        attempt_timeout: HANG * 2,
        env: keys("node"),
        ..OriginConfig::default()
    };
    let tenant = OriginConfig { env: keys("tenant"), ..config.clone() };
    let origins = [
        origin("s3://one/a", &config),
        origin("s3://one/b", &config),
        origin("s3://one/a", &tenant),
        // Of one dataset, this many of its own.
        origin("s3://two/a", &OriginConfig { concurrency: 5, ..config.clone() }),
        origin("s3://two/b", &config),
    ];
    let mut reads = tokio::task::JoinSet::new();
    for origin in &origins {
        for n in 0..60 {
            let origin = Arc::clone(origin);
            reads.spawn(async move { origin.read(format!("{n}").as_bytes(), 0..10, None).await });
        }
    }
    // Credentials are renewed while requests are in flight.
    let renewed = origin("s3://one/a", &OriginConfig { env: keys("renewed"), ..config.clone() });
    for n in 0..60 {
        let origin = Arc::clone(&renewed);
        reads.spawn(async move { origin.read(format!("{n}").as_bytes(), 0..10, None).await });
    }
    let all_places = async {
        while server.of("one") < 32 || server.of("two") < 32 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(HANG, all_places).await.expect("each bucket gets its requests");
    // More than a limit's would be here soon.
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert_eq!((server.of("one"), server.of("two")), (32, 32));
    assert!(server.of("two/a") <= 5, "{}", server.of("two/a"));
}

// SEMANTICS: O7
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reads_that_wait_for_keys_of_an_sts_that_hangs_take_no_place_of_their_bucket() {
    let sts = FakeSts::start(|_| StsAnswer::Never).await.expect("an STS");
    let server = S3Server::start(S3ServerConfig::default()).await.expect("a server");
    server.put("bucket", "k", "bytes");
    let config = OriginConfig {
        endpoint: Some(server.endpoint()),
        region: Some("eu-west-1".to_owned()),
        deadline: HANG * 4,
        limits: SharedLimits::new(1, RateCaps::default()),
        env: server.env().into_iter().collect(),
        ..OriginConfig::default()
    };
    let mut pod: Env =
        [("AWS_ROLE_ARN", "arn:aws:iam::1:role/r"), ("LARDER_IDENTITY_TOKEN", "token")].into_iter().collect();
    pod.set("AWS_ENDPOINT_URL_STS", sts.endpoint());
    let waiting = origin("s3://bucket", &OriginConfig { env: pod, ..config.clone() });
    let mut reads = tokio::task::JoinSet::new();
    reads.spawn(async move { waiting.read(b"k", 0..5, None).await });
    let asked = async {
        while sts.requests().is_empty() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    tokio::time::timeout(HANG, asked).await.expect("the STS is asked");
    let other = origin("s3://bucket", &config);
    let read = tokio::time::timeout(HANG, other.read(b"k", 0..5, None)).await.expect("it has a place");
    assert_eq!(read.expect("a read"), "bytes");
}

// SEMANTICS: O10
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn datasets_of_one_bucket_share_its_rate_and_their_bytes_are_right() {
    let server = S3Server::start(S3ServerConfig::default()).await.expect("a server");
    let bytes = seeded_bytes(1, 1 << 20);
    server.put("bucket", "a/k", bytes.clone());
    server.put("bucket", "b/k", bytes.clone());
    let caps = RateCaps { origin: Some(20 << 20), warming: None };
    let config = OriginConfig {
        env: server.env().into_iter().collect(),
        limits: SharedLimits::new(64, caps),
        ..OriginConfig::default()
    };
    let origins = [origin("s3://bucket/a", &config), origin("s3://bucket/b", &config)];
    let started = std::time::Instant::now();
    let reads = origins.iter().flat_map(|origin| {
        (0..10).map(move |n| async move {
            let urgency = if n % 2 == 0 { Urgency::HIGH } else { Urgency::low() };
            let origin = origin.with_urgency(&urgency).expect("it tells calls apart");
            origin.read(b"k", 0..1 << 20, None).await.expect("a read")
        })
    });
    let read = tokio::time::timeout(HANG, futures::future::join_all(reads)).await.expect("they end");
    assert!(read.iter().all(|read| *read == bytes));
    // Twenty MiB at 20 MiB/s, without the burst and the last.
    assert!(started.elapsed() >= Duration::from_millis(800), "{:?}", started.elapsed());
}
