//! [`Lab`]: an S3 server with a fault proxy in front of it, and a home folder for the command.

use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use larder_s3_server::{S3Server, S3ServerConfig};
use larder_testkit::{Fault, FaultProxy, built, larder_binary};
use tokio::net::TcpListener;
use tokio::runtime::Runtime;

use crate::mount::Mount;
use crate::network::Namespace;

/// The bucket of all scenarios.
pub const BUCKET: &str = "bucket";

/// More key ids that the server accepts, with the same secret.
pub const OTHER_KEYS: [&str; 3] = ["AKIAIOSFODNNOTHERONE", "AKIAIOSFODNNOTHERTWO", "AKIAIOSFODNNOTHERTRE"];

/// The secret of the server's keys. Tests look for it where it must not be.
pub const SECRET: &str = "wJalrXUtnFEMI-K7MDENG-bPxRfiCYEXAMPLEKEY";

/// An S3 server behind a fault proxy, and a home for the command.
pub struct Lab {
    runtime: Runtime,
    /// The server, into which tests put objects, and whose requests they count.
    pub server: S3Server,
    /// The endpoint of the command. It forwards everything until a test sets a fault.
    pub proxy: FaultProxy,
    namespace: Namespace,
    home: tempfile::TempDir,
    /// Of the command, beside the server's.
    variables: Vec<(&'static str, String)>,
}

impl Default for Lab {
    fn default() -> Self {
        Self::new()
    }
}

impl Lab {
    /// Starts server and proxy.
    ///
    /// # Panics
    /// Where nothing can be mounted.
    pub fn new() -> Self {
        Self::start(tempfile::tempdir().unwrap(), Namespace::default(), S3ServerConfig::default())
    }

    /// Starts both in a network namespace, at the address of `config`. The command runs there, too.
    pub(crate) fn start(home: tempfile::TempDir, namespace: Namespace, config: S3ServerConfig) -> Self {
        assert!(Path::new("/dev/fuse").exists(), "these tests mount for real, and there is no /dev/fuse here");
        let config = S3ServerConfig {
            access_key: "AKIAIOSFODNN7EXAMPLE".into(),
            other_access_keys: OTHER_KEYS.map(str::to_owned).into(),
            secret_key: SECRET.into(),
            buckets: vec![BUCKET.into()],
            ..config
        };
        // The runtime's threads start in the namespace, and so do all their sockets.
        let (runtime, server, proxy) = namespace.enter(move || {
            let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
            let (server, proxy) = runtime.block_on(async {
                let ip = config.address.ip();
                let server = S3Server::start(config).await.unwrap();
                let listener = TcpListener::bind(SocketAddr::from((ip, 0))).await.unwrap();
                let proxy = FaultProxy::serve(listener, server.address(), |_| Fault::None).unwrap();
                (server, proxy)
            });
            (runtime, server, proxy)
        });
        Self { runtime, server, proxy, namespace, home, variables: Vec::new() }
    }

