//! The controller's Events, as writes.

use k8s_openapi::jiff::Timestamp;
use larder_api::names::FIELD_MANAGER;
use larder_kube::events::{Reporter, Severity, event, name, object};
use larder_kube::key::Meta;
use larder_kube::kinds::Kind;
use serde_json::to_value;

use crate::time::Seconds;
use crate::write::{Change, Write};

const REPORTER: Reporter<'_> = Reporter { controller: FIELD_MANAGER, instance: FIELD_MANAGER, action: "Reconciling" };

/// An Event about an object. `identity` distinguishes it from other Events about the same object.
pub(crate) fn write_event(
    now: Seconds,
    kind: Kind,
    meta: &Meta,
    identity: &[&str],
    said: (Severity, &str, &str),
) -> Write {
    let at = Timestamp::from_second(now.0).unwrap_or(Timestamp::UNIX_EPOCH);
    let name = name(&meta.key.name, identity);
    let regarding = object(&kind.api_version(), kind.name(), &meta.key.namespace, &meta.key.name, &meta.uid);
    let event = event(REPORTER, at, name.clone(), regarding, said);
    let namespace = event.metadata.namespace.clone().unwrap_or_default();
    let event = to_value(event).expect("an Event has no keys but strings");
    Write::new(Kind::Event, &namespace, &name, Change::Create(event))
}

#[cfg(test)]
mod tests {
    use super::*;
    use larder_kube::key::Key;

    #[test]
    fn an_event_is_written_to_the_namespace_that_it_names() {
        for (key, expected) in [(Key::new("team-a", "train"), "team-a"), (Key::cluster("single"), "default")] {
            let meta = Meta { key, ..Meta::default() };
            let write = write_event(Seconds(1), Kind::JobType, &meta, &[], (Severity::Warning, "Invalid", "why"));
            let Change::Create(event) = &write.change else { panic!("{write:?}") };
            assert_eq!((write.namespace.as_str(), event["metadata"]["namespace"].as_str()), (expected, Some(expected)));
        }
    }
}
