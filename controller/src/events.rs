//! The Events of the controller, as writes.

use k8s_openapi::jiff::Timestamp;
use larder_api::names::FIELD_MANAGER;
use larder_kube::events::{Reporter, Severity, event, name, object};
use larder_kube::key::Meta;
use larder_kube::kinds::Kind;
use serde_json::to_value;

use crate::write::{Change, Write};

const REPORTER: Reporter<'_> = Reporter { controller: FIELD_MANAGER, instance: FIELD_MANAGER, action: "Reconciling" };

/// An Event about an object. `identity` tells it from other Events about the same object.
pub(crate) fn write_event(now: i64, kind: Kind, meta: &Meta, identity: &[&str], said: (Severity, &str, &str)) -> Write {
    let at = Timestamp::from_second(now).unwrap_or(Timestamp::UNIX_EPOCH);
    let name = name(&meta.key.name, identity);
    let regarding = object(&kind.api_version(), kind.name(), &meta.key.namespace, &meta.key.name, &meta.uid);
    let event = event(REPORTER, at, name.clone(), regarding, said);
    let event = to_value(event).expect("an Event has no keys but strings");
    Write::new(Kind::Event, &meta.key.namespace, &name, Change::Create(event))
}
