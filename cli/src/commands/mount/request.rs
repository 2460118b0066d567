//! The request to mount a dataset: over gRPC, or as the arguments of the serving process.

use std::ffi::OsString;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, anyhow};
use larder_cachenode::Home;
use larder_daemon_api::v1;
use larder_dataset::environment::is_of_origins;
use larder_dataset::{DatasetSpec, Ownership};
use larder_fs::process::Verify;
use larder_origin::Env;

use crate::args::{MirrorFlag, MountArgs, OriginArgs};

/// The folder of the cache, as an absolute path.
pub(super) fn cache_dir(args: &MountArgs) -> anyhow::Result<PathBuf> {
    match &args.cache_dir {
        // The daemon may have another working directory.
        Some(dir) => std::path::absolute(dir).with_context(|| format!("--cache-dir {}", dir.display())),
        None => default_cache_dir(),
    }
}

/// The default cache folder.
pub(crate) fn default_cache_dir() -> anyhow::Result<PathBuf> {
    Ok(Home::of_process()?.dir().join("store"))
}

/// The folder of the daemon's sockets: the cache folder, or a folder in the user's home if the cache folder is not
/// writable.
pub(crate) fn run_dir(cache_dir: &Path) -> anyhow::Result<PathBuf> {
    // The cache folder is not writable, so the dataset is served without a cache, and the sockets go elsewhere.
    if std::fs::create_dir_all(cache_dir).is_ok() && can_make_files(cache_dir) {
        return Ok(cache_dir.to_owned());
    }
    let mut hash = DefaultHasher::new();
    cache_dir.hash(&mut hash);
    Ok(Home::of_process()?.sub_folder(&format!("run/{:016x}", hash.finish()))?)
}

/// Whether files can be created in the folder: not if its disk is read-only or failing, or if it belongs to another
/// user. Creates an unnamed file, because a disk that became read-only after an error shows it only on a write.
fn can_make_files(dir: &Path) -> bool {
    use rustix::fs::{Mode, OFlags, open};
    use rustix::io::Errno;
    let made = open(dir, OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC, Mode::RUSR | Mode::WUSR);
    !matches!(made, Err(Errno::ROFS | Errno::ACCESS | Errno::IO))
}

/// The dataset of the flags, with the manifest that was found for it.
fn spec(args: &MountArgs, manifest: &Path) -> anyhow::Result<DatasetSpec> {
    Ok(DatasetSpec {
        endpoint: args.origin.endpoint.clone(),
        region: args.origin.region.clone(),
        anonymous: args.origin.anonymous,
        cache_bytes: args.cache_size,
        policy: args.policy,
        placement: args.placement,
        ownership: Ownership { uid: args.uid, gid: args.gid, file_mode: args.file_mode, dir_mode: args.dir_mode },
        ..DatasetSpec::new(absolute(manifest)?)
    })
}

/// The request to the daemon.
pub(super) fn request(
    args: &MountArgs,
    manifest: &Path,
    credentials: Option<v1::Credentials>,
) -> anyhow::Result<v1::MountRequest> {
    let milliseconds = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
    Ok(v1::MountRequest {
        dataset: Some(v1::Dataset {
            credentials,
            attempt_timeout_ms: milliseconds(args.origin.attempt_timeout),
            read_deadline_ms: milliseconds(args.origin.read_deadline),
            origin_concurrency: args.origin.origin_concurrency,
            mirrors: args.mirror.iter().enumerate().map(|(nth, mirror)| sent_mirror(nth, mirror)).collect(),
            ..v1::Dataset::from(&spec(args, manifest)?)
        }),
        // As the daemon knows the mount once it is there, so that a repeated request is recognized.
        dir: absolute(&args.dir.canonicalize().unwrap_or_else(|_| args.dir.clone()))?,
        allow_other: args.allow_other,
        threads: args.threads.unwrap_or(0),
        read_ahead_bytes: args.read_ahead,
        verify_always: args.verify == Verify::Always,
    })
}

fn sent_mirror(nth: usize, mirror: &MirrorFlag) -> v1::Mirror {
    v1::Mirror {
        name: mirror_name(nth, mirror),
        source: mirror.url.clone(),
        endpoint: mirror.endpoint.clone().unwrap_or_default(),
        region: mirror.region.clone().unwrap_or_default(),
        cost: mirror.cost,
        always_near: mirror.first,
        ..v1::Mirror::default()
    }
}

fn mirror_name(nth: usize, mirror: &MirrorFlag) -> String {
    mirror.name.clone().unwrap_or_else(|| format!("mirror-{}", nth + 1))
}

/// The variables of the mirrors' own credentials, with the names of the mirrors before theirs. Errors: their
/// directories cannot be read.
pub(super) fn mirror_variables(args: &MountArgs) -> anyhow::Result<Vec<(String, String)>> {
    let mut variables = Vec::new();
    for (nth, mirror) in args.mirror.iter().enumerate() {
        let Some(dir) = &mirror.credentials_dir else { continue };
        let env = Env::default().with_files(dir).context("read the credentials of a mirror (--mirror)")?;
        let name = mirror_name(nth, mirror);
        variables.extend(env.iter().map(|(variable, value)| (format!("{name}.{variable}"), value.to_owned())));
    }
    Ok(variables)
}

/// The variables that give access to the dataset's origin and to its mirrors. Errors: those that are files cannot be
/// read.
pub(super) fn credentials(args: &MountArgs) -> anyhow::Result<v1::Credentials> {
    let mut credentials = origin_variables(&args.origin)?;
    credentials.variables.extend(mirror_variables(args)?);
    Ok(credentials)
}

