//! One write to the API, and its execution.
//!
//! Every write is idempotent: the name of an object follows from its purpose, so a second create fails and makes no
//! second object, and a deletion names the uid that it means. A controller that dies between two writes leaves nothing
//! that its successor does not finish.

use larder_api::names::{FIELD_MANAGER, JOB_LABEL};
use larder_kube::api::{
    Api, DeleteParams, DynamicObject, Patch, PatchParams, PostParams, Preconditions, PropagationPolicy,
};
use larder_kube::core::Status;
use larder_kube::{Client, Error};
use serde_json::Value;

use larder_kube::kinds::Kind;

/// The answer to a deletion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Deletion {
    /// The object is being deleted, or is gone already.
    Accepted,
    /// There is no such object.
    NotFound,
}

/// One write.
#[derive(Clone, Debug, PartialEq)]
pub struct Write {
    /// The kind of the object.
    pub kind: Kind,
    /// Its namespace; empty for a cluster-wide kind.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// The change.
    pub change: Change,
    /// The object that this one needs: if its write is refused, this one is left out.
    pub needs: Option<(Kind, String)>,
}

/// How an object is changed.
#[derive(Clone, Debug, PartialEq)]
pub enum Change {
    /// Server-side apply: the controller owns these fields.
    Apply(Value),
    /// Server-side apply of the status.
    ApplyStatus(Value),
    /// A merge patch.
    Merge(Value),
    /// A merge patch of the status.
    MergeStatus(Value),
    /// A new object. An existing object of that name is an error, unless the kind is Event.
    Create(Value),
    /// A new object. An existing object of that name counts if it has the same owner and job label. A Secret cannot be
    /// read, so any Secret of that name counts.
    Make(Value),
    /// A dry run of creating such an object.
    Try(Value),
    /// Deletes the object with this uid.
    Delete(String),
}

impl Write {
    /// A write to an object.
    pub fn new(kind: Kind, namespace: &str, name: &str, change: Change) -> Self {
        Self { kind, namespace: namespace.to_owned(), name: name.to_owned(), change, needs: None }
    }

    /// Leaves the write out if that of this object is refused.
    pub fn needing(mut self, kind: Kind, name: &str) -> Self {
        self.needs = Some((kind, name.to_owned()));
        self
    }

    /// The written resource, as the API calls it.
    pub fn resource(&self) -> &'static str {
        match self.change {
            Change::ApplyStatus(_) | Change::MergeStatus(_) => self.kind.status(),
            _ => self.kind.plural(),
        }
    }

    /// The verb, for metrics.
    pub fn verb(&self) -> &'static str {
        match self.change {
            Change::Apply(_) | Change::ApplyStatus(_) | Change::Merge(_) | Change::MergeStatus(_) => "patch",
            Change::Create(_) | Change::Make(_) => "create",
            Change::Try(_) => "try",
            Change::Delete(_) => "delete",
        }
    }
}

/// True for an error that a retry does not change: another object has the name, or a quota or a policy refuses it.
pub fn is_final(status: &Status) -> bool {
    match status.code {
        409 => status.reason == "AlreadyExists",
        400 | 403 | 413 | 422 => true,
        _ => false,
    }
}

/// What a write did.
#[derive(Debug)]
pub enum Done {
    /// The object is as in the answer.
    Object(Box<DynamicObject>),
    /// The object that was to be made is there already.
    Found(Box<DynamicObject>),
    /// There is no object to read: the Event or the Secret existed, or it was a dry run.
    Nothing,
    /// The object is being deleted, or is gone.
    Deleted,
    /// The object to be deleted is not there.
    NotFound,
}

