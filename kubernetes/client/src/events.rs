//! Events: messages about an object for users, which `kubectl describe` shows.
//!
//! The name of an Event is computed from its object and from the identity that the caller passes. A retry, another
//! replica and a restarted process therefore choose the same name, and the API answers that the Event already exists.

use k8s_openapi::api::core::v1::ObjectReference;
use k8s_openapi::api::events::v1::Event;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta};
use k8s_openapi::jiff::Timestamp;

use crate::short_hash::short_hash;

/// The API's limit for a note, in bytes.
pub const NOTE_BYTES: usize = 1024;
/// How many bytes of an object's name go into the name of its Event: with the hash, the result is below the limit of
/// 253.
const NAME_BYTES: usize = 200;
/// The API's limit for a reporting instance, in bytes.
const INSTANCE_BYTES: usize = 128;
/// The namespace of Events about cluster-wide objects. kubectl and the kubelet use the same one.
const CLUSTER_NAMESPACE: &str = "default";

/// The program that reports an Event.
#[derive(Clone, Copy, Debug)]
pub struct Reporter<'a> {
    /// The name of the program.
    pub controller: &'a str,
    /// The process of the program, usually named by its node.
    pub instance: &'a str,
    /// The action that the program reports on, in one word.
    pub action: &'a str,
}

/// Whether a user should act.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Severity {
    /// For information.
    Normal,
    /// Something is wrong.
    Warning,
}

/// The name of an Event about the object `object`. `identity` distinguishes it from other Events about the same object.
pub fn name(object: &str, identity: &[&str]) -> String {
    let start = object.char_indices().take_while(|(at, char)| at + char.len_utf8() <= NAME_BYTES);
    let start: String = start.map(|(_, char)| char).collect();
    // A part of a name must end with a letter or a digit.
    format!("{}.{}", start.trim_end_matches(['-', '.']), short_hash(identity))
}

/// The reference to the object that an Event is about. Empty parts are left out.
pub fn object(api_version: &str, kind: &str, namespace: &str, name: &str, uid: &str) -> ObjectReference {
    let part = |text: &str| Some(text.to_owned()).filter(|text| !text.is_empty());
    ObjectReference {
        api_version: part(api_version),
        kind: part(kind),
        namespace: part(namespace),
        name: part(name),
        uid: part(uid),
        ..ObjectReference::default()
    }
}

/// An Event with this name, in its object's namespace. A note that is too long is cut.
pub fn event(
    reporter: Reporter<'_>,
    at: Timestamp,
    name: String,
    regarding: ObjectReference,
    (severity, reason, note): (Severity, &str, &str),
) -> Event {
    let namespace = regarding.namespace.clone().unwrap_or_else(|| CLUSTER_NAMESPACE.to_owned());
    Event {
        metadata: ObjectMeta { name: Some(name), namespace: Some(namespace), ..ObjectMeta::default() },
        regarding: Some(regarding),
        type_: Some(format!("{severity:?}")),
        reason: Some(reason.to_owned()),
        note: Some(within(note, NOTE_BYTES)),
        action: Some(reporter.action.to_owned()),
        event_time: Some(MicroTime(at)),
        reporting_controller: Some(reporter.controller.to_owned()),
        reporting_instance: Some(within(reporter.instance, INSTANCE_BYTES)),
        ..Event::default()
    }
}

/// A text of at most `bytes` bytes, which ends with `…` if it was cut.
pub fn within(text: &str, bytes: usize) -> String {
    const CUT: &str = "…";
    if text.len() <= bytes {
        return text.to_owned();
    }
    let mut end = bytes.saturating_sub(CUT.len());
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    format!("{}{CUT}", &text[..end])
}

#[cfg(test)]
mod tests {
    use super::*;

    const REPORTER: Reporter<'_> = Reporter { controller: "larder-test", instance: "n1", action: "Testing" };

    #[test]
    fn a_name_follows_from_the_object_and_the_identity_alone() {
        // Processes of different releases must agree, so the hash is written out.
        assert_eq!(name("pets", &["uid", "Reason", "why"]), "pets.1697536f70");
        assert_ne!(name("pets", &["uid", "Reason", "why"]), name("pets", &["uid", "Reason", "other"]));
        let long = name(&format!("{}-{}", "n".repeat(199), "x".repeat(53)), &["uid"]);
        assert!(long.len() <= 253 && long.starts_with(&format!("{}.", "n".repeat(199))), "{long}");
    }

    #[test]
    fn a_note_is_cut_and_the_namespace_is_that_of_the_object() {
        let pod = object("v1", "Pod", "team", "p", "");
        let said = (Severity::Warning, "Lost", &*"ä".repeat(2000));
        let made = event(REPORTER, Timestamp::UNIX_EPOCH, "p.1".into(), pod, said);
        assert_eq!(made.note.as_deref().map(str::len), Some(1023));
        assert_eq!((made.metadata.namespace.as_deref(), made.type_.as_deref()), (Some("team"), Some("Warning")));
        assert_eq!(made.regarding.unwrap().uid, None);
        let node = object("v1", "Node", "", "n1", "n1");
        let made = event(REPORTER, Timestamp::UNIX_EPOCH, "n1.1".into(), node, (Severity::Normal, "Well", "x"));
        assert_eq!((made.metadata.namespace.as_deref(), made.type_.as_deref()), (Some("default"), Some("Normal")));
    }

    #[test]
    fn a_text_is_cut_between_characters() {
        assert_eq!(within("abc", 3), "abc");
        assert_eq!(within("äöüß", 7), "äö…");
        assert_eq!(within("äöüß", 6), "ä…");
    }
}
