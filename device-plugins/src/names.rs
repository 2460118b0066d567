//! Names that several parts of a node agree on.

/// The CDI vendor of our files; their classes are [`CDI_HCA`] and [`CDI_CLAIM`].
pub const CDI_VENDOR: &str = "larder.dev";

/// The CDI class of HCAs, which are named by their PCI addresses: `larder.dev/hca=0000:42:00.0`.
pub const CDI_HCA: &str = "hca";

/// The CDI class of claims: what containers get beside the devices of a claim.
pub const CDI_CLAIM: &str = "claim";

/// What the names of the CDI files of claims begin with; the claim's uid follows.
pub const CLAIM_FILE: &str = "larder.dev-claim-";

/// The name of the driver of dynamic resource allocation.
pub const DRIVER: &str = "devices.larder.dev";

/// The annotation of a pod that asks for lower limits than those of its resources, such as
/// `hca_handle=1 hca_object=500 memlock=1Gi`.
pub const LIMITS_ANNOTATION: &str = "rdma.larder.dev/limits";

/// The annotation of a container that the NRI plugin adds for the hook: the limits that hold instead of those in the hook's
/// arguments, as lines of `rdma.max`, and never above them.
pub const MAX_ANNOTATION: &str = larder_rdma_limit::MAX_ANNOTATION;

/// The node condition of devices that are out of service.
pub const DEVICE_FAULT_CONDITION: &str = "larder.dev/DeviceFault";

/// The hook's program, in the folder of the host that the DaemonSet installs it to.
pub const HOOK: &str = larder_rdma_limit::PROGRAM;
