//! Text formats that several kinds share.

/// True for up to `most` lower-case letters, digits and hyphens, with a letter or digit at both ends.
pub(crate) fn is_label(text: &str, most: usize) -> bool {
    let inner = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    let ends = !text.starts_with('-') && !text.ends_with('-');
    !text.is_empty() && text.len() <= most && ends && text.bytes().all(inner)
}

/// True for a label that begins with a letter: the name of a role, a job or a service.
pub(crate) fn is_name(text: &str, most: usize) -> bool {
    is_label(text, most) && text.starts_with(|c: char| c.is_ascii_lowercase())
}

/// True for an absolute path without `..`, `.`, empty parts and `:`, which container mounts cannot have.
pub(crate) fn is_path(text: &str, most: usize) -> bool {
    let parts = text.strip_prefix('/').map(|rest| rest.split('/'));
    let good = |part: &str| !part.is_empty() && part != "." && part != "..";
    text.len() <= most
        && !text.contains(|c: char| c == ':' || c.is_control())
        && parts.is_some_and(|mut parts| parts.all(good))
}
