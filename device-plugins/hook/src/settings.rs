//! The hook's flags, and its run.

use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::path::{Path, PathBuf};

use crate::cgroup::{Groups, UnsoundGroups};
use crate::line::{Line, MAX_FLAG, UnsoundLine, parse_lines};
use crate::state::{MAX_ANNOTATION, STATE_BYTES_MOST, State, UnsoundState};

/// The longest text that is read from the kernel, in bytes.
const KERNEL_BYTES_MOST: u64 = 1 << 20;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// `--max`: the limit of one HCA, which the container's annotation may only lower.
    pub max: Line,
    /// `--cgroup-root`: the folder where cgroups are mounted.
    pub cgroup_root: PathBuf,
    /// `--proc-root`: the folder where procfs is mounted.
    pub proc_root: PathBuf,
}

/// Why a container cannot be limited.
#[derive(Debug, thiserror::Error)]
pub enum HookError {
    /// A flag is unknown, repeated or missing.
    #[error("{0}; usage: --max \"HCA hca_handle=N hca_object=N\" [--cgroup-root DIR] [--proc-root DIR]")]
    Usage(String),
    /// The limit in the flag `--max` or in the annotation is malformed.
    #[error("{from}: {source}")]
    Line {
        /// The flag or the annotation.
        from: &'static str,
        /// The malformed text.
        source: UnsoundLine,
    },
    /// The state on stdin is malformed.
    #[error(transparent)]
    State(#[from] UnsoundState),
    /// A file could not be read or written.
    #[error("{verb} {path}: {source}")]
    File {
        /// The failed operation, as a verb.
        verb: &'static str,
        /// The file of the operation.
        path: PathBuf,
        /// The operating system's error.
        source: std::io::Error,
    },
    /// The kernel's list of cgroups is malformed.
    #[error(transparent)]
    Groups(#[from] UnsoundGroups),
    /// The process has no cgroup that can limit RDMA objects.
    #[error("this kernel has no rdma cgroup controller")]
    NoController,
    /// The container shares the cgroup, so the limit would also apply to other processes.
    #[error(
        "the rdma cgroup {0} is not the container's own: the runtime must create one for each container, as runc 1.1 does"
    )]
    NotItsOwn(PathBuf),
    /// The kernel shows a different limit after the write.
    #[error("{path} does not show {line:?} after it was written")]
    NotInForce {
        /// The file of the operation.
        path: PathBuf,
        /// The limit.
        line: String,
    },
}

impl Settings {
    /// Parses the flags.
    pub fn parse(args: impl IntoIterator<Item = String>) -> Result<Self, HookError> {
        let (mut max, mut cgroup_root, mut proc_root) = (None, None, None);
        let mut args = args.into_iter();
        while let Some(flag) = args.next() {
            let slot = match flag.as_str() {
                MAX_FLAG => &mut max,
                "--cgroup-root" => &mut cgroup_root,
                "--proc-root" => &mut proc_root,
                _ => return Err(HookError::Usage(format!("unknown flag {flag:?}"))),
            };
            let value = args.next().ok_or_else(|| HookError::Usage(format!("{flag} has no value")))?;
            if slot.replace(value).is_some() {
                return Err(HookError::Usage(format!("{flag} is given twice")));
            }
        }
        let max = max.ok_or_else(|| HookError::Usage("--max is missing".to_owned()))?;
        Ok(Self {
            max: max.parse().map_err(|source| HookError::Line { from: "--max", source })?,
            cgroup_root: cgroup_root.map_or_else(|| "/sys/fs/cgroup".into(), PathBuf::from),
            proc_root: proc_root.map_or_else(|| "/proc".into(), PathBuf::from),
        })
    }

    /// Limits the container whose state is read from `stdin`.
    pub fn run(&self, stdin: impl Read) -> Result<(), HookError> {
        let mut json = Vec::new();
        let file_error = |verb, path: &Path| {
            let path = path.to_owned();
            move |source| HookError::File { verb, path, source }
        };
        stdin
            .take(STATE_BYTES_MOST as u64 + 1)
            .read_to_end(&mut json)
            .map_err(file_error("read", Path::new("stdin")))?;
        if json.len() > STATE_BYTES_MOST {
            return Err(file_error("read", Path::new("stdin"))(std::io::ErrorKind::FileTooLarge.into()));
        }
        let state = State::parse(&json)?;
        let line = self.lowered(&state)?;
        let cgroups = self.proc_root.join(state.pid.to_string()).join("cgroup");
        let groups = Groups::parse(&read(&cgroups).map_err(file_error("read", &cgroups))?)?;
        let folder = groups.folder(&self.cgroup_root).ok_or(HookError::NoController)?;
        // The container's own cgroup, or a cgroup below it.
        if !folder.iter().any(|name| is_of_container(&name.to_string_lossy(), &state.id)) {
            return Err(HookError::NotItsOwn(folder));
        }
        let path = folder.join("rdma.max");
        // The kernel accepts one line per write. Appending keeps the lines of other HCAs where the file is a plain
        // file, as in tests.
        let mut file = OpenOptions::new().append(true).open(&path).map_err(file_error("open", &path))?;
        file.write_all(format!("{line}\n").as_bytes()).map_err(file_error("write", &path))?;
        if line.is_in(&read(&path).map_err(file_error("read", &path))?) {
            Ok(())
        } else {
            Err(HookError::NotInForce { path, line: line.to_string() })
        }
    }

