//! Draws plain SVG, readable on white and on a slide: `lines` for hit ratios and the speed of epochs, `bars` for
//! systems side by side.

mod bars;
mod lines;

pub use bars::{Bar, Bars, Group};
pub use lines::{Line, Plot};
