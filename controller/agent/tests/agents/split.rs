//! `split`.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::{Command, Output};

use crate::machine::text;

fn split(from: &Path, index: &str, count: &str, to: &Path) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_larder-agent"));
    command.arg("split").arg(from).args([index, count]).arg(to).output().unwrap()
}

// SEMANTICS: J36
#[test]
fn the_shares_of_all_pods_are_disjoint_even_and_complete() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    let mut all = BTreeSet::new();
    for file in 0..23 {
        let path = data.join(format!("class {}/deep/f{file}", file % 4));
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, "x").unwrap();
        all.insert(path.display().to_string());
    }
    std::fs::write(data.join("top"), "x").unwrap();
    all.insert(data.join("top").display().to_string());
    // None of these is a file of the dataset: the mount's own folder, links to a folder and to nothing, an empty
    // folder.
    std::fs::create_dir_all(data.join(".larder")).unwrap();
    std::fs::write(data.join(".larder/stats.json"), "x").unwrap();
    std::os::unix::fs::symlink("class 0", data.join("to a folder")).unwrap();
    std::os::unix::fs::symlink("nowhere", data.join("to nothing")).unwrap();
    std::fs::create_dir_all(data.join("empty")).unwrap();
    std::os::unix::fs::symlink("top", data.join("link")).unwrap();
    all.insert(data.join("link").display().to_string());
    for count in [1, 3, 7, 40] {
        let mut found = Vec::new();
        for index in 0..count {
            let to = folder.path().join("list");
            let output = split(&data, &index.to_string(), &count.to_string(), &to);
            assert!(output.status.success(), "{:?}", text(&output));
            let share: Vec<String> = std::fs::read_to_string(&to).unwrap().lines().map(str::to_owned).collect();
            let even = all.len() / count..=all.len().div_ceil(count);
            assert!(even.contains(&share.len()), "{index} of {count}: {}", share.len());
            found.extend(share);
        }
        assert_eq!(found.len(), all.len(), "{count}: disjoint");
        assert_eq!(found.into_iter().collect::<BTreeSet<_>>(), all, "{count}: complete");
    }
}

#[test]
fn a_list_that_cannot_be_made_says_why() {
    let folder = tempfile::tempdir().unwrap();
    let (data, to) = (folder.path().join("data"), folder.path().join("list"));
    std::fs::create_dir(&data).unwrap();
    std::fs::write(data.join("two\nlines"), "x").unwrap();
    let elsewhere = folder.path().join("nowhere/list");
    for (output, why) in [
        (split(&data, "0", "1", &to), "line break"),
        (split(&data, "2", "2", &to), "the share 2 of 2 does not exist"),
        (split(&data, "0", "0", &to), "does not exist"),
        (split(&data, "one", "2", &to), "`one` is not a number"),
        (split(&data, "0", "1", &elsewhere), "nowhere/list"),
        (split(&folder.path().join("missing"), "0", "1", &to), "missing"),
    ] {
        let (status, _, error) = text(&output);
        assert!(status == Some(1) && error.contains(why), "{why}: {error}");
    }
}
