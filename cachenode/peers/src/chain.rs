//! Errors in one line.

/// An error and its sources, in one line.
pub(crate) fn chain(error: &dyn std::error::Error) -> String {
    let mut line = error.to_string();
    let mut source = error.source();
    while let Some(inner) = source {
        line = format!("{line}: {inner}");
        source = inner.source();
    }
    line
}