    /// Sets variables of the command from now on, beside those of the server.
    pub fn set_variables(&mut self, variables: Vec<(&'static str, String)>) {
        self.variables = variables;
    }

    /// A folder of the test's own, which is removed at its end.
    pub fn folder(&self) -> &Path {
        self.home.path()
    }

    /// The runtime of server and proxy.
    pub fn runtime(&self) -> &Runtime {
        &self.runtime
    }

    /// Puts an object below `s3://bucket/data`.
    pub fn put(&self, key: &str, bytes: impl Into<Vec<u8>>) {
        self.server.put(BUCKET, &format!("data/{key}"), bytes.into());
    }

    /// Puts an object below `s3://bucket/other`, a second dataset.
    pub fn put_other(&self, key: &str, bytes: impl Into<Vec<u8>>) {
        self.server.put(BUCKET, &format!("other/{key}"), bytes.into());
    }

    /// The URL of the dataset that [`Self::put_other`] fills.
    pub fn other_url(&self) -> String {
        format!("s3://{BUCKET}/other")
    }

    /// Has the server refuse these keys from now on, and accept all others that it knows.
    pub fn revoke(&self, keys: &[&str]) {
        let revoked: Vec<String> = keys.iter().map(|key| format!("Credential={key}/")).collect();
        self.proxy.set_hook(move |request| {
            let signed = request.header("authorization").unwrap_or_default();
            if revoked.iter().any(|key| signed.contains(key)) {
                Fault::Status { status: 403, code: "AccessDenied" }
            } else {
                Fault::None
            }
        });
    }

    /// GETs of an object below `s3://bucket/data` since the last reset.
    pub fn gets_of(&self, key: &str) -> u64 {
        self.server.gets_of(BUCKET, &format!("data/{key}"))
    }

    /// The URL of the dataset that [`Self::put`] fills.
    pub fn url(&self) -> String {
        format!("s3://{BUCKET}/data")
    }

    /// The command with this lab's environment, and no variable of the machine's but PATH.
    pub fn command(&self, args: &[&str]) -> Command {
        self.program(larder_binary(), args)
    }

    /// Another program with this lab's environment, and no variable of the machine's but PATH.
    pub fn program(&self, program: PathBuf, args: &[&str]) -> Command {
        let mut command = self.namespace.command(program);
        let environment = self.environment(&self.home.path().join("larder"), &self.proxy.endpoint());
        command.args(args).env_clear().envs(environment).env("HOME", self.home.path()).stdin(Stdio::null());
        command.envs(self.variables.iter().map(|(name, value)| (name, value)));
        command
    }

    /// The environment of a command with this home folder and this S3 server.
    pub(crate) fn environment(&self, home: &Path, endpoint: &str) -> Vec<(&'static str, OsString)> {
        vec![
            ("PATH", std::env::var_os("PATH").unwrap_or_default()),
            ("HOME", home.into()),
            ("LARDER_HOME", home.into()),
            ("AWS_ACCESS_KEY_ID", self.server.access_key().into()),
            ("AWS_SECRET_ACCESS_KEY", SECRET.into()),
            ("AWS_ENDPOINT_URL", endpoint.into()),
        ]
    }

    /// Runs the command and waits for its end.
    pub fn larder(&self, args: &[&str]) -> Output {
        self.command(args).output().unwrap()
    }

    /// Runs the command, which must succeed, and returns its output.
    pub fn larder_ok(&self, args: &[&str]) -> String {
        let output = self.larder(args);
        let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        assert!(output.status.success(), "larder {args:?} failed: {out}{err}");
        out.into_owned()
    }

    /// Runs a benchmark, which must succeed, and returns its output.
    pub fn larder_bench(&self, args: &[&str]) -> String {
        let output = self.program(built("larder-bench"), args).output().unwrap();
        let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        assert!(output.status.success(), "larder-bench {args:?} failed: {out}{err}");
        out.into_owned()
    }

    /// Runs the command, which must fail with this exit code, and returns its error message.
    pub fn larder_fails(&self, code: i32, args: &[&str]) -> String {
        let output = self.larder(args);
        let err = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(
            output.status.code(),
            Some(code),
            "larder {args:?}: {}{err}",
            String::from_utf8_lossy(&output.stdout)
        );
        err
    }

    /// Mounts `src` at a new folder. `name` names the mount and its cache: a second mount of the same name has the
    /// cache of the first.
    pub fn mount(&self, name: &str, src: &str, flags: &[&str]) -> Mount {
        let dir = self.home.path().join(format!("mnt-{name}"));
        std::fs::create_dir_all(&dir).ok();
        let cache = self.cache_dir(name);
        let mut args = vec!["mount", src, dir.to_str().unwrap(), "--cache-dir", cache.to_str().unwrap()];
        args.extend(flags);
        self.larder_ok(&args);
        Mount::new(dir, false)
    }

    /// The cache folder of a mount's name.
    pub fn cache_dir(&self, name: &str) -> PathBuf {
        self.home.path().join(format!("cache-{name}"))
    }

    /// The logs of all background mounts.
    pub fn logs(&self) -> String {
        let folder = self.home.path().join("larder/logs");
        let files = std::fs::read_dir(folder).into_iter().flatten().flatten();
        files.map(|file| std::fs::read_to_string(file.path()).unwrap_or_default()).collect()
    }
}
