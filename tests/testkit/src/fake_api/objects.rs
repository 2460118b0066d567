//! How objects are stored and deleted: versions, uids, generations, finalizers, and the log that watches read.

use std::sync::Arc;

use serde_json::Value;

use super::values::finalizers;
use super::{Entry, Id, Inner};

impl Inner {
    pub(super) fn store(&mut self, id: Id, mut object: Value) -> Arc<Value> {
        let before = self.objects.get(&id);
        if let Some(before) = before {
            object["metadata"]["resourceVersion"] = before["metadata"]["resourceVersion"].clone();
            if object == **before {
                return Arc::clone(before);
            }
        }
        self.version += 1;
        let now = self.clock.now();
        let metadata = &mut object["metadata"];
        metadata["resourceVersion"] = self.version.to_string().into();
        metadata["name"] = id.2.clone().into();
        if !id.1.is_empty() {
            metadata["namespace"] = id.1.clone().into();
        }
        match before {
            None => {
                self.uids += 1;
                metadata["uid"] = format!("uid-{}", self.uids).into();
                metadata["generation"] = 1.into();
                metadata["creationTimestamp"] = now.into();
            }
            Some(before) => {
                metadata["uid"] = before["metadata"]["uid"].clone();
                metadata["creationTimestamp"] = before["metadata"]["creationTimestamp"].clone();
                let generation =
                    before["metadata"]["generation"].as_u64().unwrap() + u64::from(before["spec"] != object["spec"]);
                object["metadata"]["generation"] = generation.into();
            }
        }
        let kind = if before.is_none() { "ADDED" } else { "MODIFIED" };
        let gone = object["metadata"]["deletionTimestamp"].is_string() && finalizers(&object).is_empty();
        let object = Arc::new(object);
        self.log(&id.0, if gone { "DELETED" } else { kind }, Arc::clone(&object));
        if gone {
            self.objects.remove(&id);
        } else {
            self.objects.insert(id, Arc::clone(&object));
        }
        object
    }

    /// Deletes an object, or sets its deletion timestamp if it has finalizers.
    pub(super) fn delete(&mut self, id: &Id) -> Option<Arc<Value>> {
        let mut object = Value::clone(self.objects.get(id)?);
        if !finalizers(&object).is_empty() {
            object["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z".into();
            return Some(self.store(id.clone(), object));
        }
        self.objects.remove(id);
        self.version += 1;
        object["metadata"]["resourceVersion"] = self.version.to_string().into();
        self.log(&id.0, "DELETED", Arc::new(object));
        None
    }

    fn log(&mut self, plural: &str, kind: &'static str, object: Arc<Value>) {
        self.log.push(Entry { version: self.version, plural: plural.to_owned(), kind, object, seen_by: 0 });
    }
}
