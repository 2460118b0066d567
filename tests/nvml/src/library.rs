//! The path from which this library was loaded.
#![expect(unsafe_code, reason = "the dynamic linker is asked")]

use std::ffi::{CStr, OsStr, c_void};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

/// The file of this library.
pub(crate) fn path() -> PathBuf {
    let here: fn() -> PathBuf = path;
    let mut found = libc::Dl_info {
        dli_fname: std::ptr::null(),
        dli_fbase: std::ptr::null_mut(),
        dli_sname: std::ptr::null(),
        dli_saddr: std::ptr::null_mut(),
    };
    // SAFETY: `found` outlives the call, and `here` is an address in this library.
    let known = unsafe { libc::dladdr(here as *const c_void, &raw mut found) };
    if known == 0 || found.dli_fname.is_null() {
        return PathBuf::new();
    }
    // SAFETY: dladdr returns a string that lives as long as the library is loaded.
    let found = unsafe { CStr::from_ptr(found.dli_fname) };
    PathBuf::from(OsStr::from_bytes(found.to_bytes()))
}
