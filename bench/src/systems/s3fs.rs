//! s3fs-fuse.

use std::path::{Path, PathBuf};
use std::process::Command;

use super::corpus::{Corpus, write_private};
use super::programs::version_of;
use super::served::Served;
use super::system::{AnySystem, Kind, System};

pub(super) const NAME: &str = "s3fs";

struct S3fs {
    program: PathBuf,
    served: Served,
}

pub(super) fn new(program: &Path) -> AnySystem {
    Box::new(S3fs { program: program.to_owned(), served: Served::default() })
}

impl System for S3fs {
    fn name(&self) -> &str {
        NAME
    }

    fn kind(&self) -> Kind {
        Kind::Shipped
    }

    fn version(&self) -> String {
        version_of(&self.program, "--version")
    }

    fn options(&self) -> &str {
        "read-only, local cache directory, stat cache of 400,000 entries for 24 h, kernel_cache, all else default"
    }

    fn prepare(&mut self, corpus: &Corpus) -> anyhow::Result<()> {
        let keys = format!("{}:{}\n", corpus.access_key, corpus.secret_key);
        write_private(&corpus.folder_of(NAME)?.join("passwd"), &keys)
    }

    fn mount(&mut self, corpus: &Corpus) -> anyhow::Result<PathBuf> {
        let (mountpoint, cache) = self.served.folders(corpus, NAME)?;
        let passwd = corpus.folder_of(NAME)?.join("passwd");
        let mut command = Command::new(&self.program);
        command.arg(format!("{}:/{}", corpus.bucket, corpus.prefix)).arg(mountpoint).arg("-f");
        for option in [
            "ro".to_owned(),
            "kernel_cache".to_owned(),
            "use_path_request_style".to_owned(),
            "max_stat_cache_size=400000".to_owned(),
            "stat_cache_expire=86400".to_owned(),
            format!("url={}", corpus.endpoint),
            format!("passwd_file={}", passwd.display()),
            format!("use_cache={}", cache.display()),
        ] {
            command.args(["-o", &option]);
        }
        self.served.start(corpus, NAME, &mut command)
    }

    fn processes(&self) -> Vec<u32> {
        self.served.processes()
    }

    fn unmount(&mut self) -> anyhow::Result<()> {
        self.served.unmount()
    }
}
