//! The action for an Xid on a GPU of a family.
//!
//! The source is NVIDIA's Xid catalogue (docs.nvidia.com/deploy/xid-errors/analyzing-xid-catalog.html). Each row has
//! the value of its column "immediate action". If the action here differs from the plain reading of that value, the row
//! says why.

use crate::config::XidAction;
use crate::machine::GpuFamily;

use XidAction::{DrainGpu, DrainNode, Ignore, RestartWorker, Watch};

/// A row of the table: a range of Xids with one meaning on the same families.
#[derive(Clone, Copy, Debug)]
pub struct Row {
    /// The first Xid.
    pub first: u64,
    /// The last Xid, inclusive.
    pub last: u64,
    pub meaning: &'static str,
    /// The catalogue's columns that list the Xid: `a` for A100, `h` for H100, `b` for B100 and GB200.
    pub columns: &'static str,
    /// The catalogue's immediate action.
    pub bucket: &'static str,
    /// The action that `larder-devices` takes.
    pub action: XidAction,
    /// The reason, if the action does not follow from the catalogue's action alone.
    pub why: &'static str,
}

/// The action for an Xid without a row: the driver reports it as critical. A GPU whose driver reports that it needs no
/// recovery returns to service after its quiet time.
pub const UNKNOWN: XidAction = DrainGpu;

/// The meaning of an Xid without a row.
pub const UNKNOWN_MEANING: &str = "not in the table";

/// The meaning of an Xid on a GPU of a family, and the action. `settings` override the table.
pub fn look_up(xid: u64, family: GpuFamily, settings: &[(u64, XidAction)]) -> (&'static str, XidAction) {
    let row = TABLE.iter().find(|row| (row.first..=row.last).contains(&xid) && is_about(row, family));
    let (meaning, action) = row.map_or((UNKNOWN_MEANING, UNKNOWN), |row| (row.meaning, row.action));
    (meaning, settings.iter().find(|(set, _)| *set == xid).map_or(action, |(_, action)| *action))
}

/// True if the row applies to the family. The catalogue has no column for Ada, which lies between A100 and H100, so Ada
/// gets the rows of both. It has no column for GPUs before Ampere, so every row applies to them.
fn is_about(row: &Row, family: GpuFamily) -> bool {
    match family {
        GpuFamily::Ampere => row.columns.contains('a'),
        GpuFamily::Ada => row.columns.contains(['a', 'h']),
        GpuFamily::Hopper => row.columns.contains('h'),
        GpuFamily::Blackwell => row.columns.contains('b'),
        GpuFamily::Other => true,
    }
}

const fn row(xid: u64, meaning: &'static str, columns: &'static str, bucket: &'static str, action: XidAction) -> Row {
    Row { first: xid, last: xid, meaning, columns, bucket, action, why: "" }
}

impl Row {
    const fn to(self, last: u64) -> Self {
        Self { last, ..self }
    }

    const fn why(self, why: &'static str) -> Self {
        Self { why, ..self }
    }
}

const ALL: &str = "ahb";
const APPLICATION: &str = "NVIDIA's device plugin also counts it as an application error";
const COUNTED: &str = "the catalogue advises a later check, so it is counted";
const DRIVER_DECIDES: &str = "the driver's recovery action decides";

