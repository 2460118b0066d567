//! The Container Device Interface: our file, by which a container gets HCAs at every start of it, and the files of others.
//!
//! The cast: [`Spec`] is what our file says, [`nodes`] which device nodes an HCA has; [`keep`] keeps the file as it should be,
//! and passes views on once the file fits them; [`Found`] knows the devices of others.

mod decode;
mod found;
mod keeper;
pub mod nodes;
mod spec;

pub use decode::{Format, names};
pub use found::Found;
pub use keeper::{FILE, Settings, keep};
pub use spec::{Device, Spec, name, own_name, owners, qualified_name, spec};
