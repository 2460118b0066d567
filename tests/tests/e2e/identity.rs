//! Volumes that are read with the pod's own identity: a real larderd, the plugin, an S3 server and a scripted STS. The
//! test plays the kubelet.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use larder_csi_api::csi::NodePublishVolumeRequest;
use larder_csi_api::csi::node_client::NodeClient;
use larder_e2e::{Lab, Larderd, Plugin, SECRET};
use larder_testkit::{FakeSts, RealServer, ServerKind, StsAnswer};
use tonic::{Code, Status};

use crate::csi::{publish, wait_until};

const TOKENS: &str = "csi.storage.k8s.io/serviceAccount.tokens";

/// A node with a scripted STS.
pub(crate) struct Identities {
    sts: FakeSts,
    /// The tokens that the STS takes.
    taken: Arc<Mutex<BTreeSet<String>>>,
}

impl Identities {
    /// The STS gives the keys of the lab for as many seconds.
    pub(crate) fn start(lab: &Lab, seconds: i64) -> Self {
        let taken = Arc::new(Mutex::new(BTreeSet::new()));
        let (known, id) = (Arc::clone(&taken), lab.server.access_key().to_owned());
        let sts = FakeSts::start(move |request| match request.form.get("WebIdentityToken") {
            Some(token) if known.lock().unwrap().contains(token) => {
                let (secret, token) = (SECRET.to_owned(), format!("session-{SECRET}"));
                StsAnswer::Keys { id: id.clone(), secret, token, seconds }
            }
            token => StsAnswer::Refusal { status: 403, code: "AccessDenied", message: format!("not {token:?}") },
        });
        Self { sts: lab.runtime().block_on(sts).unwrap(), taken }
    }

    /// A token that the STS takes from now on.
    pub(crate) fn token(&self, name: &str) -> String {
        let token = format!("{name}-{SECRET}");
        self.taken.lock().unwrap().insert(token.clone());
        token
    }

    fn refuse_all(&self) {
        self.taken.lock().unwrap().clear();
    }