    /// The limit of `--max`, lowered by the limits in the container's annotation for the same HCA.
    fn lowered(&self, state: &State) -> Result<Line, HookError> {
        let lines = parse_lines(state.max.as_deref().unwrap_or_default());
        let lines = lines.map_err(|source| HookError::Line { from: MAX_ANNOTATION, source })?;
        let same = lines.into_iter().filter(|line| line.device == self.max.device);
        let max = same.fold(self.max.max, |max, line| max.min(line.max));
        Ok(Line { max, ..self.max.clone() })
    }
}

/// True if a cgroup with this name belongs to the container: `ID`, `crio-ID` or, with systemd,
/// `cri-containerd-ID.scope`. An ID that is only a part of another container's ID does not match.
fn is_of_container(name: &str, id: &str) -> bool {
    let prefix = name.strip_suffix(".scope").unwrap_or(name).strip_suffix(id);
    prefix.is_some_and(|prefix| prefix.is_empty() || prefix.ends_with('-'))
}

fn read(path: &Path) -> std::io::Result<String> {
    let mut text = String::new();
    File::open(path)?.take(KERNEL_BYTES_MOST).read_to_string(&mut text)?;
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A fake v1 hierarchy with the cgroup of a container c1, whose process is 42.
    struct Host {
        folder: tempfile::TempDir,
    }

    impl Host {
        fn new() -> Self {
            let host = Self { folder: tempfile::tempdir().unwrap() };
            host.write("proc/42/cgroup", "9:pids:/kubepods/p1/c1\n8:rdma:/kubepods/p1/c1\n");
            host.write("cgroup/rdma/kubepods/p1/c1/rdma.max", "");
            host
        }

        fn path(&self, name: &str) -> PathBuf {
            self.folder.path().join(name)
        }

        fn write(&self, name: &str, text: &str) {
            std::fs::create_dir_all(self.path(name).parent().unwrap()).unwrap();
            std::fs::write(self.path(name), text).unwrap();
        }

        fn run(&self, max: &str, annotation: Option<&str>) -> Result<(), String> {
            let root = |name| self.path(name).to_str().unwrap().to_owned();
            let flags = ["--max".to_owned(), max.to_owned(), "--cgroup-root".to_owned(), root("cgroup")];
            let settings = Settings::parse(flags.into_iter().chain(["--proc-root".to_owned(), root("proc")])).unwrap();
            let annotations = annotation.map(|text| serde_json::json!({MAX_ANNOTATION: text}));
            let state = serde_json::json!({"id": "c1", "pid": 42, "annotations": annotations}).to_string();
            settings.run(state.as_bytes()).map_err(|error| error.to_string())
        }

        fn max(&self) -> String {
            std::fs::read_to_string(self.path("cgroup/rdma/kubepods/p1/c1/rdma.max")).unwrap()
        }
    }

    // SEMANTICS: D20
    #[test]
    fn each_hca_of_a_container_gets_its_line() {
        let host = Host::new();
        host.run("mlx5_2 hca_handle=2 hca_object=2000", None).unwrap();
        host.run("mlx5_3 hca_object=10", None).unwrap();
        assert_eq!(host.max(), "mlx5_2 hca_handle=2 hca_object=2000\nmlx5_3 hca_object=10\n");
    }

    // SEMANTICS: D21
    #[test]
    fn the_annotation_lowers_and_never_raises() {
        for (annotation, line) in [
            ("mlx5_2 hca_handle=1 hca_object=500", "mlx5_2 hca_handle=1 hca_object=500"),
            ("mlx5_2 hca_handle=9 hca_object=500", "mlx5_2 hca_handle=2 hca_object=500"),
            ("mlx5_2 hca_object=1\nmlx5_2 hca_object=9999", "mlx5_2 hca_handle=2 hca_object=1"),
            ("mlx5_3 hca_handle=1", "mlx5_2 hca_handle=2 hca_object=2000"),
            ("", "mlx5_2 hca_handle=2 hca_object=2000"),
        ] {
            let host = Host::new();
            host.run("mlx5_2 hca_handle=2 hca_object=2000", Some(annotation)).unwrap();
            assert_eq!(host.max(), format!("{line}\n"), "{annotation}");
        }
        let host = Host::new();
        let error = host.run("mlx5_2 hca_handle=2", Some("mlx5_2 hca_handle=max")).unwrap_err();
        assert!(error.starts_with("rdma.larder.dev/max: \"mlx5_2 hca_handle=max\" is not a limit"), "{error}");
        assert_eq!(host.max(), "");
    }

    // SEMANTICS: D20
    #[test]
    fn whatever_is_missing_fails_and_is_named() {
        let failed = |spoil: &dyn Fn(&Host)| {
            let host = Host::new();
            spoil(&host);
            host.run("mlx5_2 hca_handle=2", None).unwrap_err()
        };
        let error = failed(&|host| std::fs::remove_dir_all(host.path("proc/42")).unwrap());
        assert!(error.starts_with("read ") && error.contains("/proc/42/cgroup: No such file"), "{error}");
        let error = failed(&|host| host.write("proc/42/cgroup", "9:pids:/kubepods/p1/c1\n"));
        assert_eq!(error, "this kernel has no rdma cgroup controller");
        let error = failed(&|host| std::fs::remove_dir_all(host.path("cgroup/rdma/kubepods")).unwrap());
        assert!(error.starts_with("open ") && error.contains("/p1/c1/rdma.max: No such file"), "{error}");
        let error = failed(&|host| host.write("proc/42/cgroup", "8:rdma:/kubepods/p1\n"));
        assert!(error.contains("rdma/kubepods/p1 is not the container"), "{error}");
        let error = failed(&|host| host.write("proc/42/cgroup", "8:rdma:/../c1\n"));
        assert_eq!(error, "\"8:rdma:/../c1\" is not a line of a process's cgroups");
        // A kernel that accepts the line but keeps another limit.
        let error = failed(&|host| {
            let max = host.path("cgroup/rdma/kubepods/p1/c1/rdma.max");
            std::fs::remove_file(&max).unwrap();
            std::os::unix::fs::symlink("/dev/null", max).unwrap();
        });
        assert!(error.ends_with("does not show \"mlx5_2 hca_handle=2\" after it was written"), "{error}");
    }

    // SEMANTICS: D20
    #[test]
    fn a_cgroup_belongs_to_the_container_whose_whole_id_it_names() {
        for own in ["c1", "crio-c1", "cri-containerd-c1.scope", "c1.scope"] {
            assert!(is_of_container(own, "c1"), "{own}");
        }
        for other in ["c10", "abc1", "cri-containerd-c10.scope", "cri-containerd-abc1.scope", "c1-c2.scope", ""] {
            assert!(!is_of_container(other, "c1"), "{other}");
        }
        let host = Host::new();
        host.write("proc/42/cgroup", "8:rdma:/kubepods/p1/c10\n");
        host.write("cgroup/rdma/kubepods/p1/c10/rdma.max", "");
        let error = host.run("mlx5_2 hca_handle=2", None).unwrap_err();
        assert!(error.contains("rdma/kubepods/p1/c10 is not the container"), "{error}");
    }

    #[test]
    fn a_state_that_is_too_long_is_refused() {
        let flags = ["--max", "a hca_handle=1"].map(str::to_owned);
        let state = [b' '].repeat(STATE_BYTES_MOST + 1);
        let error = Settings::parse(flags).unwrap().run(&state[..]).unwrap_err();
        assert_eq!(error.to_string(), "read stdin: file too large");
    }

    #[test]
    fn wrong_flags_are_named() {
        let parse = |flags: &[&str]| Settings::parse(flags.iter().map(|flag| (*flag).to_owned()));
        let settings = parse(&["--max", "a hca_handle=1"]).unwrap();
        assert_eq!(settings.cgroup_root, Path::new("/sys/fs/cgroup"));
        assert_eq!(settings.proc_root, Path::new("/proc"));
        for (flags, begin) in [
            (&[][..], "--max is missing"),
            (&["--max"], "--max has no value"),
            (&["--max", "a hca_handle=1", "--max", "a hca_handle=1"], "--max is given twice"),
            (&["--max", "a hca_handle=max"], "--max: \"a hca_handle=max\" is not a limit"),
            (&["--min", "1"], "unknown flag \"--min\""),
        ] {
            let error = parse(flags).unwrap_err().to_string();
            assert!(error.starts_with(begin), "{error}");
        }
    }
}
