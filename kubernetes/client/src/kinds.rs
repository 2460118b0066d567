//! The kinds of Kubernetes objects that Larder's programs read and write.

use kube::api::ApiResource;
use kube::core::GroupVersionKind;

/// A kind of object that Larder reads or writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    /// A dataset.
    Dataset,
    /// The limits that the Datasets of some namespaces share.
    CacheQuota,
    /// A node's cache.
    NodeCache,
    /// A node.
    Node,
    /// A pod.
    Pod,
    /// A batch Job.
    Job,
    /// A PersistentVolume.
    Volume,
    /// A PersistentVolumeClaim.
    Claim,
    /// A Deployment.
    Deployment,
    /// A ConfigMap in Larder's namespace.
    ConfigMap,
    /// The lists for admission policies.
    LarderSettings,
    /// An event.
    Event,
    /// A TrainingJob.
    TrainingJob,
    /// A type of TrainingJobs.
    JobType,
    /// A queue of TrainingJobs.
    JobQueue,
    /// A PriorityClass of pods.
    PriorityClass,
    /// A cluster that runs jobs.
    Cluster,
    /// A Service of a TrainingJob.
    Service,
    /// A Secret of a TrainingJob, which is created and never read.
    Secret,
    /// A PodGroup: a gang, whose pods the scheduler starts together or not at all.
    PodGroup,
    /// A kind of Kueue, in the API version that this cluster serves.
    Kueue(KueueKind, KueueVersion),
}

/// An optional part of the API that a cluster may not serve.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// Kueue.
    Kueue,
    /// TrainingJobs: their definitions, and the controller's rights to them.
    Jobs,
    /// Gang scheduling by kube-scheduler.
    Gangs,
    /// Other clusters: the definition of Clusters, and the controller's rights to them.
    Clusters,
}

/// A kind of Kueue that the controller reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum KueueKind {
    /// A Workload: a job in a queue.
    Workload,
    /// An AdmissionCheck, for which Workloads of a ClusterQueue wait.
    AdmissionCheck,
    /// A ResourceFlavor: nodes of one kind.
    ResourceFlavor,
    /// A WorkloadPriorityClass.
    PriorityClass,
    /// A MultiKueueConfig: the clusters of an AdmissionCheck of MultiKueue.
    MultiKueueConfig,
}

impl KueueKind {
    /// All kinds.
    pub const ALL: [Self; 5] =
        [Self::Workload, Self::AdmissionCheck, Self::ResourceFlavor, Self::PriorityClass, Self::MultiKueueConfig];
}

/// A version of Kueue's API that the controller supports.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum KueueVersion {
    /// Served by Kueue up to 0.19.
    V1beta1,
    /// Served by Kueue from 0.15 on.
    #[default]
    V1beta2,
}

impl KueueVersion {
    /// All versions, the preferred one first.
    pub const ALL: [Self; 2] = [Self::V1beta2, Self::V1beta1];

    /// The name of the version.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::V1beta1 => "v1beta1",
            Self::V1beta2 => "v1beta2",
        }
    }
}

/// Objects in a page of a list, of kinds whose objects are small.
pub(crate) const PAGE: u32 = 100;

/// The API group of Kueue.
pub const KUEUE_GROUP: &str = "kueue.x-k8s.io";

impl Kind {
    /// The kinds that the controller watches in every cluster.
    pub const WATCHED: [Self; 11] = [
        Self::Dataset,
        Self::CacheQuota,
        Self::NodeCache,
        Self::Node,
        Self::Pod,
        Self::Job,
        Self::Volume,
        Self::Claim,
        Self::Deployment,
        Self::ConfigMap,
        Self::LarderSettings,
    ];

    /// The kinds that the controller watches where TrainingJobs are installed.
    pub const OF_JOBS: [Self; 4] = [Self::TrainingJob, Self::JobType, Self::JobQueue, Self::PriorityClass];

    /// The optional part of the API that has the kind; `None` if every cluster serves it.
    pub const fn part(self) -> Option<Part> {
        match self {
            Self::Kueue(..) => Some(Part::Kueue),
            Self::TrainingJob | Self::JobType | Self::JobQueue | Self::PriorityClass => Some(Part::Jobs),
            Self::PodGroup => Some(Part::Gangs),
            Self::Cluster => Some(Part::Clusters),
            _ => None,
        }
    }

    /// The number of objects in a page of a list. The page is in memory as a whole. Objects that users write can have
    /// the API's largest size, 1.5 MB, and are in namespaces; the others are small and many.
    pub const fn page(self) -> u32 {
        if self.is_cluster_wide() { PAGE } else { 10 }
    }

