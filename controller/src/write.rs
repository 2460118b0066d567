//! A single write to the API, and its execution.
//!
//! Every write is idempotent. The name of an object follows from its purpose, so a second create fails instead of
//! creating a second object, and a deletion names the uid. If a controller dies between two writes, its successor
//! completes the rest.

use larder_api::names::{FIELD_MANAGER, JOB_LABEL};
use larder_kube::api::{
    Api, DeleteParams, DynamicObject, Patch, PatchParams, PostParams, Preconditions, PropagationPolicy,
};
use larder_kube::core::Status;
use larder_kube::unparsed::Unparsed;
use larder_kube::{Client, Error};
use serde::Serialize;
use serde_json::Value;

use larder_kube::kinds::Kind;

/// The answer to a deletion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Deletion {
    /// The object is being deleted, or was already deleted.
    Accepted,
    /// The object does not exist.
    NotFound,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Write {
    pub kind: Kind,
    /// The namespace; empty for a cluster-scoped kind.
    pub namespace: String,
    /// Its name.
    pub name: String,
    pub change: Change,
    /// If the write of this object is rejected, this write is skipped.
    pub needs: Option<(Kind, String)>,
}

/// The kind of change.
#[derive(Clone, Debug, PartialEq)]
pub enum Change {
    /// Server-side apply. The controller owns the fields.
    Apply(Value),
    /// Server-side apply of the status.
    ApplyStatus(Value),
    /// Server-side apply of the status as another field manager, which owns the fields.
    ApplyStatusAs(&'static str, Value),
    /// A merge patch.
    Merge(Value),
    /// A merge patch of the status.
    MergeStatus(Value),
    /// Creates an object. It is an error if an object of that name exists, unless the kind is Event.
    Create(Value),
    /// Creates an object. An existing object of that name is accepted if it has the same owner and job label. Secrets
    /// cannot be read, so any Secret of that name is accepted. Many of these wait to be written, pods above all, so
    /// they are texts ([`to_text`]): the tree of an object can be fifty times as large.
    Make(Box<str>),
    /// A dry run that creates an object, which is a text as well.
    Try(Box<str>),
    /// Deletes the object with this uid.
    Delete(String),
}

impl Write {
    pub fn new(kind: Kind, namespace: &str, name: &str, change: Change) -> Self {
        Self { kind, namespace: namespace.to_owned(), name: name.to_owned(), change, needs: None }
    }

    /// Skips this write if the write of the given object is rejected.
    pub fn needing(mut self, kind: Kind, name: &str) -> Self {
        self.needs = Some((kind, name.to_owned()));
        self
    }

    /// The plural name of the resource in the API.
    pub fn resource(&self) -> &'static str {
        match self.change {
            Change::ApplyStatus(_) | Change::ApplyStatusAs(..) | Change::MergeStatus(_) => self.kind.status(),
            _ => self.kind.plural(),
        }
    }

    /// The verb, for metrics.
    pub fn verb(&self) -> &'static str {
        match self.change {
            Change::Apply(_)
            | Change::ApplyStatus(_)
            | Change::ApplyStatusAs(..)
            | Change::Merge(_)
            | Change::MergeStatus(_) => "patch",
            Change::Create(_) | Change::Make(_) => "create",
            Change::Try(_) => "try",
            Change::Delete(_) => "delete",
        }
    }
}

/// The text of an object that is to be created.
pub fn to_text(object: &impl Serialize) -> Box<str> {
    serde_json::to_string(object).expect("an object is JSON").into_boxed_str()
}

/// True for an error that a retry does not change: another object has the name, or a quota or a policy rejects the
/// object.
pub fn is_final(status: &Status) -> bool {
    match status.code {
        409 => status.reason == "AlreadyExists",
        400 | 403 | 413 | 422 => true,
        _ => false,
    }
}

/// The outcome of a write.
#[derive(Debug)]
pub enum Done {
    /// The object after the write.
    Object(Box<Unparsed>),
    /// The object to be created already exists.
    Found(Box<Unparsed>),
    /// No object was returned: the Event or the Secret existed already, or the write was a dry run.
    Nothing,
    /// The object is being deleted, or was already deleted.
    Deleted,
    /// The object to be deleted does not exist.
    NotFound,
}

