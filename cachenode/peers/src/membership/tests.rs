//! Watched lists. Time passes only between the checks of the file.

use tokio_util::sync::CancellationToken;

use super::*;

/// Waits for a changed list, with a generous timeout.
pub(super) async fn changed(membership: &mut Membership) {
    tokio::time::timeout(Duration::from_secs(60), membership.changed()).await.unwrap().unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_file_is_watched_and_a_broken_one_keeps_the_last_good_list() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("nodes");
    std::fs::write(&path, "a 10.0.0.1:1\n").unwrap();
    let (mut membership, watcher) = MemberSource::File(path.clone()).open().await.unwrap();
    assert_eq!(membership.borrow_and_update().len(), 1);
    let stopping = CancellationToken::new();
    let watching = tokio::spawn(watcher.run(stopping.clone()));

    std::fs::write(&path, "a 10.0.0.1:1\nb 10.0.0.2:1\n").unwrap();
    changed(&mut membership).await;
    assert_eq!(membership.borrow_and_update().len(), 2);

    for broken in ["a nowhere\n", ""] {
        std::fs::write(&path, broken).unwrap();
        tokio::time::sleep(CHECK_EVERY * 2).await;
        assert!(!membership.has_changed().unwrap(), "{broken:?}");
    }
    std::fs::remove_file(&path).unwrap();
    tokio::time::sleep(CHECK_EVERY * 2).await;
    assert!(!membership.has_changed().unwrap());

    std::fs::write(&path, "c 10.0.0.3:1\n").unwrap();
    changed(&mut membership).await;
    assert_eq!(membership.borrow_and_update()[0].name, "c");
    stopping.cancel();
    watching.await.unwrap();
}

#[tokio::test]
async fn a_file_that_is_broken_from_the_start_is_an_error() {
    let folder = tempfile::tempdir().unwrap();
    let error = MemberSource::File(folder.path().join("none")).open().await.map(|_| ()).unwrap_err();
    assert!(matches!(error, MembershipError::File { .. }), "{error}");
}