/// The table, sorted by Xid.
pub const TABLE: &[Row] = &[
    row(8, "GPU stopped processing", ALL, "RESTART_APP", RestartWorker),
    row(11, "Invalid or corrupted push buffer stream", ALL, "RESTART_APP", RestartWorker),
    row(13, "Graphics Engine Exception", ALL, "RESTART_APP", RestartWorker).why(APPLICATION),
    row(14, "Fake or injected error", ALL, "IGNORE", Ignore),
    row(25, "Invalid or illegal push buffer stream", ALL, "RESTART_APP", RestartWorker),
    row(31, "GPU memory page fault", ALL, "RESTART_APP", RestartWorker).why(APPLICATION),
    row(32, "Invalid or corrupted push buffer stream", ALL, "RESTART_APP", RestartWorker),
    row(37, "Driver firmware error", ALL, "IGNORE", Ignore),
    row(38, "Driver firmware error", ALL, "IGNORE", Watch).why(COUNTED),
    row(39, "Copy Engine Exception", ALL, "RESTART_APP", RestartWorker).to(41),
    row(43, "GPU stopped processing", ALL, "IGNORE", Ignore).why(APPLICATION),
    row(44, "Graphics Engine fault during context switch", ALL, "IGNORE", Watch).why(COUNTED),
    row(45, "Preemptive cleanup, due to previous errors", ALL, "WORKFLOW_XID_45", Ignore).why(
        "it follows another Xid or the end of a process; NVIDIA's device plugin counts it as an application error",
    ),
    row(46, "GPU stopped processing", ALL, "RESET_GPU", DrainGpu),
    row(48, "Double Bit ECC Error", ALL, "WORKFLOW_XID_48", DrainGpu).why("a reset or a reboot is needed to clear it"),
    row(54, "Auxiliary power is not connected to the GPU board", ALL, "CHECK_MECHANICALS", DrainGpu)
        .why("the board must be inspected; GB200 has no such Xid"),
    row(60, "Video processor exception", ALL, "RESTART_APP", RestartWorker),
    row(62, "Internal micro-controller halt", ALL, "RESET_GPU", DrainGpu),
    row(63, "GPU memory remapping event", ALL, "IGNORE", Watch).why("memory was repaired; it is counted"),
    row(64, "GPU memory remapping failure", ALL, "RESET_GPU", DrainGpu),
    row(66, "Illegal access by driver", ALL, "IGNORE", Watch).why(COUNTED).to(67),
    row(68, "NVDEC0 Exception", ALL, "RESTART_APP", RestartWorker).why(APPLICATION),
    row(69, "Graphics Engine class error", ALL, "RESTART_APP", RestartWorker),
    row(70, "Copy engine error", ALL, "RESTART_APP", RestartWorker).to(72),
    row(74, "NVLINK Error", "ah", "WORKFLOW_NVLINK_ERR", DrainGpu).why("a reset or a reboot is needed to clear it"),
    row(75, "Copy engine error", ALL, "RESTART_APP", RestartWorker).to(77),
    row(78, "vGPU Start Error", ALL, "UPDATE_SWFW", Watch).why("software must be updated; the GPU has no fault"),
    row(79, "GPU has fallen off the bus", ALL, "RESTART_BM", DrainNode).why("only a restart of the machine helps"),
    row(80, "Corrupted data sent to GPU", "ah", "RESTART_APP", RestartWorker),
    row(82, "NVJPG0 Error", ALL, "RESTART_APP", RestartWorker),
    row(83, "NVDEC Error", ALL, "RESTART_APP", RestartWorker).to(84),
    row(85, "Copy engine error", ALL, "RESTART_APP", RestartWorker),
    row(86, "OFA Exception", ALL, "RESTART_APP", RestartWorker),
    row(88, "NVDEC Error", ALL, "RESTART_APP", RestartWorker).to(89),
    row(92, "High single-bit ECC error rate", ALL, "IGNORE", Watch).why(COUNTED),
    row(93, "Non-fatal violation of provisioned InfoROM wear limit", "a", "IGNORE", Watch).why(COUNTED),
    row(94, "Contained memory error", ALL, "RESTART_APP", RestartWorker),
    row(95, "Uncontained memory error", ALL, "RESET_GPU", DrainGpu),
    row(96, "NVDEC Error", "hb", "RESTART_APP", RestartWorker).to(98),
    row(99, "NVJPG Error", "hb", "RESTART_APP", RestartWorker).to(105),
    row(106, "SMBPBI Test Message", ALL, "IGNORE", Ignore).to(107),
    row(108, "NVLink remote translation error", ALL, "IGNORE", Ignore).why("as for Xid 137"),
    row(109, "Context Switch Timeout Error", ALL, "RESET_GPU", DrainGpu)
        .why("NVIDIA's device plugin counts it as an application error; the catalogue is newer"),
    row(110, "Security Fault Error", "hb", "RESET_GPU", DrainGpu),
    row(119, "GSP RPC Timeout", ALL, "RESET_GPU", DrainGpu),
    row(120, "GSP Error", ALL, "RESET_GPU", DrainGpu),
    row(121, "C2C Error", "b", "IGNORE", Watch)
        .why("corrected, on GB200 alone; a later reset is advised, so it is counted"),
    row(126, "Copy engine error", "b", "RESTART_APP", RestartWorker).to(135),
    row(136, "Link Training Failed", "h", "RESET_GPU", DrainGpu),
    row(137, "NVLink Privilege Error", ALL, "IGNORE", Ignore).why("an application's illegal access to another GPU"),
    row(139, "OFA1 Error", "b", "RESTART_APP", RestartWorker),
    row(140, "ECC Unrecovered Error", ALL, "RESET_GPU", DrainGpu),
    row(141, "CUDA Fast Path Error", "hb", "IGNORE", Watch).why(COUNTED),
    row(142, "NVENC3 Error", "b", "CONTACT_SUPPORT", DrainGpu).why("on GB200 alone; no milder action is known"),
    row(143, "GPU Initialization Error", "hb", "RESET_GPU", DrainGpu),
    row(144, "NVLINK: SAW, RLW, TLW, TREX or NVLPW_CTRL Error", "b", "WORKFLOW_NVLINK5_ERR", Watch)
        .to(148)
        .why("NVML does not expose the registers that say which need a reset: the driver's recovery action decides"),
    row(149, "NVLINK: NETIR or MSE Error", "b", "WORKFLOW_NVLINK5_ERR", DrainGpu)
        .to(150)
        .why("most of these need a reset"),
    row(151, "Key rotation Error", "hb", "RESTART_VM", DrainNode).why("the node is the virtual machine to restart"),
    row(154, "GPU Recovery Action Changed", ALL, "XID_154", Watch).why(DRIVER_DECIDES),
    row(155, "NVLINK: SW Defined Error", "b", "RESET_GPU", DrainGpu),
    row(156, "Resource Retirement Event", "hb", "RESET_GPU", DrainGpu),
    row(157, "Resource Retirement Failure", "hb", "IGNORE", Watch).why(COUNTED),
    row(158, "GPU Fatal Timeout", ALL, "RESET_GPU", DrainGpu),
    row(159, "CHI Non-Data Error", "b", "CHECK_UVM", Watch).why(DRIVER_DECIDES),
    row(160, "Channel Retirement Event or Failure", "b", "IGNORE", Watch).to(161).why(COUNTED),
    row(162, "Power smoothing was switched on or off, or is worn out", "b", "", Watch)
        .to(165)
        .why("the catalogue names no action and says that no reset is needed"),
];

