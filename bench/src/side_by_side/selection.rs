//! The systems of a run: the installed systems, restricted to the user's choice.

use std::path::Path;

use anyhow::bail;

use super::report::LeftOut;
use crate::systems::{self, AnySystem, Found};

/// Returns the requested systems that are installed, and the requested systems that are missing. Fails on an unknown
/// name.
pub(crate) fn chosen(binary: &Path, only: &[String]) -> anyhow::Result<(Vec<AnySystem>, Vec<LeftOut>)> {
    let Found { mut systems, missing } = systems::all(binary);
    let names = systems.iter().map(|system| system.name()).chain(missing.iter().map(|(name, _)| name.as_str()));
    let names: Vec<String> = names.map(str::to_owned).collect();
    if let Some(unknown) = only.iter().find(|name| !names.contains(name)) {
        bail!("--only {unknown}: no such system; choose from {}", names.join(", "));
    }
    let wanted = |name: &str| only.is_empty() || only.iter().any(|wanted| wanted == name);
    systems.retain(|system| wanted(system.name()));
    let missing = missing.into_iter().filter(|(name, _)| wanted(name));
    Ok((systems, missing.map(|(name, why)| LeftOut { name, why }).collect()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unknown_system_is_rejected_with_the_list_of_systems() {
        let Err(error) = chosen(Path::new("/nonexistent/larder"), &["ext5".to_owned()]) else { panic!("accepted") };
        let error = error.to_string();
        assert!(error.contains("--only ext5") && error.contains("ext4"), "{error}");
        let (systems, _) = chosen(Path::new("/nonexistent/larder"), &["ext4".to_owned()]).unwrap();
        assert_eq!(systems.len(), 1);
    }
}
