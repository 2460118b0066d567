//! `larder umount`

use std::process::ExitCode;

use anyhow::bail;
use larder_fs::mount::{mounts, unmount};

use crate::args::UmountArgs;

pub(crate) fn run(args: &UmountArgs) -> anyhow::Result<ExitCode> {
    // A dead mount cannot be resolved by itself, but its folder can.
    let resolved = args.dir.canonicalize().or_else(|_| {
        let parent = args.dir.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(".".as_ref());
        Ok::<_, std::io::Error>(parent.canonicalize()?.join(args.dir.file_name().unwrap_or_default()))
    })?;
    if !mounts().iter().any(|mount| mount.path == resolved) {
        bail!("{} is not a Larder mount (`larder stats` lists them)", args.dir.display());
    }
    match unmount(&resolved, args.lazy) {
        Ok(()) => Ok(ExitCode::SUCCESS),
        Err(error) if !args.lazy => {
            bail!(
                "{error}: if files are in use, end their readers (`fuser -m {0}` lists them) or use --lazy",
                args.dir.display()
            )
        }
        Err(error) => Err(error.into()),
    }
}