/// The text of `docs/XIDS.md`.
pub fn page() -> String {
    use std::fmt::Write;
    let mut page = String::from(
        "# Xids\n\n\
         After this page you know what `larder-devices` does when NVIDIA's driver reports an Xid, and how to\n\
         change that.\n\n\
         | action | effect |\n|---|---|\n\
         | `ignore` | none |\n\
         | `watch` | the Xid is counted, and reported by an event on each pod that holds the device |\n\
         | `restartWorker` | as `watch`; the event says that the pod's work has failed. The GPU stays in service |\n\
         | `drainGpu` | the GPU and its MIG slices leave service |\n\
         | `drainNode` | all GPUs of the node leave service |\n\n\
         To override the table, set `health.xids` in the [configuration](DEVICES.md#define-resources), for\n\
         example `{13: ignore, 94: drainGpu}`.\n\n\
         A drained GPU returns to service when all of these hold:\n\n\
         - The driver reports that no recovery action is needed (NVML's field 230, which Xid 154 announces).\n  \
         [Drivers before about version 570](DEVICES.md#drivers-without-recovery-actions) do not report it;\n  \
         then a reset must be seen, or the node be rebooted.\n\
         - NVML's queries succeed.\n\
         - The GPU has been quiet for `health.gpuQuiet`, or longer after repeated faults.\n\n\
         ## Source\n\n\
         The source is\n\
         [NVIDIA's Xid catalogue](https://docs.nvidia.com/deploy/xid-errors/analyzing-xid-catalog.html).\n\
         The column \"catalogue\" has the catalogue's immediate action. If the action here does not follow\n\
         directly from it, the last column says why. In that column, \"NVIDIA's device plugin\" means\n\
         `internal/rm/health.go` of k8s-device-plugin.\n\n\
         - The catalogue has columns for A100, H100, B100 and GB200, but not for Ada and other families.\n  \
         Larder applies the rows of A100 and H100 to Ada, and all rows to other families.\n\
         - An Xid without a row for a family is `drainGpu`. An Xid for which the catalogue names no action is\n  \
         `drainGpu` too, unless the table below has a row for it.\n\n\
         This page is generated from the table in the code of `larder-devices`.\n\n\
         ## Table\n\n\
         | Xid | meaning | families | catalogue | action | why |\n|---|---|---|---|---|---|\n",
    );
    for row in TABLE {
        let xids = if row.first == row.last { row.first.to_string() } else { format!("{} to {}", row.first, row.last) };
        let names = [('a', "Ampere"), ('h', "Hopper"), ('b', "Blackwell")];
        let families: Vec<&str> =
            names.iter().filter(|(column, _)| row.columns.contains(*column)).map(|(_, name)| *name).collect();
        let families = if families.len() == names.len() { "all".to_owned() } else { families.join(", ") };
        let bucket = if row.bucket.is_empty() { "none" } else { row.bucket };
        // Writing to a String cannot fail.
        let _ = writeln!(
            page,
            "| {xids} | {} | {families} | {bucket} | `{}` | {} |",
            row.meaning,
            name(row.action),
            row.why
        );
    }
    page
}

