//! The names that programs and users share: labels, annotations, the finalizer, claims.

use std::fmt;
use std::str::FromStr;

pub use larder_dataset::environment::ANONYMOUS as ANONYMOUS_OWNER;

/// The administrator's namespace: Larder runs there, and Datasets there may read with larderd's own identity.
pub const SYSTEM_NAMESPACE: &str = "larder-system";
/// The ServiceAccount of `larderd` in [`SYSTEM_NAMESPACE`].
pub const LARDERD_ACCOUNT: &str = "larderd";
/// The ServiceAccount of `larder-controller` in [`SYSTEM_NAMESPACE`].
pub const CONTROLLER_ACCOUNT: &str = "larder-controller";
/// The field manager of everything that the controller applies.
pub const FIELD_MANAGER: &str = "larder-controller";
/// The Lease of the leading controller in [`SYSTEM_NAMESPACE`].
pub const LEASE: &str = "larder-controller";
/// The only LarderSettings.
pub const SETTINGS: &str = "larder";
/// The ConfigMap in [`SYSTEM_NAMESPACE`] that the controller writes for inline volumes. It lists the Datasets in the
/// format of the administrator's datasets file.
pub const REGISTRY_CONFIG_MAP: &str = "larder-registry";
/// The key in [`REGISTRY_CONFIG_MAP`]: the datasets file in YAML.
pub const REGISTRY_KEY: &str = "datasets.yaml";

/// The name of the CSI driver.
pub const CSI_DRIVER: &str = "csi.larder.dev";
/// The StorageClass of dataset claims.
pub const STORAGE_CLASS: &str = "larder";

/// The prefix of dataset labels on nodes. [`DatasetKey::node_label`] is the whole key.
pub const NODE_LABEL_PREFIX: &str = "dataset.larder.dev/";
/// The most labels with [`NODE_LABEL_PREFIX`] on one node.
pub const NODE_LABELS_MAX: usize = 40;
/// The longest label key after the `/`, and the longest label value.
pub const LABEL_MAX: usize = 63;

/// On a claim of class [`STORAGE_CLASS`]: `NAMESPACE/NAME` of the dataset to bind it to.
pub const DATASET_ANNOTATION: &str = "larder.dev/dataset";
/// On a pod: the datasets that it reads, separated by commas. Each is `NAMESPACE/NAME`, or `NAME` of its own namespace.
pub const DATASETS_ANNOTATION: &str = "larder.dev/datasets";
/// On a pod: `required` if the pod may run only on nodes that cache its datasets, at least the percentage in
/// [`MIN_WARM_ANNOTATION`] or 90 %.
pub const DATA_ANNOTATION: &str = "larder.dev/data";
/// On a container of a pod that may read datasets: a limit with the quantity 0, by which kube-scheduler asks the
/// extender about the pod.
pub const READS_DATA_RESOURCE: &str = "larder.dev/reads-data";
/// On a pod: `true` if it must not be preempted.
pub const PINNED_ANNOTATION: &str = "larder.dev/pinned";
/// On a NodeCache: why no new pods should read from it.
pub const CORDON_ANNOTATION: &str = "larder.dev/cordon";
/// The controllerName of Kueue's AdmissionChecks that wait for data.
pub const ADMISSION_CONTROLLER: &str = "larder.dev/data";
/// On the pod template of a job, or on an AdmissionCheck for jobs whose templates do not have it: the percentage of the
/// data that must be cached before the job starts.
pub const MIN_WARM_ANNOTATION: &str = "larder.dev/min-warm";
/// Beside [`MIN_WARM_ANNOTATION`]: the longest time that the job waits for data after it got its quota, such as 10m.
pub const WARM_DEADLINE_ANNOTATION: &str = "larder.dev/warm-deadline";
/// On a Deployment: the Dataset in its namespace whose new snapshots trigger a rollout.
pub const FOLLOW_ANNOTATION: &str = "larder.dev/follow";
/// On the pod template of a Deployment that follows a Dataset: the snapshot that the controller rolled it to.
pub const SNAPSHOT_ANNOTATION: &str = "larder.dev/snapshot";

/// On a Dataset: a time (RFC 3339). Cached bytes that were last used before it are dropped on nodes without a mount.
pub const CLEAN_ANNOTATION: &str = "larder.dev/clean";

