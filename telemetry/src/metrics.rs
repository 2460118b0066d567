//! The table of metrics: name, kind, unit and meaning. A name never changes its meaning; a new meaning gets a new name.

/// How a metric's value moves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Only grows, from 0 at the start of the process.
    Counter,
    /// Goes up and down.
    Gauge,
    /// Counts how often a value was in a range.
    Histogram,
}

/// One metric.
#[derive(Clone, Copy, Debug)]
pub struct Metric {
    /// Its name, as in `stats.json`.
    pub name: &'static str,
    /// How it moves.
    pub kind: Kind,
    /// The unit of its value.
    pub unit: &'static str,
    /// Its meaning.
    pub meaning: &'static str,
}

const fn counter(name: &'static str, unit: &'static str, meaning: &'static str) -> Metric {
    Metric { name, kind: Kind::Counter, unit, meaning }
}

const fn gauge(name: &'static str, unit: &'static str, meaning: &'static str) -> Metric {
    Metric { name, kind: Kind::Gauge, unit, meaning }
}

const fn histogram(name: &'static str, unit: &'static str, meaning: &'static str) -> Metric {
    Metric { name, kind: Kind::Histogram, unit, meaning }
}

/// Every metric of every component, by name.
pub const METRICS: &[Metric] = &[
    gauge("controller_datasets", "datasets", "Datasets in the cluster"),
    gauge("controller_datasets_ready", "datasets", "Datasets that are Ready"),
    counter("controller_decisions_total", "decisions", "decisions about a Dataset, most of which change nothing"),
    gauge(
        "controller_job_oldest_wait_seconds",
        "seconds",
        "how long the valid TrainingJob has waited that waits longest; 0 if none waits",
    ),
    counter(
        "controller_job_preemptions_total",
        "times",
        "times that a TrainingJob gave back room that it still asks for, all of it or the surplus of an elastic one: for \
         another job, a lower quota, a drained Queue, or Kueue",
    ),
    counter(
        "controller_job_restarts_total",
        "losses",
        "losses of pods by `cause` (`crashed`, `preempted`, `evicted`, `nodeLost`, `deviceFault`), as `status.restarts` \
         of TrainingJobs counts them",
    ),
    counter("controller_job_rounds_total", "rounds", "looks at all TrainingJobs; each decides about all Queues"),
    counter("controller_job_starts_total", "starts", "times that a TrainingJob that waited was given quota and nodes"),
    counter(
        "controller_job_wait_seconds_total",
        "seconds",
        "how long these had waited together: divided by `controller_job_starts_total`, the mean",
    ),
    gauge(
        "controller_jobs_running",
        "jobs",
        "TrainingJobs that hold quota and nodes, whether or not their pods are ready yet",
    ),
    gauge("controller_jobs_waiting", "jobs", "TrainingJobs that wait in a Queue, or for room"),
    gauge("controller_leading", "processes", "1 in the replica that holds the Lease and acts, else 0"),
    counter(
        "controller_unreadable_total",
        "objects",
        "objects that could not be read and are skipped; the log names them",
    ),
    counter("controller_write_errors_total", "writes", "writes to the API that failed and are tried again"),
    counter(
        "controller_writes_total",
        "writes",
        "writes to the API by `verb` and `resource`, failed ones included and those of the Lease not",
    ),
    gauge("csi_connections", "connections", "FUSE connections that the plugin holds"),
    counter("csi_offer_refusals_total", "offers", "connections that larderd did not accept"),
    counter("csi_offers_total", "offers", "connections offered to larderd"),
    counter("csi_panics_total", "calls", "calls that panicked and were answered with Internal"),
    counter("csi_sessions_total", "sessions", "sessions that the plugin opened with larderd"),
    counter("csi_takeovers_total", "connections", "connections that a restarted plugin got back from larderd"),
    gauge("csi_targets", "targets", "volumes published on this node"),
    counter("daemon_connections_taken_total", "connections", "FUSE connections that larderd received from the plugin"),
    gauge("daemon_mounts", "mounts", "mounts being served"),
    counter("daemon_peer_denied_total", "ranges", "ranges refused to peers that did not show the dataset's token"),
    counter(
        "daemon_peer_failures_total",
        "failures",
        "times that a peer was marked as failed and bypassed for a while",
    ),
    counter(
        "daemon_peer_hedges_held_back_total",
        "reads",
        "reads whose first peer was slow to answer and for which no second one was asked, because that had been done \
         too often",
    ),
    counter(
        "daemon_peer_not_let_in_total",
        "connections",
        "connections refused: no accepted certificate, no handshake in time, or too many",
    ),
    counter(
        "daemon_peer_not_served_total",
        "reads",
        "reads that peers refused because they do not share the dataset, or have another token for it",
    ),
    counter("daemon_peer_read_bytes_total", "bytes", "bytes read from peers"),
    counter("daemon_peer_reads_total", "requests", "requests sent to peers"),
    counter("daemon_peer_served_bytes_total", "bytes", "bytes served to peers"),
    gauge("daemon_peer_under_way_bytes", "bytes", "bytes of blocks in flight to peers"),
    counter("devices_api_errors_total", "requests", "requests to the Kubernetes API that failed; most are tried again"),
    gauge(
        "devices_config_refused",
        "configurations",
        "1 while the newest configuration is wrong and the one before it is in force, else 0",
    ),
    counter(
        "devices_events_dropped_total",
        "events",
        "events about pods and the node that were not made: there were too many, or the API did not take them",
    ),
    counter("devices_events_total", "events", "events about pods and the node that were made"),
    gauge("devices_known", "devices", "devices of the node by `kind` (`gpu`, `mig`, `hca`)"),
    gauge(
        "devices_limits_missing",
        "parts",
        "1 for each `part` (`controller`, `hook`, `nri`) that limits of the node's devices need and that it lacks, else 0",
    ),
    counter("devices_node_writes_total", "writes", "writes of the node's labels and of its condition"),
    gauge("devices_oddities", "entries", "entries of sysfs and NVML that could not be read as they should be"),
    gauge("devices_out_of_service", "devices", "devices that are out of service by `kind` and `reason`"),
    gauge(
        "devices_rdma_current",
        "objects",
        "RDMA objects that containers of a pod have now, by `namespace`, `pod`, `hca` and `object` (`hca_handle`, `hca_object`): \
         only pods with HCAs, where the kernel has the rdma controller",
    ),
    gauge("devices_withheld", "devices", "devices that a resource selects and does not offer"),
    counter(
        "devices_xids_total",
        "Xids",
        "Xids told since the start by what follows: `action` (`watch`, `restartWorker`, `drainGpu`, `drainNode`)",
    ),
    counter("fs_errors_total", "replies", "READ requests answered with an error"),
    counter("fs_lookups_total", "requests", "LOOKUP requests"),
    counter("fs_origin_bytes_total", "bytes", "bytes fetched from the origin for readers, peers or warming"),
    counter(
        "fs_origin_gets_total",
        "GETs",
        "ranges fetched from the origin, one GET each unless it is retried; a GET of a pack may bring several blocks",
    ),
    counter("fs_origin_errors_total", "fetches", "fetches from the origin that failed or returned wrong bytes"),
    counter("fs_panics_total", "requests", "requests that panicked and were answered with EIO"),
    counter(
        "fs_peer_errors_total",
        "reads",
        "reads from a peer that failed or returned wrong bytes; the next peer or the origin was asked",
    ),
    counter(
        "fs_peer_hedges_total",
        "reads",
        "reads for which a second peer was asked because the first was slow to answer",
    ),
    counter("fs_peer_hedges_won_total", "reads", "reads that such a second peer answered first"),
    counter("fs_peer_served_bytes_total", "bytes", "bytes served to peers"),
    counter("fs_peer_served_total", "reads", "ranges of blocks served to peers"),
    counter(
        "fs_read_bytes_origin_total",
        "bytes",
        "bytes answered from a block that was being fetched from the origin",
    ),
    counter("fs_read_bytes_peer_total", "bytes", "bytes answered from a block that was being read from a peer"),
    counter(
        "fs_read_bytes_store_total",
        "bytes",
        "bytes answered from the store; what the kernel reads ahead of a program counts, here and for the other \
         sources",
    ),
    counter(
        "fs_read_bytes_window_total",
        "bytes",
        "bytes answered from memory, from a block that the store did not keep",
    ),
    counter("fs_reads_total", "requests", "READ requests"),
    counter("fs_stale_total", "replies", "reads answered with ESTALE because the object changed after the import"),
    gauge(
        "fs_fetches_running",
        "fetches",
        "fetches in flight, including blocks that are still being written to the store",
    ),
    gauge("fs_window_bytes", "bytes", "bytes of blocks in memory that the store did not keep"),
    counter(
        "scheduler_connections_refused_total",
        "connections",
        "connections that were closed at once because there were as many as `--max-connections`",
    ),
    counter(
        "scheduler_decisions_dropped_total",
        "decisions",
        "decisions that `/decisions` does not have because the requests came too fast; their answers were sent",
    ),
    counter(
        "scheduler_watch_events_total",
        "events",
        "changes of nodes, pods, volumes, NodeCaches, Datasets and TrainingJobs that the API server told",
    ),
    gauge(
        "scheduler_watch_age_seconds",
        "seconds",
        "time since the API server last sent anything, for the kind of objects about which it has been silent for longest; up to a minute is usual",
    ),
    gauge("scheduler_nodes", "nodes", "nodes that are known"),
    gauge("scheduler_pods", "pods", "pods that are known: those that have a node and have not ended"),
    counter(
        "scheduler_requests_refused_total",
        "requests",
        "requests that were refused: malformed, too large, or not received in time",
    ),
    histogram(
        "scheduler_request_seconds",
        "seconds",
        "how long requests took by `verb` (`filter`, `prioritize`, `preempt`), from their last byte to the answer",
    ),
    counter(
        "scheduler_unknown_dataset_requests_total",
        "requests",
        "requests about pods that name a dataset which does not exist or which they may not read",
    ),
    counter("store_admitted_bytes_total", "bytes", "bytes of blocks written to the store"),
    counter("store_admitted_total", "blocks", "blocks written to the store"),
    counter("store_adopted_bytes_total", "bytes", "bytes of blocks taken over from another snapshot of their origin"),
    counter(
        "store_adopted_total",
        "blocks",
        "blocks taken over from another snapshot of their origin, which the cache had, without fetching them again",
    ),
    counter("store_corrupt_total", "blocks", "blocks found torn, foreign or rotten in the store, and dropped"),
    counter(
        "store_disowned_total",
        "blocks",
        "blocks evicted to make room for others, because another node owns them since the list of nodes changed",
    ),
    counter("store_evicted_total", "blocks", "blocks evicted by the policy; always 0 with nr"),
    counter(
        "store_index_dropped_total",
        "changes",
        "changes to the index dropped because its queue was full; each may cost a fetch after a power loss",
    ),
    counter("store_index_errors_total", "failures", "operations of the index that failed"),
    counter(
        "store_read_errors_total",
        "reads",
        "reads of cached blocks that failed on the disk; the block was fetched",
    ),
    counter("store_refused_total", "blocks", "blocks that were not admitted to the store"),
    counter(
        "store_write_errors_total",
        "failures",
        "writes of blocks, or attempts to free their room, that failed: the disk is full, read-only or gone, or has \
         less than `--keep-free` left",
    ),
    gauge("store_blocks", "blocks", "blocks in the store"),
    gauge("store_capacity_bytes", "bytes", "the dataset's reservation"),
    gauge(
        "store_degraded",
        "datasets",
        "datasets whose cache admits nothing because the disk fails, is full, or has less than `--keep-free` left; \
         `cache.degraded` in stats.json says why",
    ),
    gauge("store_used_bytes", "bytes", "bytes of the dataset in the store"),
    gauge(
        "store_wanted_bytes",
        "bytes",
        "what the dataset's reservation would be if the cache had room for all that its datasets want",
    ),
];

