//! The CustomResourceDefinitions, as `deploy/crds` has them.

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::CustomResourceExt;
use serde_json::Value;

use crate::cache_quota::CacheQuota;
use crate::cluster::Cluster;
use crate::dataset::Dataset;
use crate::job_type::JobType;
use crate::node_cache::NodeCache;
use crate::queue::Queue;
use crate::settings::LarderSettings;
use crate::training_job::TrainingJob;

/// All definitions.
pub fn all() -> [CustomResourceDefinition; 8] {
    [
        Dataset::crd(),
        CacheQuota::crd(),
        NodeCache::crd(),
        JobType::crd(),
        TrainingJob::crd(),
        Queue::crd(),
        LarderSettings::crd(),
        Cluster::crd(),
    ]
    .map(known_formats)
}

/// Replaces the formats of unsigned integers, which Kubernetes does not define and warns about at each apply. Their
/// `minimum` stays.
fn known_formats(definition: CustomResourceDefinition) -> CustomResourceDefinition {
    let mut value = serde_json::to_value(&definition).expect("a definition is JSON");
    rewrite(&mut value);
    serde_json::from_value(value).expect("only formats changed")
}

fn rewrite(value: &mut Value) {
    match value {
        Value::Object(fields) => {
            if let Some(Value::String(format)) = fields.get_mut("format") {
                match format.as_str() {
                    "uint64" => *format = "int64".to_owned(),
                    "uint32" | "uint16" => *format = "int32".to_owned(),
                    _ => {}
                }
            }
            fields.values_mut().for_each(rewrite);
        }
        Value::Array(items) => items.iter_mut().for_each(rewrite),
        _ => {}
    }
}