    /// Group, version, kind and plural.
    const fn names(self) -> (&'static str, &'static str, &'static str, &'static str) {
        match self {
            Self::Dataset => ("larder.dev", "v1alpha1", "Dataset", "datasets"),
            Self::CacheQuota => ("larder.dev", "v1alpha1", "CacheQuota", "cachequotas"),
            Self::NodeCache => ("larder.dev", "v1alpha1", "NodeCache", "nodecaches"),
            Self::Node => ("", "v1", "Node", "nodes"),
            Self::Pod => ("", "v1", "Pod", "pods"),
            Self::Job => ("batch", "v1", "Job", "jobs"),
            Self::Volume => ("", "v1", "PersistentVolume", "persistentvolumes"),
            Self::Claim => ("", "v1", "PersistentVolumeClaim", "persistentvolumeclaims"),
            Self::Deployment => ("apps", "v1", "Deployment", "deployments"),
            Self::ConfigMap => ("", "v1", "ConfigMap", "configmaps"),
            Self::LarderSettings => ("larder.dev", "v1alpha1", "LarderSettings", "lardersettings"),
            Self::Event => ("events.k8s.io", "v1", "Event", "events"),
            Self::TrainingJob => ("larder.dev", "v1alpha1", "TrainingJob", "trainingjobs"),
            Self::JobType => ("larder.dev", "v1alpha1", "JobType", "jobtypes"),
            Self::JobQueue => ("larder.dev", "v1alpha1", "Queue", "queues"),
            Self::PriorityClass => ("scheduling.k8s.io", "v1", "PriorityClass", "priorityclasses"),
            Self::Cluster => ("larder.dev", "v1alpha1", "Cluster", "clusters"),
            Self::Service => ("", "v1", "Service", "services"),
            Self::Secret => ("", "v1", "Secret", "secrets"),
            Self::PodGroup => ("scheduling.k8s.io", "v1beta1", "PodGroup", "podgroups"),
            Self::Kueue(KueueKind::Workload, version) => (KUEUE_GROUP, version.as_str(), "Workload", "workloads"),
            Self::Kueue(KueueKind::AdmissionCheck, version) => {
                (KUEUE_GROUP, version.as_str(), "AdmissionCheck", "admissionchecks")
            }
            Self::Kueue(KueueKind::ResourceFlavor, version) => {
                (KUEUE_GROUP, version.as_str(), "ResourceFlavor", "resourceflavors")
            }
            Self::Kueue(KueueKind::PriorityClass, version) => {
                (KUEUE_GROUP, version.as_str(), "WorkloadPriorityClass", "workloadpriorityclasses")
            }
            Self::Kueue(KueueKind::MultiKueueConfig, version) => {
                (KUEUE_GROUP, version.as_str(), "MultiKueueConfig", "multikueueconfigs")
            }
        }
    }

    /// True if objects of this kind have no namespace.
    pub const fn is_cluster_wide(self) -> bool {
        matches!(
            self,
            Self::CacheQuota
                | Self::NodeCache
                | Self::Node
                | Self::Volume
                | Self::LarderSettings
                | Self::JobType
                | Self::JobQueue
                | Self::PriorityClass
                | Self::Cluster
                | Self::Kueue(
                    KueueKind::AdmissionCheck
                        | KueueKind::ResourceFlavor
                        | KueueKind::PriorityClass
                        | KueueKind::MultiKueueConfig,
                    _
                )
        )
    }

    /// The API resource of the kind.
    pub fn resource(self) -> ApiResource {
        let (group, version, kind, plural) = self.names();
        ApiResource::from_gvk_with_plural(&GroupVersionKind::gvk(group, version, kind), plural)
    }

    /// The value of `apiVersion`.
    pub fn api_version(self) -> String {
        let (group, version, ..) = self.names();
        if group.is_empty() { version.to_owned() } else { format!("{group}/{version}") }
    }

    /// The resource's name in paths.
    pub const fn plural(self) -> &'static str {
        self.names().3
    }

    /// The name of the kind's status in request paths. Defined for the kinds whose status the controller writes.
    pub const fn status(self) -> &'static str {
        match self {
            Self::Dataset => "datasets/status",
            Self::CacheQuota => "cachequotas/status",
            Self::TrainingJob => "trainingjobs/status",
            Self::LarderSettings => "lardersettings/status",
            Self::JobType => "jobtypes/status",
            Self::JobQueue => "queues/status",
            Self::Cluster => "clusters/status",
            Self::Kueue(KueueKind::Workload, _) => "workloads/status",
            Self::Kueue(KueueKind::AdmissionCheck, _) => "admissionchecks/status",
            _ => self.plural(),
        }
    }

    /// The value of `kind`.
    pub const fn name(self) -> &'static str {
        self.names().2
    }
}