/// The action's name in the settings.
pub fn name(action: XidAction) -> &'static str {
    match action {
        Ignore => "ignore",
        Watch => "watch",
        RestartWorker => "restartWorker",
        DrainGpu => "drainGpu",
        DrainNode => "drainNode",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn on(xid: u64, family: GpuFamily) -> XidAction {
        look_up(xid, family, &[]).1
    }

    // SEMANTICS: D15
    #[test]
    fn xids_follow_the_catalogue_by_family_and_the_settings_win() {
        for family in [GpuFamily::Ampere, GpuFamily::Ada, GpuFamily::Hopper, GpuFamily::Blackwell, GpuFamily::Other] {
            let actions = [13, 31, 43, 79, 94, 95, 154].map(|xid| on(xid, family));
            assert_eq!(
                actions,
                [RestartWorker, RestartWorker, Ignore, DrainNode, RestartWorker, DrainGpu, Watch],
                "{family:?}"
            );
            assert_eq!(on(4711, family), UNKNOWN, "{family:?}");
        }
        // An NVJPG engine that A100 does not have, NVLink 5 before Blackwell, and a range's ends.
        assert_eq!((on(99, GpuFamily::Ampere), on(99, GpuFamily::Hopper)), (UNKNOWN, RestartWorker));
        assert_eq!((on(105, GpuFamily::Ada), on(106, GpuFamily::Ada)), (RestartWorker, Ignore));
        assert_eq!((on(144, GpuFamily::Hopper), on(148, GpuFamily::Blackwell)), (UNKNOWN, Watch));
        assert_eq!((on(121, GpuFamily::Other), on(74, GpuFamily::Blackwell)), (Watch, UNKNOWN));
        let settings = [(79, DrainGpu), (4711, Ignore)];
        assert_eq!(look_up(79, GpuFamily::Hopper, &settings), ("GPU has fallen off the bus", DrainGpu));
        assert_eq!(look_up(4711, GpuFamily::Hopper, &settings).1, Ignore);
    }

    #[test]
    fn rows_are_in_order_and_name_their_action_as_the_settings_do() {
        for pair in TABLE.windows(2) {
            assert!(pair[0].last < pair[1].first, "{:?}", pair[1]);
        }
        for row in TABLE {
            assert!(row.first <= row.last && !row.columns.is_empty(), "{row:?}");
            assert_eq!(serde_json::to_value(row.action).unwrap(), name(row.action));
            // A row that differs from the catalogue must give a reason.
            let plain = match row.bucket {
                "RESTART_APP" => row.action == RestartWorker,
                "RESET_GPU" => row.action == DrainGpu,
                "IGNORE" => row.action == Ignore,
                _ => false,
            };
            assert!(plain || !row.why.is_empty(), "{row:?}");
        }
    }

    // SEMANTICS: D15
    #[test]
    fn the_page_of_xids_is_made_from_the_table() {
        let path = format!("{}/../docs/XIDS.md", std::env::var("CARGO_MANIFEST_DIR").unwrap());
        if std::env::var_os("LARDER_WRITE_GOLDEN").is_some() {
            std::fs::write(&path, page()).unwrap();
        }
        assert_eq!(std::fs::read_to_string(path).unwrap(), page(), "run this test with LARDER_WRITE_GOLDEN=1");
    }
}
