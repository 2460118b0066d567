//! Manifests of jobs: files of one or several documents, TrainingJobs or jobs of Kubeflow.

use std::io::Read;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use larder_api::TrainingJob;
use larder_api::convert::{Converted, convert};
use serde::Deserialize;
use serde_json::{Value, json};

/// The largest accepted manifest.
const MOST_BYTES: u64 = 16 << 20;

/// A job of a manifest.
#[derive(Debug)]
pub(super) struct Manifest {
    /// The file, and the position of the object in it, for errors.
    pub(super) from: String,
    /// The TrainingJob as it is sent.
    pub(super) value: Value,
    /// The decoded form of `value`.
    pub(super) job: TrainingJob,
    /// The kind from which it was converted; `None` for a TrainingJob.
    pub(super) was: Option<String>,
    /// The warnings of the conversion.
    pub(super) warnings: Vec<String>,
}

/// Reads all jobs. Errors: the first job that cannot be read, with its file.
pub(super) fn read(files: &[PathBuf]) -> anyhow::Result<Vec<Manifest>> {
    let mut found = Vec::new();
    for file in files {
        let name = if file == Path::new("-") { "standard input".to_owned() } else { file.display().to_string() };
        let text = text(file).with_context(|| name.clone())?;
        for (at, object) in objects(&text).with_context(|| name.clone())?.into_iter().enumerate() {
            let from = format!("{name}, object {}", at + 1);
            found.push(manifest(object, from.clone()).context(from)?);
        }
    }
    if found.is_empty() {
        bail!("the files contain no job");
    }
    Ok(found)
}

fn text(file: &Path) -> anyhow::Result<String> {
    let mut text = String::new();
    if file == Path::new("-") {
        std::io::stdin().lock().take(MOST_BYTES + 1).read_to_string(&mut text)?;
    } else {
        std::fs::File::open(file)?.take(MOST_BYTES + 1).read_to_string(&mut text)?;
    }
    if text.len() as u64 > MOST_BYTES {
        bail!("longer than {} MiB: split it", MOST_BYTES >> 20);
    }
    Ok(text)
}

/// The objects of a text: its documents, with lists replaced by their items.
fn objects(text: &str) -> anyhow::Result<Vec<Value>> {
    let mut objects = Vec::new();
    for document in serde_yaml_ng::Deserializer::from_str(text) {
        match Value::deserialize(document).context("neither YAML nor JSON")? {
            Value::Null => {}
            Value::Object(mut list) if list.get("items").is_some_and(Value::is_array) => {
                let items = list.remove("items").unwrap_or_default();
                objects.extend(items.as_array().into_iter().flatten().cloned());
            }
            object => objects.push(object),
        }
    }
    Ok(objects)
}

/// A TrainingJob unchanged, or a job of Kubeflow converted to one.
fn manifest(mut value: Value, from: String) -> anyhow::Result<Manifest> {
    let of = |field: &str| value.get(field).and_then(Value::as_str).unwrap_or_default().to_owned();
    let (version, kind) = (of("apiVersion"), of("kind"));
    remove_what_the_cluster_adds(&mut value);
    if kind != "TrainingJob" || !version.starts_with("larder.dev/") {
        let Converted { job, warnings } = convert(&value)?;
        return Ok(Manifest { value: sent(&job)?, from, job, was: Some(kind), warnings });
    }
    let job: TrainingJob = serde_json::from_value(value.clone()).context("not a TrainingJob of this version")?;
    Ok(Manifest { from, value, job, was: None, warnings: Vec::new() })
}

/// Removes the fields that a cluster adds, from a manifest that `kubectl get -o yaml` printed.
pub(super) fn remove_what_the_cluster_adds(object: &mut Value) {
    if let Some(fields) = object.as_object_mut() {
        fields.remove("status");
    }
    let Some(metadata) = object.get_mut("metadata").and_then(Value::as_object_mut) else { return };
    for field in ["creationTimestamp", "generation", "managedFields", "resourceVersion", "selfLink", "uid"] {
        metadata.remove(field);
    }
    if let Some(annotations) = metadata.get_mut("annotations").and_then(Value::as_object_mut) {
        annotations.remove("kubectl.kubernetes.io/last-applied-configuration");
    }
}

/// A TrainingJob as it is sent.
pub(super) fn sent(job: &TrainingJob) -> anyhow::Result<Value> {
    let mut value = serde_json::to_value(job)?;
    if let Some(fields) = value.as_object_mut() {
        fields.remove("status");
        fields.insert("apiVersion".to_owned(), json!("larder.dev/v1alpha1"));
        fields.insert("kind".to_owned(), json!("TrainingJob"));
    }
    Ok(value)
}

/// Manifests as one YAML text, with the same meaning in YAML 1.1 and 1.2.
pub(super) fn yaml<'a>(values: impl Iterator<Item = &'a Value>) -> anyhow::Result<String> {
    let documents: Result<Vec<String>, _> = values.map(document).collect();
    Ok(documents?.join("---\n"))
}

/// The library quotes only strings that YAML 1.2 would not read as strings. Strings that YAML 1.1 would misread get a
/// mark before serialization, and the mark is replaced by quotes afterwards.
fn document(value: &Value) -> Result<String, serde_yaml_ng::Error> {
    let plain = serde_yaml_ng::to_string(value)?;
    let mut mark = "quote".to_owned();
    while plain.contains(&mark) {
        mark += "-quote";
    }
    let marked = serde_yaml_ng::to_string(&marked(value, &mark))?;
    Ok(marked.replace(&format!("{mark}."), "'").replace(&format!(".{mark}"), "'"))
}

