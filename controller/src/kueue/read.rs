//! Reduces AdmissionChecks, ResourceFlavors, WorkloadPriorityClasses and MultiKueueConfigs to the fields that are kept. An
//! unknown field is skipped, so that an object of a newer version does not block a queue.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::Toleration;
use larder_api::names::{
    ADMISSION_CONTROLLER, DISPATCHER_ANNOTATION, MIN_WARM_ANNOTATION, MULTIKUEUE, WARM_DEADLINE_ANNOTATION,
};
use larder_kube::api::DynamicObject;
use serde::Deserialize;
use serde_json::{Error, Value};

use crate::kueue::objects::{Check, Class, Config, Flavor, Patience};
use larder_kube::fields::{ConditionFields, annotation, fields, has_condition, meta};

/// Reads an AdmissionCheck. Skips the checks of other controllers, but for those of MultiKueue.
pub(crate) fn check(object: DynamicObject) -> Result<Option<Check>, Error> {
    #[derive(Default, Deserialize)]
    #[serde(default)]
    struct Fields {
        spec: Spec,
        status: Status,
    }
    #[derive(Default, Deserialize)]
    #[serde(default, rename_all = "camelCase")]
    struct Spec {
        controller_name: String,
        parameters: Option<Parameters>,
    }
    #[derive(Default, Deserialize)]
    #[serde(default)]
    struct Parameters {
        kind: String,
        name: String,
    }
    #[derive(Default, Deserialize)]
    #[serde(default)]
    struct Status {
        conditions: Vec<ConditionFields>,
    }
    let meta = meta(&object);
    let generation = object.metadata.generation.unwrap_or_default();
    let patience = Patience {
        min_warm: annotation(&object, MIN_WARM_ANNOTATION).map(str::to_owned),
        deadline: annotation(&object, WARM_DEADLINE_ANNOTATION).map(str::to_owned),
    };
    let Fields { spec, status } = fields(object.data)?;
    let config = match spec.controller_name.as_str() {
        ADMISSION_CONTROLLER => None,
        MULTIKUEUE => match spec.parameters {
            Some(Parameters { kind, name }) if kind == "MultiKueueConfig" => Some(name),
            _ => return Ok(None),
        },
        _ => return Ok(None),
    };
    let active = has_condition(&status.conditions, "Active");
    Ok(Some(Check { meta, generation, active, patience, config }))
}

pub(crate) fn flavor(object: DynamicObject) -> Result<Option<Flavor>, Error> {
    #[derive(Default, Deserialize)]
    #[serde(default)]
    struct Fields {
        spec: Spec,
    }
    #[derive(Default, Deserialize)]
    #[serde(default, rename_all = "camelCase")]
    struct Spec {
        node_labels: BTreeMap<String, String>,
        tolerations: Vec<Toleration>,
    }
    let meta = meta(&object);
    let Fields { spec } = fields(object.data)?;
    Ok(Some(Flavor { meta, labels: spec.node_labels, tolerations: spec.tolerations }))
}

pub(crate) fn config(object: DynamicObject) -> Result<Option<Config>, Error> {
    #[derive(Default, Deserialize)]
    #[serde(default)]
    struct Fields {
        spec: Spec,
    }
    #[derive(Default, Deserialize)]
    #[serde(default)]
    struct Spec {
        clusters: Vec<String>,
    }
    let meta = meta(&object);
    let is_dispatched = annotation(&object, DISPATCHER_ANNOTATION) == Some("true");
    let Fields { spec } = fields(object.data)?;
    Ok(Some(Config { meta, clusters: spec.clusters, is_dispatched }))
}

pub(crate) fn class(object: DynamicObject) -> Result<Option<Class>, Error> {
    let meta = meta(&object);
    let value = object.data.get("value").and_then(Value::as_i64).and_then(|value| i32::try_from(value).ok());
    Ok(Some(Class { meta, value: value.unwrap_or_default() }))
}
