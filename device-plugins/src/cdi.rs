//! The Container Device Interface: the file that we write, from which a container gets its HCAs at every start, and the
//! files that other programs write.
//!
//! The parts: [`Spec`] is the content of our file. [`nodes`] lists the device nodes of an HCA. [`keep`] keeps the file
//! current and passes each view on once the file matches it. [`Found`] lists the devices in other programs' files.

mod decode;
mod found;
mod keeper;
pub mod nodes;
mod spec;

pub use decode::{Format, names};
pub use found::Found;
pub use keeper::{FILE, Settings, keep};
pub use spec::{Device, Spec, name, own_name, owners, qualified_name, spec};