/// `spec.managedBy` of the TrainingJobs that `larder-controller` runs. It also runs jobs without the field.
pub const MANAGED_BY: &str = "larder.dev/larder-controller";
/// `spec.managedBy` of the TrainingJobs that MultiKueue runs in other clusters.
pub const MULTIKUEUE: &str = "kueue.x-k8s.io/multikueue";
/// On a MultiKueueConfig, with the value `true`: `larder-controller` nominates clusters for its Workloads, as the value of
/// `multiKueue.dispatcherName` in the configuration of Kueue says.
pub const DISPATCHER_ANNOTATION: &str = "larder.dev/dispatcher";
/// On a TrainingJob: the LocalQueue of Kueue that admits it.
pub const KUEUE_QUEUE_LABEL: &str = "kueue.x-k8s.io/queue-name";
/// On every object of a TrainingJob: the job's name.
pub const JOB_LABEL: &str = "larder.dev/job";
/// On pods of a TrainingJob: the job's uid. With it they count as the job's pods even if they have lost their owner.
pub const JOB_UID_LABEL: &str = "larder.dev/job-uid";
/// On pods of a TrainingJob: their role.
pub const JOB_ROLE_LABEL: &str = "larder.dev/job-role";
/// On pods of a TrainingJob: their index in the role.
pub const JOB_INDEX_LABEL: &str = "larder.dev/job-index";
/// On pods of a TrainingJob: the attempt number of their index, starting at 0.
pub const JOB_ATTEMPT_LABEL: &str = "larder.dev/job-attempt";
/// On pods of a TrainingJob with a queue: the queue. Their requests count against it until they are deleted, even if
/// the job is deleted first.
pub const JOB_QUEUE_LABEL: &str = "larder.dev/job-queue";
/// Label of a pod of a TrainingJob: the flavor of its node, if it has one.
pub const JOB_FLAVOR_LABEL: &str = "larder.dev/job-flavor";
/// Label of a pod of another program: the Queue that it waits in and counts against.
pub const QUEUE_LABEL: &str = "larder.dev/queue";
/// The scheduling gate of such a pod, which is removed once it has quota and room.
pub const QUEUE_GATE: &str = "larder.dev/queue";
/// Label of such a pod: one of the priorities of its Queue.
pub const PRIORITY_LABEL: &str = "larder.dev/priority";
/// On the pods of a TrainingJob whose host names resolve to them. The label is removed from a pod that is replaced
/// while it still exists, so that no name resolves to a dead node.
pub const JOB_SERVING_LABEL: &str = "larder.dev/job-serving";
/// On the TrainingJob of a trial: the name of its sweep.
pub const SWEEP_LABEL: &str = "larder.dev/sweep";
/// On the TrainingJob of a trial: its number, starting at 0.
pub const TRIAL_LABEL: &str = "larder.dev/trial";
/// The variable of every container of a trial that has its number.
pub const TRIAL_VARIABLE: &str = "LARDER_TRIAL";
/// On the template of a role: processes in each pod; the default is one for each GPU, or one without GPUs.
pub const PROCESSES_ANNOTATION: &str = "larder.dev/processes-per-pod";
/// On the template of a role: the performance defaults that are off for its pods, separated by commas: `guaranteed`,
/// `whole-cpus`, `shared-memory`, `hugepages`.
pub const DEFAULTS_OFF_ANNOTATION: &str = "larder.dev/defaults-off";

/// The Cluster that stands for the cluster that it is in.
pub const HERE: &str = "here";
/// `spec.clusters` of a TrainingJob that may run in any cluster.
pub const ANY_CLUSTER: &str = "any";
/// The key in a Cluster's Secret: the kubeconfig.
pub const KUBECONFIG_KEY: &str = "kubeconfig";
/// A home named NAME has the account `home-NAME` of [`SYSTEM_NAMESPACE`] in other clusters.
pub const HOME_ACCOUNT_PREFIX: &str = "home-";
/// The most characters of the name of a home: with a uid, it is the value of [`HOME_LABEL`].
pub const HOME_NAME_MAX: usize = 26;
/// On a TrainingJob that another cluster has placed in this one: the home, by its name and the uid of its Cluster for
/// this one, as `NAME_UID`. Admission policies let no account use the name of another.
pub const HOME_LABEL: &str = "larder.dev/home";
/// Beside [`HOME_LABEL`]: the uid of the TrainingJob at its home.
pub const HOME_JOB_LABEL: &str = "larder.dev/home-job";
/// Beside [`HOME_LABEL`]: the generation of the TrainingJob at its home.
pub const HOME_GENERATION_ANNOTATION: &str = "larder.dev/home-generation";
/// Beside [`HOME_LABEL`]: the last time that the home had read from this cluster when it created the job, in seconds
/// since 1970 on this cluster's clock.
pub const HOME_READ_ANNOTATION: &str = "larder.dev/home-read";
/// Beside [`HOME_LABEL`]: the job has no pods while its home's lease is older than this many seconds.
pub const FENCE_ANNOTATION: &str = "larder.dev/fence-after";
/// The prefix of the leases of homes, which are annotations of the Cluster [`HERE`]. The id in [`HOME_LABEL`]
/// follows. The value is a time that the home has read from this cluster.
pub const LEASE_ANNOTATION_PREFIX: &str = "home.larder.dev/";
/// The finalizer of a TrainingJob that is in another cluster.
pub const ELSEWHERE_FINALIZER: &str = "larder.dev/elsewhere";
/// The field manager of everything that a home writes in other clusters.
pub const HOME_MANAGER: &str = "larder-home";

