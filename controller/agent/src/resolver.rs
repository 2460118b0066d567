//! Names of hosts, in any image.
#![expect(unsafe_code, reason = "glibc offers no safe way to choose its sources of names")]

/// Makes look-ups use /etc/hosts and DNS, whatever the image's /etc/nsswitch.conf says.
///
/// A statically linked glibc has these two built in. For any other it would load a library of the image, which was made for
/// another glibc and may end the process.
#[cfg(target_env = "gnu")]
pub(crate) fn choose_sources() {
    use std::ffi::{c_char, c_int};
    unsafe extern "C" {
        fn __nss_configure_lookup(database: *const c_char, sources: *const c_char) -> c_int;
    }
    // SAFETY: both are strings with a final zero that live for ever, and no other thread runs yet that looks names up. It fails
    // only for a database that it does not know.
    unsafe { __nss_configure_lookup(c"hosts".as_ptr(), c"files dns".as_ptr()) };
}

/// Other C libraries have no such sources.
#[cfg(not(target_env = "gnu"))]
pub(crate) fn choose_sources() {}