    /// The publish request of a pod with this token, which expires in this minute.
    pub(crate) fn request(&self, lab: &Lab, target: &Path, token: &str, minute: u32) -> NodePublishVolumeRequest {
        let mut request = publish(lab, target);
        request.secrets.clear();
        let expiring = format!(r#"{{"token": "{token}", "expirationTimestamp": "2026-01-01T10:{minute:02}:00Z"}}"#);
        let context = [
            ("identity", "pod".to_owned()),
            ("roleArn", "arn:aws:iam::111122223333:role/reader".to_owned()),
            ("stsEndpoint", self.sts.endpoint()),
            ("csi.storage.k8s.io/pod.namespace", "team-a".to_owned()),
            ("csi.storage.k8s.io/serviceAccount.name", "train".to_owned()),
            (TOKENS, format!(r#"{{"sts.amazonaws.com": {expiring}}}"#)),
        ];
        request.volume_context.extend(context.map(|(name, value)| (name.to_owned(), value)));
        request
    }
}

fn ask(lab: &Lab, plugin: &Plugin, request: NodePublishVolumeRequest) -> Result<(), Status> {
    let _in_runtime = lab.runtime().enter();
    let mut node = NodeClient::new(plugin.channel());
    lab.runtime().block_on(node.node_publish_volume(request)).map(|_| ())
}

fn target(plugin: &Plugin, pod: &str) -> PathBuf {
    let target = plugin.path("kubelet/pods").join(pod).join("mount");
    std::fs::create_dir_all(target.parent().unwrap()).unwrap();
    target
}

/// Reads a file from larderd, and not from the kernel's pages.
fn read(path: PathBuf) -> std::io::Result<Vec<u8>> {
    let file = std::fs::File::open(&path)?;
    rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed)?;
    std::fs::read(path)
}

// SEMANTICS: K23
#[test]
fn pods_of_one_role_share_bytes_and_each_proves_its_right() {
    let lab = Lab::new();
    lab.put("f", b"bytes".to_vec());
    let larderd = Larderd::start(&lab, "identity", &[]);
    let plugin = Plugin::start(&lab, &larderd, &[]);
    wait_until("the driver listens", || plugin.log().contains("in session with larderd"));
    let identities = Identities::start(&lab, 3600);
    let (one, two) = (target(&plugin, "one"), target(&plugin, "two"));
    ask(&lab, &plugin, identities.request(&lab, &one, &identities.token("one"), 10)).unwrap();
    assert_eq!(read(one.join("f")).unwrap(), b"bytes");
    let fetched = lab.gets_of("f");
    ask(&lab, &plugin, identities.request(&lab, &two, &identities.token("two"), 10)).unwrap();
    assert_eq!(read(two.join("f")).unwrap(), b"bytes");
    assert_eq!(lab.gets_of("f"), fetched, "fetched once for both");
    // A pod without a right of its own gets no mount, whatever is cached and whoever reads.
    let refused = ask(&lab, &plugin, identities.request(&lab, &target(&plugin, "three"), "stranger", 10)).unwrap_err();
    assert_eq!(refused.code(), Code::PermissionDenied, "{refused}");
    assert!(refused.message().contains("AccessDenied") && refused.message().contains("trust policy"), "{refused}");
    // Their bytes are nobody else's: the volume with a Secret has a cache of its own.
    let own = target(&plugin, "own");
    ask(&lab, &plugin, publish(&lab, &own)).unwrap();
    assert_eq!(read(own.join("f")).unwrap(), b"bytes");
    assert!(lab.gets_of("f") > fetched);
    assert!(!larderd.log().contains(SECRET) && !plugin.log().contains(SECRET));
}

// SEMANTICS: K23
#[test]
fn pods_read_a_bucket_of_google_each_with_its_own_token() {
    const PROVIDER: &str = "projects/1/locations/global/workloadIdentityPools/p/providers/q";
    let Some(server) = RealServer::start(ServerKind::Gcs) else { return };
    server.fill([("data/f", b"bytes".as_slice())]);
    let lab = Lab::new();
    let larderd = Larderd::start(&lab, "google", &[]);
    let plugin = Plugin::start(&lab, &larderd, &[]);
    wait_until("the driver listens", || plugin.log().contains("in session with larderd"));
    let sts = FakeSts::start(|request| match request.form.get("subject_token") {
        Some(token) if token.starts_with("good") => StsAnswer::Raw {
            status: 200,
            body: format!(r#"{{"access_token": "{}", "expires_in": 3600}}"#, RealServer::SECRET_KEY),
        },
        token => StsAnswer::Raw {
            status: 400,
            body: format!(
                r#"{{"error": "invalid_grant", "error_description": "not {}"}}"#,
                token.map(String::as_str).unwrap_or_default()
            ),
        },
    });
    let sts = lab.runtime().block_on(sts).unwrap();
    let publish_with = |pod: &str, token: &str| {
        let target = target(&plugin, pod);
        let mut request = publish(&lab, &target);
        request.secrets.clear();
        let tokens = format!(r#"{{"https://iam.googleapis.com/{PROVIDER}": {{"token": "{token}-{SECRET}"}}}}"#);
        let context = [
            ("source", server.url("data")),
            ("endpoint", server.endpoint().to_owned()),
            ("identity", "pod".to_owned()),
            ("workloadIdentityProvider", PROVIDER.to_owned()),
            ("stsEndpoint", sts.endpoint()),
            ("csi.storage.k8s.io/pod.namespace", "team-a".to_owned()),
            ("csi.storage.k8s.io/serviceAccount.name", pod.to_owned()),
            (TOKENS, tokens),
        ];
        request.volume_context = context.map(|(name, value)| (name.to_owned(), value)).into();
        ask(&lab, &plugin, request).map(|()| target)
    };
    let one = publish_with("one", "good").unwrap();
    assert_eq!(read(one.join("f")).unwrap(), b"bytes");
    let two = publish_with("two", "good").unwrap();
    assert_eq!(read(two.join("f")).unwrap(), b"bytes");
    let refused = publish_with("three", "bad").unwrap_err();
    assert_eq!(refused.code(), Code::PermissionDenied, "{refused}");
    let said = refused.message();
    assert!(said.contains("did not exchange the token for") && said.contains("tokenRequests"), "{said}");
    let shown = [said.to_owned(), larderd.log(), plugin.log()].concat();
    assert!(!shown.contains(SECRET));
}

// SEMANTICS: K24
#[test]
fn keys_that_end_leave_what_is_cached_and_deny_the_rest_until_a_new_token_comes() {
    const FILES: u64 = 2000;
    let lab = Lab::new();
    lab.put("cached", b"bytes".to_vec());
    // A file that was read before the keys ended is cached, so each is read once.
    (0..FILES).for_each(|n| lab.put(&format!("other{n}"), b"more".to_vec()));
    let mut larderd = Larderd::start(&lab, "ending", &[]);
    let plugin = Plugin::start(&lab, &larderd, &[]);
    wait_until("the driver listens", || plugin.log().contains("in session with larderd"));
    let identities = Identities::start(&lab, 3);
    let pod = target(&plugin, "pod");
    let first = identities.token("first");
    ask(&lab, &plugin, identities.request(&lab, &pod, &first, 10)).unwrap();
    assert_eq!(read(pod.join("cached")).unwrap(), b"bytes");
    identities.refuse_all();
    let files = AtomicU64::new(0);
    let next = || read(pod.join(format!("other{}", files.fetch_add(1, Ordering::Relaxed))));
    for restart in [false, true] {
        if restart {
            larderd.kill();
            larderd.restart();
        }
        wait_until("the keys have ended", || {
            next().is_err_and(|error| error.kind() == std::io::ErrorKind::PermissionDenied)
        });
        assert_eq!(read(pod.join("cached")).unwrap(), b"bytes");
    }
    // The kubelet repeats the publish, with the same token and with one that is refused: the pod's events say why, and
    // nothing else happens.
    let refused = ask(&lab, &plugin, identities.request(&lab, &pod, &first, 10)).unwrap_err();
    assert_eq!(refused.code(), Code::Unavailable, "{refused}");
    assert!(refused.message().contains("what is cached") && refused.message().contains("AccessDenied"), "{refused}");
    let refused = ask(&lab, &plugin, identities.request(&lab, &pod, "second", 20)).unwrap_err();
    assert_eq!(refused.code(), Code::Unavailable, "{refused}");
    assert!(refused.message().contains("AccessDenied"), "{refused}");
    assert_eq!(read(pod.join("cached")).unwrap(), b"bytes");
    ask(&lab, &plugin, identities.request(&lab, &pod, &identities.token("third"), 30)).unwrap();
    wait_until("the new token is used", || next().is_ok_and(|bytes| bytes == b"more"));
}
