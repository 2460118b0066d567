//! The command beside the daemon of another version. (Mounts over an upgrade of larderd: `takeover`.)

use std::path::PathBuf;

use larder_e2e::{Lab, Mount};
use larder_testkit::{earlier, larder_binary};
use serde_json::Value;

// SEMANTICS: P11
#[test]
fn the_command_works_with_a_daemon_one_minor_version_away() {
    let Some(earlier) = earlier("larder") else { return };
    for (first, second) in [(earlier.clone(), larder_binary()), (larder_binary(), earlier)] {
        let lab = Lab::new();
        lab.put("a", b"1".to_vec());
        lab.put_other("b", b"2".to_vec());
        let cache = lab.cache_dir("m");
        let run = |program: &PathBuf, args: &[&str]| {
            let output = lab.program(program.clone(), args).output().unwrap();
            let said = String::from_utf8_lossy(&output.stderr);
            assert!(output.status.success(), "{} {args:?}: {said}", program.display());
            String::from_utf8(output.stdout).unwrap()
        };
        let mount = |program: &PathBuf, url: &str, name: &str| {
            let dir = lab.folder().join(name);
            std::fs::create_dir(&dir).unwrap();
            run(program, &["mount", url, dir.to_str().unwrap(), "--cache-dir", cache.to_str().unwrap()]);
            Mount::of(dir)
        };
        let one = mount(&first, &lab.url(), "one");
        // It joins the daemon of the first.
        let two = mount(&second, &lab.other_url(), "two");
        assert_eq!(one.pid(), two.pid());
        assert_eq!(std::fs::read(one.path("a")).unwrap(), b"1");
        assert_eq!(std::fs::read(two.path("b")).unwrap(), b"2");
        for dir in [one.dir(), two.dir()] {
            let dir = dir.to_str().unwrap();
            let stats: Value = serde_json::from_str(&run(&second, &["stats", dir, "--json"])).unwrap();
            assert_eq!(stats["stats"]["process"]["pid"], one.pid());
            run(&second, &["warm", dir, "--wait"]);
            run(&second, &["verify", dir]);
        }
        run(&second, &["umount", one.dir().to_str().unwrap()]);
        run(&second, &["umount", two.dir().to_str().unwrap()]);
        // Dropping them would unmount them again.
        std::mem::forget((one, two));
    }
}