fn marked(value: &Value, mark: &str) -> Value {
    let text = |text: &str| if is_read_otherwise(text) { format!("{mark}.{text}.{mark}") } else { text.to_owned() };
    match value {
        Value::String(value) => Value::String(text(value)),
        Value::Array(items) => items.iter().map(|item| marked(item, mark)).collect(),
        Value::Object(fields) => fields.iter().map(|(name, value)| (text(name), marked(value, mark))).collect(),
        other => other.clone(),
    }
}

/// Whether a string of YAML 1.2 is a boolean or a number in YAML 1.1.
fn is_read_otherwise(text: &str) -> bool {
    let is_boolean = ["y", "yes", "n", "no", "on", "off"].iter().any(|word| text.eq_ignore_ascii_case(word));
    let is_of_number = |c: char| c.is_ascii_hexdigit() || "xXoO_.+-".contains(c);
    let begins_number = text.starts_with(|c: char| c.is_ascii_digit() || "+-.".contains(c));
    is_boolean || (begins_number && text.contains('_') && text.chars().all(is_of_number))
}

#[cfg(test)]
mod tests {
    use super::*;

    const JOB: &str = "apiVersion: larder.dev/v1alpha1\nkind: TrainingJob\n\
                       metadata: {name: a, uid: u, resourceVersion: '1', managedFields: []}\n\
                       spec: {type: single, roles: [{name: worker, template: {spec: {containers: [{name: c}]}}}]}\n\
                       status: {phase: Failed}\n";

    fn read_text(text: &str) -> anyhow::Result<Vec<Manifest>> {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), text).unwrap();
        read(&[file.path().to_owned()])
    }

    #[test]
    fn documents_and_lists_are_read_without_the_fields_that_the_cluster_adds() {
        let list = "apiVersion: v1\nkind: List\nitems: []\n";
        let found = read_text(&format!("{JOB}---\n# nothing\n---\n{list}---\n{JOB}")).unwrap();
        assert_eq!(found.len(), 2);
        assert_eq!(found[0].value["metadata"], json!({"name": "a"}));
        assert_eq!((found[0].value.get("status"), found[0].was.clone()), (None, None));
        assert!(found[1].from.ends_with(", object 2"), "{}", found[1].from);
        let item: Value = serde_yaml_ng::from_str(JOB).unwrap();
        let list = json!({"apiVersion": "v1", "kind": "List", "items": [item, item]});
        assert_eq!(read_text(&list.to_string()).unwrap().len(), 2);
    }

    #[test]
    fn an_unknown_field_is_left_for_the_cluster_to_reject() {
        let found = read_text(&JOB.replace("type: single", "type: single, colour: 3")).unwrap();
        assert_eq!(found[0].value["spec"]["colour"], 3);
    }

    #[test]
    fn a_job_of_kubeflow_is_converted() {
        let tf = "apiVersion: kubeflow.org/v1\nkind: TFJob\nmetadata: {name: a}\n\
                  spec: {tfReplicaSpecs: {Worker: {template: {spec: {containers: [{name: tensorflow}]}}}}}\n";
        let found = read_text(tf).unwrap();
        assert_eq!((found[0].was.as_deref(), &found[0].value["kind"]), (Some("TFJob"), &json!("TrainingJob")));
        assert_eq!(found[0].value["apiVersion"], "larder.dev/v1alpha1");
        // As `kubectl get -o yaml` prints it. Warnings must be only about fields that the user wrote.
        let read = tf.replace(
            "{name: a}",
            "{name: a, uid: u, generation: 2, annotations: {own: x, kubectl.kubernetes.io/last-applied-configuration: y}}",
        );
        let found = read_text(&format!("{read}status: {{conditions: []}}\n")).unwrap();
        assert_eq!(found[0].warnings, [""; 0]);
        assert_eq!(found[0].value["metadata"], json!({"name": "a", "annotations": {"own": "x"}}));
    }

    /// `kubectl` reads YAML 1.1, in which more words are booleans and more texts are numbers.
    #[test]
    fn strings_that_look_like_booleans_or_numbers_are_quoted() {
        let texts =
            ["on", "Yes", "n", "OFF", "1_000", "0x_ff", "-1_0.5", "true", "017", "quoted", "online", "a_b", "24h"];
        let value = json!({"on": texts, "script": "a: on\n- yes\n", "many": 1000, "is": true});
        let text = yaml([&value].into_iter()).unwrap();
        for plain in ["on", "Yes", "n", "OFF", "1_000", "0x_ff", "-1_0.5"] {
            assert!(text.contains(&format!("- '{plain}'\n")), "{plain}: {text}");
        }
        for same in
            ["'on':\n", "- online\n", "- a_b\n", "- 24h\n", "- quoted\n", "\n  a: on\n", "many: 1000\n", "is: true\n"]
        {
            assert!(text.contains(same), "{same:?}: {text}");
        }
        assert_eq!(serde_yaml_ng::from_str::<Value>(&text).unwrap(), value);
    }

    #[test]
    fn an_invalid_job_is_named_by_its_file_and_position() {
        for (text, words) in [
            (format!("{JOB}---\napiVersion: v1\nkind: Service\n"), "object 2: kind is \"Service\""),
            ("a: [".to_owned(), "neither YAML nor JSON"),
            (JOB.replace("type: single", "type: 1"), "object 1: not a TrainingJob"),
            ("- 1\n".to_owned(), "object 1"),
            ("".to_owned(), "the files contain no job"),
        ] {
            let error = format!("{:#}", read_text(&text).unwrap_err());
            assert!(error.contains(words), "{text}: {error}");
        }
        let error = format!("{:#}", read(&["/nonexistent/job.yaml".into()]).unwrap_err());
        assert!(error.starts_with("/nonexistent/job.yaml: "), "{error}");
    }
}
