//! s3fs-fuse.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::systems::source::write_private;
use crate::systems::{AnySystem, Kind, Served, Source, System, version_of};

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
        "read-only, local cache folder, stat cache of 400,000 entries for 24 h, kernel_cache, all else default"
    }

    fn prepare(&mut self, source: &Source) -> anyhow::Result<()> {
        let keys = format!("{}:{}\n", source.access_key, source.secret_key);
        write_private(&source.folder_of(NAME)?.join("passwd"), &keys)
    }

    fn mount(&mut self, source: &Source) -> anyhow::Result<PathBuf> {
        let (mountpoint, cache) = self.served.folders(source, NAME)?;
        let passwd = source.folder_of(NAME)?.join("passwd");
        let mut command = Command::new(&self.program);
        command.arg(format!("{}:/{}", source.bucket, source.prefix)).arg(mountpoint).arg("-f");
        for option in [
            "ro".to_owned(),
            "kernel_cache".to_owned(),
            "use_path_request_style".to_owned(),
            "max_stat_cache_size=400000".to_owned(),
            "stat_cache_expire=86400".to_owned(),
            format!("url={}", source.endpoint),
            format!("passwd_file={}", passwd.display()),
            format!("use_cache={}", cache.display()),
        ] {
            command.args(["-o", &option]);
        }
        self.served.start(source, NAME, &mut command)
    }

    fn processes(&self) -> Vec<u32> {
        self.served.processes()
    }

    fn unmount(&mut self) -> anyhow::Result<()> {
        self.served.unmount()
    }
}