/// The condition of a node whose devices must not be used. Pods of TrainingJobs on that node are replaced on other
/// nodes.
pub const DEVICE_FAULT_CONDITION: &str = "larder.dev/DeviceFault";
/// The taint with which an administrator declares that a node is permanently shut down.
pub const OUT_OF_SERVICE_TAINT: &str = "node.kubernetes.io/out-of-service";

/// The finalizer of a Dataset.
pub const FINALIZER: &str = "larder.dev/dataset";
/// On every object that the controller creates for a Dataset: the Dataset's uid.
pub const UID_LABEL: &str = "larder.dev/dataset-uid";
/// On every object that the controller creates for a Dataset: its purpose, one of the `ROLE_` values.
pub const ROLE_LABEL: &str = "larder.dev/role";
/// [`ROLE_LABEL`] of the Job that lists the origin.
pub const ROLE_IMPORT: &str = "import";
/// [`ROLE_LABEL`] of a pod that warms a node.
pub const ROLE_WARM: &str = "warm";
/// [`ROLE_LABEL`] of the Job that copies a snapshot to a mirror.
pub const ROLE_SYNC: &str = "sync";
/// [`ROLE_LABEL`] of PersistentVolumes and claims.
pub const ROLE_VOLUME: &str = "volume";
/// On warming pods: the node that they warm.
pub const NODE_LABEL: &str = "larder.dev/node";

/// The namespace and name of a Dataset, written `NAMESPACE/NAME`.
///
/// ```
/// use larder_api::names::DatasetKey;
///
/// let key: DatasetKey = "team-a/imagenet".parse()?;
/// assert_eq!(key.node_label().as_deref(), Ok("dataset.larder.dev/team-a.imagenet"));
/// # Ok::<(), larder_api::names::InvalidKey>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DatasetKey {
    /// The namespace of the Dataset.
    pub namespace: String,
    /// The name of the Dataset.
    pub name: String,
}

/// A text that is not `NAMESPACE/NAME`.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{given:?} is not the place of a Dataset: write NAMESPACE/NAME")]
pub struct InvalidKey {
    given: String,
}

/// A namespace and a name that are too long for a label.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "metadata.name and metadata.namespace have {len} characters together; at most {} fit into the label of nodes, \
     {NODE_LABEL_PREFIX}NAMESPACE.NAME",
    LABEL_MAX - 1
)]
pub struct NameTooLong {
    /// The number of characters in both, without the dot between them.
    pub len: usize,
}

impl DatasetKey {
    /// The dataset `name` of `namespace`.
    pub fn new(namespace: impl Into<String>, name: impl Into<String>) -> Self {
        Self { namespace: namespace.into(), name: name.into() }
    }

    /// Parses a dataset name in a pod: `NAMESPACE/NAME`, or `NAME` in the namespace `own`.
    pub fn within(own: &str, text: &str) -> Result<Self, InvalidKey> {
        if text.contains('/') { text.parse() } else { format!("{own}/{text}").parse() }
    }

    /// The key of the dataset's label on nodes: `dataset.larder.dev/NAMESPACE.NAME`. A namespace has no dots, so no two
    /// datasets share a key.
    pub fn node_label(&self) -> Result<String, NameTooLong> {
        let len = self.namespace.len() + self.name.len();
        if len + 1 > LABEL_MAX {
            return Err(NameTooLong { len });
        }
        Ok(format!("{NODE_LABEL_PREFIX}{}.{}", self.namespace, self.name))
    }

