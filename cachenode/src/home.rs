//! The home folder of a process, for files that it can lose: manifests, journals of unfinished work, logs.

use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};

/// A folder of Larder's. Its sub-folders are created on first use.
#[derive(Clone, Debug)]
pub struct Home(PathBuf);

impl Home {
    /// Uses `dir`, which need not exist yet.
    pub fn new(dir: impl Into<PathBuf>) -> Self {
        Self(dir.into())
    }

    /// The home of this user: `$LARDER_HOME`, else `$XDG_CACHE_HOME/larder`, else `~/.cache/larder`.
    pub fn of_process() -> io::Result<Self> {
        Self::of(|name| std::env::var_os(name)).ok_or_else(|| {
            let what = "neither LARDER_HOME nor HOME is set: set LARDER_HOME to a writable folder";
            io::Error::new(io::ErrorKind::NotFound, what)
        })
    }

    fn of(variable: impl Fn(&str) -> Option<OsString>) -> Option<Self> {
        let set = |name| variable(name).filter(|value| !value.is_empty()).map(PathBuf::from);
        set("LARDER_HOME")
            .or_else(|| Some(set("XDG_CACHE_HOME")?.join("larder")))
            .or_else(|| Some(set("HOME")?.join(".cache/larder")))
            .map(Self)
    }

    /// The folder itself.
    pub fn dir(&self) -> &Path {
        &self.0
    }

    /// A sub-folder, created if missing. Errors name it.
    pub fn sub_folder(&self, name: &str) -> io::Result<PathBuf> {
        let path = self.0.join(name);
        std::fs::create_dir_all(&path)
            .map_err(|error| io::Error::new(error.kind(), format!("make folder {}: {error}", path.display())))?;
        Ok(path)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn home_of(variables: &[(&str, &str)]) -> Option<PathBuf> {
        let value = |name: &str| variables.iter().find(|(set, _)| *set == name).map(|(_, value)| value.into());
        Home::of(value).map(|home| home.dir().to_owned())
    }

    #[test]
    fn the_most_specific_variable_that_is_set_names_the_home() {
        let user = [("HOME", "/u"), ("XDG_CACHE_HOME", "/x"), ("LARDER_HOME", "/l")];
        assert_eq!(home_of(&user), Some("/l".into()));
        assert_eq!(home_of(&user[..2]), Some("/x/larder".into()));
        assert_eq!(home_of(&user[..1]), Some("/u/.cache/larder".into()));
        assert_eq!(home_of(&[("HOME", "/u"), ("LARDER_HOME", "")]), Some("/u/.cache/larder".into()));
        assert_eq!(home_of(&[]), None);
    }
}