/// Executes a write. Errors that mean that nothing remains to be done count as success.
pub async fn execute(client: &Client, write: &Write) -> Result<Done, Error> {
    let resource = write.kind.resource();
    let api: Api<Unparsed> = if write.kind.is_cluster_wide() {
        Api::all_with(client.clone(), &resource)
    } else {
        Api::namespaced_with(client.clone(), &write.namespace, &resource)
    };
    let name = &write.name;
    let apply_as = |manager: &str| PatchParams { force: true, ..PatchParams::apply(manager) };
    let apply = apply_as(FIELD_MANAGER);
    let merge = PatchParams { field_manager: Some(FIELD_MANAGER.to_owned()), ..PatchParams::default() };
    let done = match &write.change {
        Change::Apply(fields) => api.patch(name, &apply, &Patch::Apply(typed(write, fields.clone()))).await,
        Change::ApplyStatus(fields) => {
            api.patch_status(name, &apply, &Patch::Apply(typed(write, fields.clone()))).await
        }
        Change::ApplyStatusAs(manager, fields) => {
            api.patch_status(name, &apply_as(manager), &Patch::Apply(typed(write, fields.clone()))).await
        }
        Change::Merge(fields) => api.patch(name, &merge, &Patch::Merge(fields)).await,
        Change::MergeStatus(fields) => api.patch_status(name, &merge, &Patch::Merge(fields)).await,
        Change::Create(fields) => {
            let object = Unparsed::of(&typed(write, fields.clone())).map_err(Error::SerdeError)?;
            let params = PostParams { field_manager: Some(FIELD_MANAGER.to_owned()), ..PostParams::default() };
            match api.create(&params, &object).await {
                // An Event is written once, so it may exist. For other kinds, an existing object is an error until the
                // watch reports it.
                Err(Error::Api(status)) if status.reason == "AlreadyExists" && write.kind == Kind::Event => {
                    return Ok(Done::Nothing);
                }
                created => created,
            }
        }
        Change::Make(text) => {
            let object = described(write, text).map_err(Error::SerdeError)?;
            let params = PostParams { field_manager: Some(FIELD_MANAGER.to_owned()), ..PostParams::default() };
            match api.create(&params, &object).await {
                Err(Error::Api(status)) if status.reason == "AlreadyExists" && write.kind == Kind::Secret => {
                    return Ok(Done::Nothing);
                }
                Err(Error::Api(status)) if status.reason == "AlreadyExists" => {
                    let there = api.get(name).await?;
                    let parsed = |object: &Unparsed| object.parse().map_err(Error::SerdeError);
                    if part_of(&parsed(&there)?) != part_of(&parsed(&object)?) {
                        return Err(Error::Api(status));
                    }
                    return Ok(Done::Found(Box::new(there)));
                }
                made => made,
            }
        }
        Change::Try(text) => {
            let object = described(write, text).map_err(Error::SerdeError)?;
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
                // A conflict means that another object has the name now. The watch reports it.
                Err(error) => Err(error),
            };
        }
    };
    done.map(|object| Done::Object(Box::new(object)))
}

/// The uid of the owner of an object, and the job in its label; empty for none.
fn part_of(object: &DynamicObject) -> (&str, &str) {
    let mut owners = object.metadata.owner_references.iter().flatten();
    let owner = owners.find(|owner| owner.controller == Some(true)).map_or("", |owner| owner.uid.as_str());
    let labels = object.metadata.labels.as_ref();
    (owner, labels.and_then(|labels| labels.get(JOB_LABEL)).map_or("", String::as_str))
}

/// The object that a text describes. Only here is it a tree.
fn described(write: &Write, text: &str) -> Result<Unparsed, serde_json::Error> {
    Unparsed::of(&typed(write, serde_json::from_str(text)?))
}

/// Adds the type and the name of the object to its fields.
fn typed(write: &Write, mut object: Value) -> Value {
    object["apiVersion"] = write.kind.api_version().into();
    object["kind"] = write.kind.name().into();
    object["metadata"]["name"] = write.name.clone().into();
    if !write.kind.is_cluster_wide() {
        object["metadata"]["namespace"] = write.namespace.clone().into();
    }
    object
}