/// The text of `docs/METRICS.md`.
pub fn metrics_page() -> String {
    use std::fmt::Write;
    let mut page = String::from(
        "# Metrics\n\n\
         Each metric is a field of `metrics` in `DIR/.larder/stats.json` (or `larder stats --json`). `/metrics` at \
         `--admin-address` of `larderd` and `cachenode` serves\n\
         it with the prefix `larder_`, summed over all datasets. Metrics that begin with `daemon_` are only there, \
         those that begin with `csi_` only at `/metrics` of\n\
         `larder-csi`, those that begin with `controller_` only at that of `larder-controller`, those that begin with \
         `scheduler_` only at that of `larder-scheduler-ext`, and those that begin with `devices_` only at that of \
         `larder-devices`. Counters of \
         `/metrics` start at 0 with the process; those of a mount's `stats.json` start with its dataset's opening, \
         except those of `store_`, which count the whole cache since the process started. This page is generated from \
         the table in `telemetry/src/metrics.rs`.\n\n\
         | name | kind | unit | meaning |\n|---|---|---|---|\n",
    );
    for metric in METRICS {
        let kind = match metric.kind {
            Kind::Counter => "counter",
            Kind::Gauge => "gauge",
            Kind::Histogram => "histogram",
        };
        // Writing to a String cannot fail.
        let _ = writeln!(page, "| `{}` | {kind} | {} | {} |", metric.name, metric.unit, metric.meaning);
    }
    page
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_unique_and_say_their_kind() {
        let mut names: Vec<_> = METRICS.iter().map(|metric| metric.name).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), METRICS.len());
        for metric in METRICS {
            assert_eq!(metric.name.ends_with("_total"), metric.kind == Kind::Counter, "{}", metric.name);
        }
    }

    #[test]
    fn the_page_in_docs_is_made_from_the_table() {
        let path = format!("{}/../docs/METRICS.md", std::env::var("CARGO_MANIFEST_DIR").unwrap());
        if std::env::var_os("LARDER_WRITE_GOLDEN").is_some() {
            std::fs::write(&path, metrics_page()).unwrap();
        }
        assert_eq!(std::fs::read_to_string(path).unwrap(), metrics_page(), "run this test with LARDER_WRITE_GOLDEN=1");
    }
}
