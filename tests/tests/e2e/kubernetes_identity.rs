//! Pods that read with their own identity: tokens that a real kubelet requests and renews, and a scripted STS.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use larder_e2e::SECRET;
use larder_e2e::platform::{Platform, SUMS, TIMEOUT, sums};
use larder_testkit::{FakeSts, StsAnswer, StsRequest};
use serde_json::{Value, json};

const ROLE: &str = "arn:aws:iam::111122223333:role/reader";

/// The claims of a request's token. Their signature is not checked: that is the part of a real STS.
fn claims(request: &StsRequest) -> Value {
    let token = request.form.get("WebIdentityToken").map(String::as_str).unwrap_or_default();
    let bytes = token.split('.').nth(1).and_then(|part| URL_SAFE_NO_PAD.decode(part).ok()).unwrap_or_default();
    serde_json::from_slice(&bytes).unwrap_or_default()
}

// SEMANTICS: K23, K24, K25
#[test]
fn a_service_account_reads_what_its_role_may_read_and_its_pods_events_say_when_that_ends() {
    const FILES: usize = 400;
    // Deployed as for the tests before and after it: to deploy Larder in another way takes long.
    let platform = Platform::start_datasets("identity");
    let cluster = &platform.cluster;
    let expected = platform.put_dataset("set", 5, |i| vec![b'a' + i as u8; 1000 + i]);
    platform.put_dataset("many", FILES, |i| vec![b'a'; 100 + i]);
    let (own, trusts) = (platform.namespace().to_owned(), Arc::new(AtomicBool::new(true)));
    let (trusted, id) = (Arc::clone(&trusts), platform.server.access_key().to_owned());
    let subject = format!("system:serviceaccount:{own}:reader");
    let hook = move |request: &StsRequest| {
        let claims = claims(request);
        let is_good = claims["sub"] == subject.as_str() && claims["aud"] == json!(["sts.amazonaws.com"]);
        match is_good && request.form["RoleArn"] == ROLE && trusted.load(Ordering::Relaxed) {
            true => StsAnswer::Keys { id: id.clone(), secret: SECRET.to_owned(), token: "t".to_owned(), seconds: 20 },
            false => StsAnswer::Refusal { status: 403, code: "AccessDenied", message: claims["sub"].to_string() },
        }
    };
    let listener = cluster.listen(0);
    listener.set_nonblocking(true).unwrap();
    let port = listener.local_addr().unwrap().port();
    let sts = {
        let _in_runtime = platform.runtime().enter();
        FakeSts::serve(tokio::net::TcpListener::from_std(listener).unwrap(), 0, hook).unwrap()
    };
    let host = platform.endpoint();
    let host = host.rsplit_once(':').unwrap().0;
    let attributes = format!("identity: pod\n      roleArn: {ROLE}\n      stsEndpoint: {host}:{port}");
    let volume = |dataset: &str| {
        let volume = platform.volume(dataset, dataset, "ReadOnlyMany", &attributes);
        let is_secret = |line: &&str| line.contains("nodePublishSecretRef");
        volume.lines().filter(|line| !is_secret(line)).map(|line| format!("{line}\n")).collect::<String>()
    };
    let account = |name: &str| {
        format!("---\napiVersion: v1\nkind: ServiceAccount\nmetadata: {{name: {name}, namespace: {own}}}\n")
    };
    let pod = |name: &str, account: &str, claim: &str, script: &str| {
        let account = format!("  serviceAccountName: {account}\n  nodeName");
        platform.pod(name, 1, &[claim], script).replacen("  nodeName", &account, 1)
    };
    cluster.apply(&(account("reader") + &account("stranger") + &volume("set") + &volume("many")));

    // Two pods of one account, one after the other: every file is fetched once.
    let script = format!("cd /set && {SUMS}");
    for name in ["one", "two"] {
        cluster.apply(&pod(name, "reader", "set", &script));
        assert_eq!(sums(&platform.output(name)), expected);
    }
    for path in expected.keys() {
        assert_eq!(platform.gets_of("set", path), 1, "{path} after two pods on a node");
    }
    cluster.apply(&pod("stranger", "stranger", "set", &script));
    let said = platform.event(&own, "stranger", "AccessDenied");
    assert!(said.contains(&format!("system:serviceaccount:{own}:stranger")), "{said}");

    // A pod that reads a new file each second, until it may not.
    let reading = "cd /many; cat d0/f0; echo; for i in $(seq 1 399); do cat d$((i % 5))/f$i >/dev/null || break; sleep 1; done; \
                   echo denied at $i; until [ -e /tmp/stop ]; do sleep 1; done";
    cluster.apply(&pod("many", "reader", "many", reading));
    cluster.wait_for("it reads", TIMEOUT, || !platform.logs("many").is_empty());
    trusts.store(false, Ordering::Relaxed);
    cluster.wait_for("its keys end", TIMEOUT, || platform.logs("many").contains("denied at"));
    assert!(!platform.logs("many").contains("denied at 399"), "it was never denied");
    platform.event(&own, "many", "the pod can read what is cached and nothing else");
    let read = |path: &str| platform.exec("many", &["cat", path]);
    assert!(read("/many/d0/f0").status.success(), "what is cached");
    // The pod and its mount have stayed, and go on once the role is trusted again.
    trusts.store(true, Ordering::Relaxed);
    let last = format!("/many/d{}/f{}", (FILES - 1) % 5, FILES - 1);
    cluster.wait_for("it reads again", TIMEOUT, || read(&last).status.success());
    platform.ask_to_stop("many");
    platform.output("many");
    assert!(sts.requests().iter().all(|request| !request.form["WebIdentityToken"].is_empty()));
    platform.delete_readers();
    platform.assert_clean(1);
}