/// Executes a write. An error that means that nothing is left to do counts as success.
pub async fn execute(client: &Client, write: &Write) -> Result<Done, Error> {
    let resource = write.kind.resource();
    let api: Api<DynamicObject> = if write.kind.is_cluster_wide() {
        Api::all_with(client.clone(), &resource)
    } else {
        Api::namespaced_with(client.clone(), &write.namespace, &resource)
    };
    let name = &write.name;
    let apply = PatchParams { force: true, ..PatchParams::apply(FIELD_MANAGER) };
    let merge = PatchParams { field_manager: Some(FIELD_MANAGER.to_owned()), ..PatchParams::default() };
    let done = match &write.change {
        Change::Apply(fields) => api.patch(name, &apply, &Patch::Apply(typed(write, fields))).await,
        Change::ApplyStatus(fields) => api.patch_status(name, &apply, &Patch::Apply(typed(write, fields))).await,
        Change::Merge(fields) => api.patch(name, &merge, &Patch::Merge(fields)).await,
        Change::MergeStatus(fields) => api.patch_status(name, &merge, &Patch::Merge(fields)).await,
        Change::Create(fields) => {
            let object = serde_json::from_value(typed(write, fields)).map_err(Error::SerdeError)?;
            let params = PostParams { field_manager: Some(FIELD_MANAGER.to_owned()), ..PostParams::default() };
            match api.create(&params, &object).await {
                // An Event is written once. Any other existing object is an error until the watch reports it.
                Err(Error::Api(status)) if status.reason == "AlreadyExists" && write.kind == Kind::Event => {
                    return Ok(Done::Nothing);
                }
                created => created,
            }
        }
        Change::Make(fields) => {
            let object = serde_json::from_value(typed(write, fields)).map_err(Error::SerdeError)?;
            let params = PostParams { field_manager: Some(FIELD_MANAGER.to_owned()), ..PostParams::default() };
            match api.create(&params, &object).await {
                Err(Error::Api(status)) if status.reason == "AlreadyExists" && write.kind == Kind::Secret => {
                    return Ok(Done::Nothing);
                }
                Err(Error::Api(status)) if status.reason == "AlreadyExists" => {
                    let there = api.get(name).await?;
                    if part_of(&there) != part_of(&object) {
                        return Err(Error::Api(status));
                    }
                    return Ok(Done::Found(Box::new(there)));
                }
                made => made,
            }
        }
        Change::Try(fields) => {
            let object = serde_json::from_value(typed(write, fields)).map_err(Error::SerdeError)?;
            api.create(&PostParams { dry_run: true, ..PostParams::default() }, &object).await?;
            return Ok(Done::Nothing);
        }
        Change::Delete(uid) => {
            let params = DeleteParams {
                propagation_policy: Some(PropagationPolicy::Background),
                preconditions: Some(Preconditions { uid: Some(uid.clone()), ..Preconditions::default() }),
                ..DeleteParams::default()
            };
            return match api.delete(name, &params).await {
                Ok(_) => Ok(Done::Deleted),
                Err(Error::Api(status)) if status.code == 404 => Ok(Done::NotFound),
                // On a conflict, another object has the name now, which the watch reports.
                Err(error) => Err(error),
            };
        }
    };
    done.map(|object| Done::Object(Box::new(object)))
}

/// The uid of the object that an object is part of, and the job that its label names; empty for none.
fn part_of(object: &DynamicObject) -> (&str, &str) {
    let mut owners = object.metadata.owner_references.iter().flatten();
    let owner = owners.find(|owner| owner.controller == Some(true)).map_or("", |owner| owner.uid.as_str());
    let labels = object.metadata.labels.as_ref();
    (owner, labels.and_then(|labels| labels.get(JOB_LABEL)).map_or("", String::as_str))
}

/// The fields with the object's type and name.
fn typed(write: &Write, fields: &Value) -> Value {
    let mut object = fields.clone();
    object["apiVersion"] = write.kind.api_version().into();
    object["kind"] = write.kind.name().into();
    object["metadata"]["name"] = write.name.clone().into();
    if !write.kind.is_cluster_wide() {
        object["metadata"]["namespace"] = write.namespace.clone().into();
    }
    object
}
