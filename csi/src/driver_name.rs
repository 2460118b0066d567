//! The CSI driver's name.

/// The driver's name in the CSIDriver object and in volumes.
pub const DRIVER_NAME: &str = "csi.larder.dev";
