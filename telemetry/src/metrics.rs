//! The table of metrics: name, kind, unit and meaning. A name never changes its meaning; a new meaning gets a new name.

/// How a metric's value changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// The value only grows, from 0 at the start of the process.
    Counter,
    /// The value goes up and down.
    Gauge,
    /// The metric counts how many values fell into each range.
    Histogram,
}

/// One metric of a daemon.
#[derive(Clone, Copy, Debug)]
pub struct Metric {
    /// The name without the prefix `larder_`, as in `stats.json`.
    pub name: &'static str,
    /// How the value changes.
    pub kind: Kind,
    /// The unit of the value, as in `docs/METRICS.md`.
    pub unit: &'static str,
    /// The meaning of the value, for `docs/METRICS.md` and the help text of the scrape.
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

/// All metrics of all components, sorted by name.
pub const METRICS: &[Metric] = &[
    gauge("build_info", "programs", "1, with the `program` and its `version`"),
    gauge(
        "cache_capacity_bytes",
        "bytes",
        "the reservation of a `dataset`; served with names only, as all metrics that need them",
    ),
    gauge(
        "cache_degraded",
        "datasets",
        "1 if the cache of a `dataset` admits nothing because its disk fails or is full, otherwise 0; served with names \
         only",
    ),
    gauge("cache_used_bytes", "bytes", "bytes of a `dataset` in the cache; served with names only"),
    gauge(
        "cache_wanted_bytes",
        "bytes",
        "the reservation that a `dataset` would have if the cache had room for all; served with names only",
    ),
    gauge("controller_datasets", "datasets", "Datasets in the cluster"),
    gauge("controller_datasets_ready", "datasets", "Datasets that are Ready"),
    counter("controller_decisions_total", "decisions", "decisions about a Dataset, most of which change nothing"),
    gauge(
        "controller_job_oldest_wait_seconds",
        "seconds",
        "age of the longest-waiting valid TrainingJob; 0 if none waits",
    ),
    counter(
        "controller_job_preemptions_total",
        "times",
        "preemptions: a TrainingJob gave back room that it still requests (all of it, or an elastic job's surplus) for \
         another job, a lower quota, a drained Queue, or Kueue",
    ),
    histogram(
        "controller_job_queue_seconds",
        "seconds",
        "waiting time of the started TrainingJobs, from 1 s to 1 week",
    ),
    counter(
        "controller_job_restarts_total",
        "losses",
        "lost pods by `cause` (`crashed`, `preempted`, `evicted`, `nodeLost`, `deviceFault`), counted as in \
         `status.restarts` of TrainingJobs",
    ),
    counter(
        "controller_job_rounds_total",
        "rounds",
        "scheduling rounds; each round considers all TrainingJobs and Queues",
    ),
    gauge(
        "controller_jobs",
        "jobs",
        "TrainingJobs by `state` (`queued`, `running`); with names, also by `namespace` and `queue`",
    ),
    counter("controller_job_starts_total", "starts", "waiting TrainingJobs that were given quota and nodes"),
    counter(
        "controller_job_wait_seconds_total",
        "seconds",
        "total waiting time of the started TrainingJobs; divided by `controller_job_starts_total`, it is the mean",
    ),
    gauge(
        "controller_jobs_running",
        "jobs",
        "TrainingJobs that hold quota and nodes, including those whose pods are not ready yet",
    ),
    gauge("controller_jobs_waiting", "jobs", "TrainingJobs waiting in a Queue or for room"),
    gauge("controller_leading", "processes", "1 in the replica that holds the Lease, otherwise 0"),
    gauge(
        "controller_queue_borrowed",
        "units",
        "the part of `controller_queue_used` that the Queue has borrowed, with the same labels; served with names only",
    ),
    gauge("controller_queue_jobs_running", "jobs", "TrainingJobs with quota, by `queue`; served with names only"),
    gauge(
        "controller_queue_jobs_waiting",
        "jobs",
        "TrainingJobs waiting for quota or room, by `queue`; served with names only",
    ),
    gauge(
        "controller_queue_oldest_wait_seconds",
        "seconds",
        "age of the longest-waiting valid TrainingJob, by `queue`; 0 if none waits; served with names only",
    ),
    counter(
        "controller_queue_preemptions_total",
        "times",
        "as `controller_job_preemptions_total`, by the `queue` of the job that gave back room; served with \
         names only",
    ),
    gauge(
        "controller_queue_quota",
        "units",
        "nominal quota by `queue`, `resource` and `flavor` (empty for nodes of all flavors): CPUs in thousandths, other \
         resources in their own unit; served with names only",
    ),
    counter(
        "controller_queue_starts_total",
        "starts",
        "as `controller_job_starts_total`, by `queue`; served with names only",
    ),
    gauge(
        "controller_queue_used",
        "units",
        "amount that the Queue uses, with the labels of `controller_queue_quota`; served with names only",
    ),
    counter(
        "controller_queue_wait_seconds_total",
        "seconds",
        "as `controller_job_wait_seconds_total`, by `queue`; served with names only",
    ),
    counter("controller_unreadable_total", "objects", "unreadable objects that were skipped; the log names them"),
    counter("controller_write_errors_total", "writes", "failed writes to the API; they are retried"),
    counter(
        "controller_writes_total",
        "writes",
        "writes to the API by `verb` and `resource`, including failed writes, excluding the Lease",
    ),
    gauge("csi_connections", "connections", "FUSE connections that the plugin holds"),
    counter("csi_offer_refusals_total", "offers", "offered connections that larderd refused"),
    counter("csi_offers_total", "offers", "connections offered to larderd"),
    counter("csi_panics_total", "calls", "calls that panicked and were answered with Internal"),
    histogram("csi_publish_seconds", "seconds", "time to publish a volume by `result` (`ok`, `error`)"),
    counter("csi_sessions_total", "sessions", "sessions that the plugin opened with larderd"),
    counter("csi_takeovers_total", "connections", "connections that a restarted plugin got back from larderd"),
    gauge("csi_targets", "targets", "volumes published on this node"),
    counter("daemon_connections_taken_total", "connections", "FUSE connections that larderd received from the plugin"),
    gauge("daemon_mounts", "mounts", "mounts being served"),
    counter("daemon_peer_denied_total", "ranges", "ranges refused to peers that lacked the dataset's token"),
    counter("daemon_peer_failures_total", "failures", "peers marked as failed and bypassed for a while"),
    counter(
        "daemon_peer_hedges_held_back_total",
        "reads",
        "reads whose first peer was slow and that were not hedged because too many had been",
    ),
    counter(
        "daemon_peer_not_let_in_total",
        "connections",
        "connections refused: no accepted certificate, no handshake in time, or too many",
    ),
    counter(
        "daemon_peer_not_served_total",
        "reads",
        "reads refused by peers that do not share the dataset or have another token for it",
    ),
    counter("daemon_peer_read_bytes_total", "bytes", "bytes read from peers"),
    counter("daemon_peer_reads_total", "requests", "requests sent to peers"),
    counter("daemon_peer_served_bytes_total", "bytes", "bytes served to peers"),
    gauge("daemon_peer_under_way_bytes", "bytes", "bytes of blocks in flight to peers"),
    counter("daemon_quota_refusals_total", "attempts", "attempts to mount a volume that a CacheQuota did not allow"),
    gauge("dataset_bytes", "bytes", "bytes of the files of a `dataset`; served with names only"),
    counter("devices_api_errors_total", "requests", "failed requests to the Kubernetes API; most are retried"),
    gauge(
        "devices_config_refused",
        "configurations",
        "1 while the newest configuration is invalid and the previous one is in force, otherwise 0",
    ),
    counter(
        "devices_events_dropped_total",
        "events",
        "Events about pods and the node that were dropped: too many, or refused by the API",
    ),
    counter("devices_events_total", "events", "Events created about pods and the node"),
    gauge("devices_known", "devices", "devices of the node by `kind` (`gpu`, `mig`, `hca`)"),
    gauge(
        "devices_limits_missing",
        "parts",
        "1 for each missing `part` (`controller`, `hook`, `nri`) that the limits of the node's devices need, otherwise 0",
    ),
    counter("devices_node_writes_total", "writes", "writes of the node's labels and condition"),
    gauge("devices_oddities", "entries", "sysfs and NVML entries that could not be read as expected"),
    gauge("devices_out_of_service", "devices", "devices out of service by `kind` and `reason`"),
    gauge(
        "devices_rdma_current",
        "objects",
        "RDMA objects that a pod's containers hold now, by `namespace`, `pod`, `hca` and `object` (`hca_handle`, \
         `hca_object`), for pods with HCAs on kernels with the rdma cgroup controller",
    ),
    gauge("devices_withheld", "devices", "devices that a resource selects but does not offer"),
    counter(
        "devices_xids_total",
        "Xids",
        "Xids reported, by the recommended `action` (`watch`, `restartWorker`, `drainGpu`, `drainNode`)",
    ),
    counter("fs_errors_total", "replies", "READ requests answered with an error"),
    counter("fs_lookups_total", "requests", "LOOKUP requests"),
    counter(
        "fs_mirror_bytes_total",
        "bytes",
        "bytes that came from mirrors of datasets, of those of `fs_origin_bytes_total`",
    ),
    counter("fs_mirror_gets_total", "requests", "requests to mirrors of datasets, failed ones included"),
    counter(
        "fs_mirror_missing_total",
        "objects",
        "objects that a mirror lacked or had in another version, and that were read from the next origin; \
         `.larder/stats.json` has them by mirror",
    ),
    counter("fs_origin_bytes_total", "bytes", "bytes fetched from the origin for readers, peers or warming"),
    counter(
        "fs_origin_gets_total",
        "GETs",
        "ranges fetched from the origin, one GET each unless it is retried; a GET of a pack may bring several blocks",
    ),
    counter("fs_origin_errors_total", "fetches", "fetches from the origin that failed or returned wrong bytes"),
    counter(
        "fs_origins_left_total",
        "times",
        "times that an origin of a dataset with mirrors gave nothing for 10 s and was left for the next",
    ),
    counter("fs_panics_total", "requests", "requests that panicked and were answered with EIO"),
    counter(
        "fs_peer_errors_total",
        "reads",
        "reads from a peer that failed or returned wrong bytes; the next peer or the origin was asked",
    ),
    counter("fs_peer_hedges_total", "reads", "hedged reads: a second peer was asked because the first was slow"),
    counter("fs_peer_hedges_won_total", "reads", "hedged reads that the second peer answered first"),
    counter("fs_peer_served_bytes_total", "bytes", "bytes served to peers"),
    counter("fs_peer_served_total", "reads", "ranges of blocks served to peers"),
    counter(
        "fs_plan_blocks_in_page_cache_total",
        "blocks",
        "planned blocks that were not fetched because the kernel's page cache had them",
    ),
    counter("fs_plan_blocks_in_time_total", "blocks", "planned blocks that were here when they were read"),
    counter("fs_plan_blocks_late_total", "blocks", "planned blocks that a reader had to wait for"),
    counter(
        "fs_plan_blocks_wasted_total",
        "blocks",
        "planned blocks that were fetched, not kept and not read: their plan ended, changed, or was not followed",
    ),
    counter("fs_plan_wasted_bytes_total", "bytes", "bytes of `fs_plan_blocks_wasted_total`"),
    counter(
        "fs_read_bytes_origin_total",
        "bytes",
        "old name of `read_bytes_total`: bytes answered from a fetch in flight from the origin",
    ),
    counter(
        "fs_read_bytes_peer_total",
        "bytes",
        "old name of `read_bytes_total`: bytes answered from a read in flight from a peer",
    ),
    counter(
        "fs_read_bytes_store_total",
        "bytes",
        "old name of `read_bytes_total`: bytes answered from the store; includes kernel read-ahead, as for the other \
         sources",
    ),
    counter(
        "fs_read_bytes_window_total",
        "bytes",
        "old name of `read_bytes_total`: bytes answered from memory: blocks that the store did not keep, or that a \
         plan fetched ahead",
    ),
    counter("fs_reads_total", "requests", "READ requests"),
    counter("fs_stale_total", "replies", "reads answered with ESTALE because the object changed after the import"),
    gauge(
        "fs_fetches_running",
        "fetches",
        "fetches in flight, including blocks that are still being written to the store",
    ),
    gauge("fs_memory_target_bytes", "bytes", "memory for the data in flight of all datasets (`--memory-target`)"),
    gauge("fs_memory_used_bytes", "bytes", "memory that data in flight holds, of `fs_memory_target_bytes`"),
    gauge("fs_plan_bytes", "bytes", "bytes in memory, or on their way, of blocks that plans fetched ahead of readers"),
    gauge("fs_plans", "plans", "plans that programs have open"),
    gauge("fs_window_bytes", "bytes", "bytes in memory of blocks that the store did not keep"),
    gauge(
        "listing_age_seconds",
        "seconds",
        "time since the snapshot of a `dataset` was listed or packed; served with names only",
    ),
    gauge(
        "origin_concurrency_limit",
        "requests",
        "requests that the origins in use may have in flight, by `scheme`; it follows their answers",
    ),
    histogram(
        "origin_request_seconds",
        "seconds",
        "attempts to read from the origin, from the request to the head of the answer or the failure, by `scheme` \
         (`s3`, `gs`, `az`, `file`) and `result` (`ok`, `throttled`, `timeout`, `error`)",
    ),
    gauge("origin_requests_in_flight", "requests", "requests in flight to origins, by `scheme`"),
    gauge("origin_requests_waiting", "requests", "requests that wait for a place at an origin, by `scheme`"),
    counter(
        "origin_retries_total",
        "attempts",
        "attempts to read from the origin that failed and were repeated, by `reason` (`throttled`, `timeout`, `error`)",
    ),
    gauge(
        "pass_hit_ratio",
        "ratio",
        "part of the bytes that the cache answered in the last complete pass over a `dataset`; served with names only",
    ),
    gauge(
        "pass_promised_ratio",
        "ratio",
        "part of a `dataset` that its reservation holds, which a pass over the filled cache hits; none after a first \
         pass that filled it; served with names only",
    ),
    counter("passes_total", "passes", "complete passes: readers have requested as many bytes as the dataset has"),
    counter(
        "peer_errors_total",
        "reads",
        "reads of peers that failed, by `cause` (`connect`, `timed_out`, `broken`, `truncated`, `wrong_bytes`, \
         `wrong_block`, `other_protocol`, `stopping`)",
    ),
    counter(
        "peer_refusals_total",
        "reads",
        "refused reads by `direction` (`by_peers`, `of_peers`) and `reason` (`not_served`, `no_such_range`, `gone`, \
         `stale`, `timed_out`, `unavailable`, `stopping`)",
    ),
    counter("plan_stall_seconds_total", "seconds", "time that reads waited for planned blocks, summed over the reads"),
    counter("process_cpu_seconds_total", "seconds", "CPU time of the process"),
    gauge("process_open_fds", "descriptors", "open file descriptors of the process"),
    gauge("process_resident_memory_bytes", "bytes", "resident memory of the process, mapped files included"),
    gauge("process_start_time_seconds", "seconds", "when the process started, since 1970"),
    counter(
        "read_bytes_total",
        "bytes",
        "bytes answered by `tier`: from the cache (`store`), from memory (`window`), or from a fetch in flight (`peer`, \
         `origin`); includes kernel read-ahead",
    ),
    counter("read_errors_total", "replies", "READ requests answered with an error, by `code` (`ENOENT`, `EIO`, ...)"),
    gauge("read_oldest_wait_seconds", "seconds", "how long the longest-waiting read has waited; 0 if none waits"),
    histogram("read_seconds", "seconds", "time to answer READ requests by `tier`, the slowest that a request needed"),
    counter("reads_total", "requests", "answered READ requests by `tier`, the slowest that a request needed"),
    gauge("reads_waiting", "reads", "reads that wait for the cache's disk, a peer or an origin"),
    counter("requests_total", "requests", "requests of the kernel by `verb` (`lookup`, `getattr`, `readdir`, `read`)"),
    counter(
        "scheduler_connections_refused_total",
        "connections",
        "connections that newer ones replaced because `--max-connections` were open",
    ),
    counter(
        "scheduler_decisions_dropped_total",
        "decisions",
        "decisions missing from `/decisions` because requests came too fast; their answers were sent",
    ),
    counter(
        "scheduler_watch_events_total",
        "events",
        "watch events about nodes, pods, volumes, NodeCaches, Datasets and TrainingJobs",
    ),
    gauge(
        "scheduler_watch_age_seconds",
        "seconds",
        "time since the last watch event or bookmark, for the kind silent longest; up to a minute is normal",
    ),
    gauge("scheduler_nodes", "nodes", "known nodes"),
    gauge("scheduler_pods", "pods", "known pods: assigned to a node and not ended"),
    counter(
        "scheduler_requests_refused_total",
        "requests",
        "refused requests: malformed, too large, or not received in time",
    ),
    histogram(
        "scheduler_request_seconds",
        "seconds",
        "request duration by `verb` (`filter`, `prioritize`, `preempt`), from the last byte received to the answer",
    ),
    counter(
        "scheduler_unknown_dataset_requests_total",
        "requests",
        "requests about pods that name a dataset that does not exist or that they may not read",
    ),
    counter(
        "stall_seconds_total",
        "seconds",
        "time in which at least one read of a dataset waited, by `cause`: `origin` (its first answer), `origin_errors` \
         and `throttled` (from the first failure or refusal on), `limit` (a place, memory or a rate of this node), \
         `peer`, `disk` (the cache's), `kernel` (all threads of the mount were busy), `cpu` (threads had no CPU)",
    ),
    counter("store_admitted_bytes_total", "bytes", "bytes of blocks written to the store"),
    counter("store_admitted_total", "blocks", "blocks written to the store"),
    counter("store_adopted_bytes_total", "bytes", "bytes of blocks taken over from another snapshot of their origin"),
    counter(
        "store_adopted_total",
        "blocks",
        "cached blocks taken over from another snapshot of their origin without a fetch",
    ),
    counter(
        "store_corrupt_total",
        "blocks",
        "torn, foreign or corrupt blocks, or pages of large files, found in the store and dropped",
    ),
    counter(
        "store_disowned_total",
        "blocks",
        "blocks evicted to make room because another node owns them since the membership changed",
    ),
    counter("store_evicted_total", "blocks", "blocks evicted by the policy; always 0 with nr and smallest"),
    counter(
        "store_index_dropped_total",
        "changes",
        "changes to the index dropped because its queue was full; each may cost a fetch after a power loss",
    ),
    counter("store_index_errors_total", "failures", "operations of the index that failed"),
    counter("store_read_errors_total", "reads", "failed disk reads of cached blocks; the block was fetched instead"),
    counter("store_refused_total", "blocks", "blocks that were not admitted to the store"),
    counter(
        "store_unwritten_total",
        "blocks",
        "blocks fetched and not stored, because 64 MiB of the dataset's blocks waited for the store already, \
         or all that --memory-target allows: the cache's disk is slow or stalled, or blocks of an earlier run are being \
         counted",
    ),
    counter(
        "store_write_errors_total",
        "failures",
        "failed writes of blocks or attempts to free their space: the disk is full, read-only or gone, or has less \
         than `--keep-free` left",
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
        "the reservation the dataset would have if the cache had room for everything its datasets want",
    ),
];

/// Generates the text of `docs/METRICS.md`.
pub fn metrics_page() -> String {
    use std::fmt::Write;
    let mut page = String::from(
        "# Metrics\n\n\
         After this page you can read every metric of Larder: what it counts, in which unit, and where it is\n\
         served.\n\n\
         - Each `fs_` and `store_` metric of a mount is a field of `metrics` in `DIR/.larder/stats.json`\n  \
         (`larder stats --json`), which also has its stalls, passes and times.\n\
         - `/metrics` at `--admin-address` serves metrics in OpenMetrics, or in Prometheus' text format to\n  \
         scrapers that do not accept it, with the prefix `larder_`. `larderd` and `cachenode` serve sums over\n  \
         all datasets.\n\
         - The following metrics exist only at `/metrics`: `daemon_` and those without a program's prefix of\n  \
         `larderd` and `cachenode`, `csi_` of `larder-csi`, `controller_` of `larder-controller`,\n  \
         `scheduler_` of `larder-scheduler-ext`, and `devices_` of `larder-devices`. All programs serve\n  \
         `build_info`, and `process_`, whose names have no prefix.\n\
         - Names of datasets, namespaces and queues are for scrapers that present the token of\n  \
         `--metrics-token` alone. Their counters and gauges of a node then have the label `dataset`: at most\n  \
         50 values, then `_other`. The counters of a closed dataset stay until another needs their place,\n  \
         and are added to `_other` then, so no sum falls. Histograms never have the label.\n\
         - In Kubernetes, `/metrics` is open to [labelled namespaces](kubernetes/operations.md#metrics).\n\
         - Counters at `/metrics` start at 0 with the process. Counters in a mount's `stats.json` start when\n  \
         its dataset is opened, except `store_` counters, which count the whole cache since the process\n  \
         started.\n\n\
         This page is generated from the table in `telemetry/src/metrics.rs`.\n\n\
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
    use std::collections::BTreeSet;

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
    fn no_two_metrics_are_one_family_in_open_metrics() {
        // The name of a family has no `_total`, and those of a histogram's series have these ends.
        let names = METRICS.iter().flat_map(|metric| {
            let family = metric.name.trim_end_matches("_total");
            let ends: &[&str] = if metric.kind == Kind::Histogram { &["", "_bucket", "_count", "_sum"] } else { &[""] };
            ends.iter().map(move |end| format!("{family}{end}"))
        });
        let mut seen = BTreeSet::new();
        names.for_each(|name| assert!(seen.insert(name.clone()), "{name} is of two metrics"));
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
