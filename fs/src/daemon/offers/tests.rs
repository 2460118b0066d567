use larder_daemon_api::handover::request_memory;
use larder_dataset::DatasetSpec;

use super::*;

/// An offer that was taken. A pipe stands in for its connection.
fn taken(offers: &Offers, mount: &str) -> Arc<Offer> {
    let (reader, _writer) = std::io::pipe().unwrap();
    let connection = Connection { fd: reader.into(), memory: request_memory().unwrap(), init: Vec::new() };
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
    offers.hold(mounts(&["served", "a", "b", "gone"]), &mounts(&["served"]));
    let (a, b) = (taken(&offers, "a"), taken(&offers, "b"));
    assert!(offers.remove_served(&a, &a.request()) && !offers.tried(&a, true));
    assert!(offers.tried(&b, false), "it is tried again");
    assert!(!offers.all_tried());
    offers.forget("gone");
    assert!(offers.all_tried(), "although b is not served");
    assert_eq!(offers.now().len(), 1);
    // A keeper that was restarted got b back and is not waited for.
    offers.hold(mounts(&["served", "a", "b"]), &mounts(&["served", "a"]));
    assert!(offers.all_tried() && !b.gone.is_cancelled());
}

#[test]
fn only_what_the_keeper_holds_is_tried_again() {
    let offers = Offers::default();
    let unknown = taken(&offers, "of an older keeper");
    assert!(!offers.tried(&unknown, false));
    offers.hold(mounts(&["held"]), &mounts(&[]));
    let (held, new) = (taken(&offers, "held"), taken(&offers, "new"));
    assert!(!offers.tried(&new, false) && new.gone.is_cancelled(), "a new mount is refused");
    assert!(offers.tried(&held, false) && !held.gone.is_cancelled());
    offers.hold(mounts(&["another"]), &mounts(&[]));
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
