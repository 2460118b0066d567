//! One write to the API, and its execution.
//!
//! No write does harm when it is repeated: an object's name follows from what it is for, so a second create fails and
//! makes no second object, and a deletion names the uid that it means. So a controller that dies between two writes
//! leaves nothing that the next one does not finish.

use larder_api::names::{FIELD_MANAGER, JOB_LABEL};
use larder_kube::api::{
    Api, DeleteParams, DynamicObject, Patch, PatchParams, PostParams, Preconditions, PropagationPolicy,
};
use larder_kube::core::Status;
use larder_kube::{Client, Error};
use serde_json::Value;

use larder_kube::kinds::Kind;

/// What became of an object that was to go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Deletion {
    /// It goes, or is gone already.
    Accepted,
    /// There was no such object any more.
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
    /// The object without which it makes no sense: if the write of that is refused, this one is left out.
    pub needs: Option<(Kind, String)>,
}

/// How an object is changed.
#[derive(Clone, Debug, PartialEq)]
pub enum Change {
    /// These fields are the controller's (server-side apply).
    Apply(Value),
    /// The same for the status.
    ApplyStatus(Value),
    /// A merge patch.
    Merge(Value),
    /// The same for the status.
    MergeStatus(Value),
    /// A new object. It is an error if there is one of that name, unless it is an event.
    Create(Value),
    /// A new object. One of that name with the same owner and label is as good; of a Secret, which is not read, any is.
    Make(Value),
    /// Whether such an object could be made; nothing is.
    Try(Value),
    /// The object with this uid goes.
    Delete(String),
}

impl Write {
    /// A write to an object.
    pub fn new(kind: Kind, namespace: &str, name: &str, change: Change) -> Self {
        Self { kind, namespace: namespace.to_owned(), name: name.to_owned(), change, needs: None }
    }

    /// The same, but only if the write of this object is not refused.
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

    /// How, as the API calls it.
    pub fn verb(&self) -> &'static str {
        match self.change {
            Change::Apply(_) | Change::ApplyStatus(_) | Change::Merge(_) | Change::MergeStatus(_) => "patch",
            Change::Create(_) | Change::Make(_) => "create",
            Change::Try(_) => "try",
            Change::Delete(_) => "delete",
        }
    }
}

/// True for an error that a repetition does not change: somebody else's object has the name, a quota or a policy is in
/// the way.
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
    /// There is nothing to be read of it: an event that was told before, or a trial.
    Told,
    /// The object is being deleted, or is gone.
    Deleted,
    /// The object to be deleted is not there.
    NotFound,
}

/// Executes a write. Errors that mean that there is nothing to do are none.
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
                // An event is told once. Anything else is seen soon, or is somebody else's and stands in the way.
                Err(Error::Api(status)) if status.reason == "AlreadyExists" && write.kind == Kind::Event => {
                    return Ok(Done::Told);
                }
                created => created,
            }
        }
        Change::Make(fields) => {
            let object = serde_json::from_value(typed(write, fields)).map_err(Error::SerdeError)?;
            let params = PostParams { field_manager: Some(FIELD_MANAGER.to_owned()), ..PostParams::default() };
            match api.create(&params, &object).await {
                Err(Error::Api(status)) if status.reason == "AlreadyExists" && write.kind == Kind::Secret => {
                    return Ok(Done::Told);
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
            return Ok(Done::Told);
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
                // With a conflict, another object has its name now, of which the watch tells.
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