/// The variables that give access to origins. Errors: those that are files cannot be read.
fn origin_variables(origin: &OriginArgs) -> anyhow::Result<v1::Credentials> {
    // HOME is included because the profile files of the clouds' SDKs are in the home folder.
    let wanted = |name: &str| name == "HOME" || is_of_origins(name);
    let env = origin.env()?;
    let variables = env.iter().filter(|(name, _)| wanted(name));
    Ok(v1::Credentials { variables: variables.map(|(name, value)| (name.to_owned(), value.to_owned())).collect() })
}

fn absolute(path: &Path) -> anyhow::Result<String> {
    let path = std::path::absolute(path).with_context(|| format!("find {}", path.display()))?;
    path.into_os_string()
        .into_string()
        .map_err(|path| anyhow!("{} is not UTF-8: use another path", path.to_string_lossy()))
}

/// The flags of the serving process: those of this command, with the dataset already resolved.
pub(super) fn serving_args(args: &MountArgs, manifest: &Path) -> Vec<OsString> {
    let mut flags: Vec<OsString> = vec!["mount".into(), "--verbose".into(), "--foreground".into(), "--announce".into()];
    let mut flag = |name: &str, value: &dyn std::fmt::Display| flags.push(format!("--{name}={value}").into());
    if let Some(policy) = args.policy {
        flag("policy", &policy);
    }
    if let Some(placement) = args.placement {
        flag("placement", &placement);
    }
    for (name, id) in [("uid", args.uid), ("gid", args.gid)] {
        if let Some(id) = id {
            flag(name, &id);
        }
    }
    for (name, mode) in [("file-mode", args.file_mode), ("dir-mode", args.dir_mode)] {
        if let Some(mode) = mode {
            flag(name, &format_args!("{mode:04o}"));
        }
    }
    if let Some(threads) = args.threads {
        flag("threads", &threads);
    }
    flag("read-ahead", &args.read_ahead);
    flag("attempt-timeout", &format_args!("{}ms", args.origin.attempt_timeout.as_millis()));
    flag("read-deadline", &format_args!("{}ms", args.origin.read_deadline.as_millis()));
    flag("origin-concurrency", &args.origin.origin_concurrency);
    let sizes = [
        ("cache-size", args.cache_size),
        ("origin-rate", args.origin.origin_rate),
        ("warm-rate", args.warm_rate),
        ("memory-target", args.memory_target),
    ];
    for (name, bytes) in sizes {
        if let Some(bytes) = bytes {
            flag(name, &bytes);
        }
    }
    for (name, value) in [("endpoint", &args.origin.endpoint), ("region", &args.origin.region)] {
        if let Some(value) = value {
            flag(name, value);
        }
    }
    let verify_always = args.verify == Verify::Always;
    let switches = [
        ("--anonymous", args.origin.anonymous),
        ("--allow-other", args.allow_other),
        ("--verify=always", verify_always),
    ];
    for (name, given) in switches {
        if given {
            flags.push(name.into());
        }
    }
    flags.extend(args.mirror.iter().map(|mirror| format!("--mirror={mirror}").into()));
    let dirs = [("--cache-dir", &args.cache_dir), ("--origin-credentials-dir", &args.origin.origin_credentials_dir)];
    for (name, dir) in dirs {
        flags.extend(dir.iter().flat_map(|dir| [name.into(), dir.into()]));
    }
    flags.extend(["--".into(), manifest.into(), args.dir.clone().into()]);
    flags
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::args::{Cli, Command};

    fn mount_args(args: &[&str]) -> MountArgs {
        match Cli::try_parse_from([&["larder"], args].concat()).unwrap().command {
            Command::Mount(args) => args,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn the_request_names_the_folder_behind_a_link() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path().canonicalize().unwrap();
        std::fs::create_dir(root.join("data")).unwrap();
        std::os::unix::fs::symlink(root.join("data"), root.join("link")).unwrap();
        let dir_of = |dir: &Path| {
            let args = mount_args(&["mount", "s3://b/p", dir.to_str().unwrap()]);
            PathBuf::from(request(&args, Path::new("/m"), None).unwrap().dir)
        };
        assert_eq!(dir_of(&root.join("link")), root.join("data"));
        assert_eq!(dir_of(&root.join("gone")), root.join("gone"));
    }

    #[test]
    fn the_serving_process_gets_every_flag_that_was_given() {
        let given = mount_args(&[
            "mount",
            "s3://b/p",
            "/mnt/-odd",
            "--cache-dir",
            "/c",
            "--cache-size",
            "3MiB",
            "--policy",
            "lru",
            "--allow-other",
            "--uid",
            "1000",
            "--gid",
            "0",
            "--file-mode",
            "0440",
            "--dir-mode",
            "550",
            "--threads",
            "3",
            "--read-ahead",
            "2MiB",
            "--verify",
            "always",
            "--endpoint",
            "http://h:1",
            "--region",
            "r",
            "--anonymous",
            "--origin-credentials-dir",
            "/",
            "--attempt-timeout",
            "7s",
            "--read-deadline",
            "9s",
            "--origin-concurrency",
            "5",
            "--origin-rate",
            "1GiB/s",
            "--warm-rate",
            "200MB",
            "--memory-target",
            "1GiB",
            "--mirror",
            "s3://b/copy,name=eu,cost=2,first",
            "--mirror",
            "gs://b",
        ]);
        let served: Vec<_> =
            serving_args(&given, Path::new("/m")).into_iter().map(|arg| arg.into_string().unwrap()).collect();
        let mut got = mount_args(&served.iter().map(String::as_str).collect::<Vec<_>>());
        assert!(got.foreground && got.announce);
        assert_eq!(got.src, "/m");
        (got.foreground, got.announce, got.src) = (false, false, given.src.clone());
        assert_eq!(format!("{got:?}"), format!("{given:?}"));
    }
}
