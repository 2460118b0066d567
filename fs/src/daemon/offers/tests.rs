use larder_daemon_api::handover::request_memory;
use larder_dataset::DatasetSpec;

use super::*;

/// An offer that was taken. A pipe replaces its connection.
fn taken(offers: &Offers, mount: &str) -> Arc<Offer> {
    let (reader, _writer) = std::io::pipe().unwrap();
    let connection =
        Connection { fd: reader.into(), memory: request_memory().unwrap(), init: Vec::new(), lender: None, own: None };
    offers.add(mount.to_owned(), connection, DatasetSpec::new("s3://b").into())
}

fn mounts(names: &[&str]) -> HashSet<String> {
    names.iter().map(|&name| name.to_owned()).collect()
}

fn credentials(key: &str) -> Credentials {
    Credentials::from_iter([("AWS_ACCESS_KEY_ID".to_owned(), key.to_owned())])
}

#[test]
fn all_is_tried_once_each_mount_that_the_keeper_holds_was_and_one_that_fails_is_no_obstacle() {
    let offers = Offers::default();
    assert!(!offers.all_tried(), "no keeper has come");
    offers.hold(mounts(&["served", "a", "b", "gone"]), || mounts(&["served"]));
    let (a, b) = (taken(&offers, "a"), taken(&offers, "b"));
    assert!(offers.remove_served(&a, &a.request()) && !offers.tried(&a, true));
    assert!(offers.tried(&b, false), "it is tried again");
    assert!(!offers.all_tried());
    offers.forget("gone");
    assert!(offers.all_tried(), "although b is not served");
    assert_eq!(offers.now().len(), 1);
    // A restarted keeper got b back, so the daemon does not wait for b.
    offers.hold(mounts(&["served", "a", "b"]), || mounts(&["served", "a"]));
    assert!(offers.all_tried() && !b.gone.is_cancelled());
}

// SEMANTICS: V6
#[test]
fn a_mount_is_needed_while_the_keeper_holds_it_or_its_connection_is_not_served_yet() {
    let offers = Offers::default();
    assert!(!offers.keeper_has_spoken() && !offers.need("held"));
    offers.hold(mounts(&["held", "gone"]), || mounts(&[]));
    assert!(offers.keeper_has_spoken() && offers.need("held") && offers.need("gone"));
    offers.forget("gone");
    assert!(!offers.need("gone"));
    // A new mount that the keeper has not listed.
    let new = taken(&offers, "new");
    assert!(offers.need("new"));
    assert!(!offers.tried(&new, false) && !offers.need("new"), "it was refused");
    // A served mount is in the table of mounts, and the keeper holds it.
    let served = taken(&offers, "served");
    assert!(offers.remove_served(&served, &served.request()) && !offers.tried(&served, true));
    assert!(offers.need("served") && offers.need("held"));
}

#[test]
fn only_what_the_keeper_holds_is_tried_again() {
    let offers = Offers::default();
    let unknown = taken(&offers, "of an older keeper");
    assert!(!offers.tried(&unknown, false));
    offers.hold(mounts(&["held"]), || mounts(&[]));
    let (held, new) = (taken(&offers, "held"), taken(&offers, "new"));
    assert!(!offers.tried(&new, false) && new.gone.is_cancelled(), "a new mount is refused");
    assert!(offers.tried(&held, false) && !held.gone.is_cancelled());
    offers.hold(mounts(&["another"]), || mounts(&[]));
    assert!(held.gone.is_cancelled() && offers.now().is_empty(), "the keeper holds it no more");
}

#[test]
fn credentials_that_arrive_while_a_connection_becomes_a_mount_are_not_lost() {
    let offers = Offers::default();
    let (one, two) = (taken(&offers, "one"), taken(&offers, "two"));
    let used = one.request();
    offers.renew("one", Some(&credentials("new")));
    assert!(!offers.remove_served(&one, &used), "it was opened with the old ones");
    assert_eq!(one.request().credentials, Some(credentials("new")));
    assert!(offers.remove_served(&one, &one.request()));
    assert!(offers.remove_served(&two, &used), "the other keeps its own");
}

#[test]
fn a_mount_that_becomes_served_while_the_keeper_says_what_it_holds_is_not_waited_for() {
    let (offers, served) = (Offers::default(), Mutex::new(mounts(&[])));
    let (first, second) = (taken(&offers, "first"), taken(&offers, "second"));
    let serve = |offer: &Arc<Offer>| {
        served.lock().unwrap().insert(offer.mount.clone());
        assert!(offers.remove_served(offer, &offer.request()) && !offers.tried(offer, true));
    };
    std::thread::scope(|scope| {
        offers.hold(mounts(&["first", "second"]), || {
            let before = served.lock().unwrap().clone();
            let (done, is_done) = std::sync::mpsc::channel();
            scope.spawn(move || {
                serve(&first);
                let _ = done.send(());
            });
            // The call must not return before the keeper's mounts are recorded. If it could, it would have returned by
            // now.
            let _ = is_done.recv_timeout(std::time::Duration::from_millis(300));
            before
        });
    });
    assert!(offers.all_tried(), "the first is served, and the second will be tried");
    serve(&second);
    assert!(offers.all_tried());
    // A mount that is served before the next keeper connects is not waited for either.
    offers.hold(mounts(&["first", "second"]), || served.lock().unwrap().clone());
    assert!(offers.all_tried());
}
