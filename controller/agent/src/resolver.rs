//! Host name resolution that works in any image.
#![expect(unsafe_code, reason = "glibc offers no safe way to choose its sources of names")]

/// Makes lookups use /etc/hosts and DNS, regardless of the image's /etc/nsswitch.conf.
///
/// Both sources are built into a statically linked glibc. For any other source it would load a library from the image,
/// which was built for a different glibc and could crash the process.
#[cfg(target_env = "gnu")]
pub(crate) fn choose_sources() {
    use std::ffi::{c_char, c_int};
    unsafe extern "C" {
        fn __nss_configure_lookup(database: *const c_char, sources: *const c_char) -> c_int;
    }
    // SAFETY: both arguments are static strings that end with a zero byte, and no other thread that could resolve names
    // runs yet. The call fails only for an unknown database.
    unsafe { __nss_configure_lookup(c"hosts".as_ptr(), c"files dns".as_ptr()) };
}

/// Other C libraries do not use nsswitch.conf.
#[cfg(not(target_env = "gnu"))]
pub(crate) fn choose_sources() {}
