//! `mount.larder`: how mount(8), and so fstab, calls `larder mount`.
//!
//! mount(8) runs `mount.larder SPEC DIR [-sfnv] [-N NAMESPACE] [-t TYPE] [-o OPTIONS]`. The options are the flags of
//! `larder mount` without their dashes, beside those that are for mount(8) itself.

use std::ffi::{OsStr, OsString};
use std::path::Path;

/// Options that say what every mount is, or that are for mount(8) and systemd.
const IGNORED: [&str; 13] = [
    "ro", "defaults", "auto", "noauto", "nofail", "_netdev", "nodev", "nosuid", "noatime", "exec", "user", "nouser",
    "async",
];

/// Flags of `larder mount` that make no sense without a terminal.
const REFUSED: [&str; 4] = ["foreground", "json", "announce", "help"];

/// True if this process was called as `mount.larder`.
pub(super) fn is_helper(args: &[OsString]) -> bool {
    args.first().and_then(|program| Path::new(program).file_name()) == Some(OsStr::new("mount.larder"))
}

/// The command line of `larder` for that of `mount.larder`. `origin_dir` is the folder of the machine's credentials, if
/// there is one. Errors say what to write instead.
pub(super) fn as_command(args: &[OsString], origin_dir: Option<&str>) -> Result<Vec<OsString>, String> {
    let (mut places, mut options, mut verbose) = (Vec::new(), String::new(), false);
    let mut rest = args.iter().skip(1);
    while let Some(word) = rest.next() {
        match word.to_str() {
            Some("-o") => {
                options.push(',');
                options.extend(rest.next().map(|given| given.to_string_lossy()));
            }
            Some("-N" | "-t") => _ = rest.next(),
            Some("-v") => verbose = true,
            Some("-n" | "-s") => {}
            Some(flag) if flag.starts_with('-') && flag.len() > 1 => {
                return Err(format!(
                    "mount.larder does not know {flag}: mount(8) calls it as mount.larder SRC DIR -o OPTIONS"
                ));
            }
            _ => places.push(word.clone()),
        }
    }
    let mut command: Vec<OsString> = vec!["larder".into(), "mount".into()];
    if verbose {
        command.push("--verbose".into());
    }
    let mut has_credentials = false;
    for option in options.split(',').filter(|option| !option.is_empty()) {
        let name = option.split_once('=').map_or(option, |(name, _)| name);
        match name {
            name if IGNORED.contains(&name) || name == "comment" => continue,
            name if name.starts_with("x-") || name.starts_with("X-") => continue,
            "rw" => return Err("datasets are read-only: add ro to the options of the mount".to_owned()),
            "remount" => return Err("a mount cannot be changed: unmount it, and mount it again".to_owned()),
            name if REFUSED.contains(&name) => {
                return Err(format!("the option {name} is for `larder mount` alone: leave it out"));
            }
            name => has_credentials |= name == "origin-credentials-dir",
        }
        command.push(format!("--{option}").into());
    }
    if let Some(dir) = origin_dir.filter(|_| !has_credentials) {
        command.push(format!("--origin-credentials-dir={dir}").into());
    }
    command.push("--".into());
    command.extend(places);
    Ok(command)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn translated(args: &[&str], origin_dir: Option<&str>) -> Result<Vec<String>, String> {
        let args: Vec<OsString> = args.iter().map(OsString::from).collect();
        let command = as_command(&args, origin_dir)?;
        Ok(command.into_iter().map(|word| word.into_string().unwrap()).collect())
    }

    const CALL: [&str; 3] = ["/usr/sbin/mount.larder", "s3://b/x", "/data"];

    #[test]
    fn the_helper_is_known_by_its_name_alone() {
        for (program, is) in [("/usr/sbin/mount.larder", true), ("mount.larder", true), ("/usr/bin/larder", false)] {
            assert_eq!(is_helper(&[program.into(), "mount.larder".into()]), is, "{program}");
        }
        assert!(!is_helper(&[]));
    }

    #[test]
    fn the_options_of_a_mount_are_the_flags_of_the_command() {
        let options = "ro,_netdev,nofail,x-systemd.after=larderd.service,cache-size=1GiB,policy=lru,allow-other";
        let command = translated(&[&CALL[..], &["-n", "-t", "larder", "-o", options]].concat(), None).unwrap();
        let flags = ["--cache-size=1GiB", "--policy=lru", "--allow-other"];
        assert_eq!(command, [&["larder", "mount"][..], &flags, &["--", "s3://b/x", "/data"]].concat());
        assert_eq!(translated(&CALL, None).unwrap(), ["larder", "mount", "--", "s3://b/x", "/data"]);
        let twice = translated(&[&CALL[..], &["-o", "policy=lru", "-o", "ro,allow-other"]].concat(), None).unwrap();
        assert_eq!(twice[2..4], ["--policy=lru", "--allow-other"]);
    }

    #[test]
    fn the_credentials_of_the_machine_are_used_unless_an_option_names_others() {
        let (dir, flag) = (Some("/etc/larder/origin"), "--origin-credentials-dir=/etc/larder/origin");
        assert!(translated(&CALL, dir).unwrap().iter().any(|word| word == flag));
        let own = [&CALL[..], &["-o", "origin-credentials-dir=/secret"]].concat();
        let command = translated(&own, dir).unwrap();
        assert!(command.iter().any(|word| word == "--origin-credentials-dir=/secret"), "{command:?}");
        assert!(!command.iter().any(|word| word == flag), "{command:?}");
    }

    #[test]
    fn what_a_mount_cannot_have_is_refused_with_a_remedy() {
        for (options, remedy) in [("rw", "add ro"), ("ro,remount", "mount it again"), ("ro,foreground", "leave it out")]
        {
            let error = translated(&[&CALL[..], &["-o", options]].concat(), None).unwrap_err();
            assert!(error.contains(remedy), "{options}: {error}");
        }
        assert!(translated(&[&CALL[..], &["--bind"]].concat(), None).is_err());
    }
}