    /// The dataset of a label on a node; `None` for other labels.
    pub fn of_node_label(key: &str) -> Option<Self> {
        let (namespace, name) = key.strip_prefix(NODE_LABEL_PREFIX)?.split_once('.')?;
        (!namespace.is_empty() && !name.is_empty()).then(|| Self::new(namespace, name))
    }

    /// The dataset's name in inline volumes: its name in [`SYSTEM_NAMESPACE`], `NAMESPACE/NAME` elsewhere.
    pub fn inline_name(&self) -> String {
        if self.namespace == SYSTEM_NAMESPACE { self.name.clone() } else { self.to_string() }
    }
}

impl fmt::Display for DatasetKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

impl FromStr for DatasetKey {
    type Err = InvalidKey;

    fn from_str(text: &str) -> Result<Self, InvalidKey> {
        let good = |part: &str, more: &[u8]| {
            !part.is_empty()
                && part.len() <= 253
                && part.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || more.contains(&byte))
        };
        match text.split_once('/') {
            Some((namespace, name)) if good(namespace, b"-") && good(name, b"-.") => Ok(Self::new(namespace, name)),
            _ => Err(InvalidKey { given: text.chars().take(64).collect() }),
        }
    }
}

/// The value of a dataset's label on a node that has `cached` of `total` bytes: the percentage, floored to tens, so
/// that `Gt` in a node affinity compares it. `None`: the node gets no label.
///
/// ```
/// use larder_api::names::node_label_value;
///
/// assert_eq!(node_label_value(999, 1000), Some("90"));
/// assert_eq!(node_label_value(99, 1000), None);
/// ```
pub fn node_label_value(cached: u64, total: u64) -> Option<&'static str> {
    const TENS: [&str; 10] = ["10", "20", "30", "40", "50", "60", "70", "80", "90", "100"];
    // An empty dataset has no label on any node.
    let tens = (u128::from(cached) * 10).checked_div(u128::from(total))?.min(10);
    TENS.get((tens as usize).checked_sub(1)?).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_label_has_room_for_63_characters_and_leads_back_to_its_dataset() {
        let fits = DatasetKey::new("team-a", "n".repeat(56));
        let label = fits.node_label().expect("63 characters");
        assert_eq!(label.len(), NODE_LABEL_PREFIX.len() + LABEL_MAX);
        assert_eq!(DatasetKey::of_node_label(&label), Some(fits));
        let error = DatasetKey::new("team-a", "n".repeat(57)).node_label().expect_err("64 characters");
        assert!(error.to_string().contains("63 characters together; at most 62"), "{error}");
        // A name may have dots, a namespace may not.
        let dotted = DatasetKey::new("a", "b.c");
        assert_eq!(DatasetKey::of_node_label(&dotted.node_label().expect("short")), Some(dotted));
        for other in
            ["kubernetes.io/hostname", "dataset.larder.dev/a", "dataset.larder.dev/.b", "dataset.larder.dev/a."]
        {
            assert_eq!(DatasetKey::of_node_label(other), None, "{other}");
        }
    }

    #[test]
    fn a_place_is_read_as_it_was_written() {
        let key = DatasetKey::new("team-a", "pets.v2");
        assert_eq!(key.to_string().parse(), Ok(key.clone()));
        assert_eq!(DatasetKey::within("team-b", "team-a/pets.v2"), Ok(key.clone()));
        assert_eq!(DatasetKey::within("team-a", "pets.v2"), Ok(key));
        for bad in ["", "a", "/", "a/", "/b", "a/b/c", "A/b", "a.b/c", "a/b c"] {
            assert!(bad.parse::<DatasetKey>().is_err(), "{bad}");
        }
        assert_eq!(DatasetKey::new(SYSTEM_NAMESPACE, "pets").inline_name(), "pets");
        assert_eq!(DatasetKey::new("team-a", "pets").inline_name(), "team-a/pets");
    }

    #[test]
    fn a_label_counts_in_tens_from_ten_on() {
        let cases = [(0, None), (9, None), (10, Some("10")), (19, Some("10")), (99, Some("90")), (100, Some("100"))];
        for (cached, value) in cases {
            assert_eq!(node_label_value(cached, 100), value, "{cached}");
        }
        assert_eq!(node_label_value(7, 0), None);
        assert_eq!(node_label_value(200, 100), Some("100"));
        assert_eq!(node_label_value(u64::MAX, u64::MAX), Some("100"));
    }
}
