//! `docs/CRDS.md` is generated from the definitions and from the lists of conditions. With `LARDER_WRITE_GOLDEN=1` it
//! is written instead of compared.

use std::fmt::Write;

use larder_api::training_job::conditions::{JobConditionKind, JobReason};
use larder_api::{
    CacheConditionKind, CacheReason, ClusterConditionKind, ClusterReason, ConditionKind, QuotaConditionKind,
    QuotaReason, Reason, definitions,
};
use serde_json::Value;

/// The order of the kinds on the page: the kinds that users write come first.
const KINDS: [&str; 8] =
    ["Dataset", "TrainingJob", "Queue", "JobType", "Cluster", "CacheQuota", "LarderSettings", "NodeCache"];

const BEGINNING: &str = "\
# Kubernetes objects

After this page you can look up every field of Larder's objects, its default, and every condition
and reason in their statuses.

All objects have the API version `larder.dev/v1alpha1`. `kubectl explain dset.spec` shows the same
descriptions on the command line. In field paths, `[]` stands for each item of a list and `*` for
each key of a map. This page is generated from the definitions.

";

/// A field of an object.
#[derive(Debug)]
struct Field {
    path: String,
    kind: String,
    default: String,
    meaning: String,
}

/// Adds the fields below `schema`, which is at `path`.
fn fields(schema: &Value, path: &str, to: &mut Vec<Field>) {
    let Some(properties) = schema["properties"].as_object() else { return };
    let required: Vec<&str> = schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
    for (name, field) in properties {
        let path = format!("{path}.{name}");
        let meaning =
            field["description"].as_str().unwrap_or_default().split_whitespace().collect::<Vec<_>>().join(" ");
        let default = default(field, &meaning, required.contains(&name.as_str()));
        let kind = kind(name, field);
        let is_kubernetes_own = ["`PodTemplateSpec`", "list of `Condition`"].contains(&kind.as_str());
        to.push(Field { path: path.clone(), kind, default, meaning });
        if !is_kubernetes_own {
            fields(field, &path, to);
            fields(&field["items"], &format!("{path}[]"), to);
            fields(&field["additionalProperties"], &format!("{path}.*"), to);
        }
    }
}

/// The type of a field in words.
fn kind(name: &str, field: &Value) -> String {
    if let Some(values) = field["enum"].as_array() {
        let values: Vec<_> = values.iter().filter_map(Value::as_str).map(|value| format!("`{value}`")).collect();
        return values.join(", ");
    }
    match (name, field["type"].as_str(), field["format"].as_str()) {
        ("template", ..) => "`PodTemplateSpec`".to_owned(),
        ("conditions", ..) => "list of `Condition`".to_owned(),
        (_, Some("array"), _) => format!("list of {}", several(&field["items"])),
        (_, Some("object"), _) if field["additionalProperties"].is_object() => {
            format!("map to {}", several(&field["additionalProperties"]))
        }
        (_, Some("string"), Some("date-time")) => "time".to_owned(),
        (_, Some(other), _) => other.to_owned(),
        (_, None, _) if field["x-kubernetes-int-or-string"] == true => "integer or string".to_owned(),
        (_, None, _) => panic!("{name} has no type: {field}"),
    }
}

/// The plural of a type in words.
fn several(field: &Value) -> String {
    let one = kind("", field);
    if one.ends_with('s') { one } else { one + "s" }
}

/// The default of a field: from the schema, or else from its description.
fn default(field: &Value, meaning: &str, is_required: bool) -> String {
    if is_required {
        return "required".to_owned();
    }
    match &field["default"] {
        Value::Null | Value::Object(_) => {}
        default => return format!("`{default}`"),
    }
    if field["type"] == "boolean" {
        return "`false`".to_owned();
    }
    in_words(meaning).unwrap_or_default()
}

/// The default in a description, such as `nr` in "`nr` by default" or in "`nr` (default)".
fn in_words(meaning: &str) -> Option<String> {
    if let Some((before, _)) = meaning.split_once(" (default)") {
        return before.rsplit('`').nth(1).map(|value| format!("`{value}`"));
    }
    if let Some((_, after)) = meaning.split_once("; by default ") {
        return after.split([',', ';', '.']).next().map(str::to_owned);
    }
    let (before, _) = meaning.split_once(" by default")?;
    let from = ["; ", ": ", ", ", ". ", "("].iter().filter_map(|mark| Some(before.rfind(mark)? + mark.len())).max()?;
    Some(before[from..].to_owned())
}

/// Text for a cell of a table.
fn cell(text: &str) -> String {
    text.replace('|', "\\|")
}

fn page() -> String {
    let definitions: Vec<Value> =
        definitions::all().iter().map(|definition| serde_json::to_value(definition).expect("JSON")).collect();
    let mut page = BEGINNING.to_owned();
    for kind in KINDS {
        let definition = definitions.iter().find(|one| one["spec"]["names"]["kind"] == kind).expect("a definition");
        let names = &definition["spec"]["names"];
        let schema = &definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"];
        let plural = names["plural"].as_str().expect("a plural");
        let of_kubectl: Vec<_> =
            names["shortNames"].as_array().into_iter().flatten().chain([&names["plural"]]).collect();
        let of_kubectl: Vec<_> =
            of_kubectl.into_iter().filter_map(Value::as_str).map(|name| format!("`kubectl get {name}`")).collect();
        let scope = if definition["spec"]["scope"] == "Namespaced" { "namespaced" } else { "cluster-wide" };
        let about = schema["description"].as_str().expect("a description");
        line(&mut page, &format!("## {kind}\n\n{}\n", wrapped(about)));
        line(&mut page, &format!("It is {scope}: {}.\n", of_kubectl.join(" or ")));
        let mut all = Vec::new();
        fields(schema, "", &mut all);
        let all: Vec<_> = all.iter().filter_map(|field| Some((field.path.strip_prefix('.')?, field))).collect();
        assert!(all.iter().any(|(path, _)| path.starts_with("spec.")), "{plural} has a spec");
        line(&mut page, &format!("### Spec of a {kind}\n\n| field | type | default | meaning |\n|---|---|---|---|"));
        for (path, field) in all.iter().filter(|(path, _)| path.starts_with("spec.")) {
            line(
                &mut page,
                &format!("| `{path}` | {} | {} | {} |", field.kind, cell(&field.default), cell(&field.meaning)),
            );
        }
        let status: Vec<_> = all.iter().filter(|(path, _)| path.starts_with("status.")).collect();
        line(&mut page, &format!("\n### Status of a {kind}\n\n| field | type | meaning |\n|---|---|---|"));
        for (path, field) in status {
            line(&mut page, &format!("| `{path}` | {} | {} |", field.kind, cell(&field.meaning)));
        }
        line(&mut page, "");
        match kind {
            "Dataset" => {
                let kinds = ConditionKind::ALL.iter().map(|kind| (kind.as_str(), kind.meaning()));
                let reasons = Reason::ALL.iter().map(|reason| {
                    (reason.as_str(), reason.conditions().iter().map(|kind| kind.as_str()).collect(), reason.meaning())
                });
                conditions(&mut page, kind, kinds, reasons);
            }
            "TrainingJob" => {
                let kinds = JobConditionKind::ALL.iter().map(|kind| (kind.as_str(), kind.meaning()));
                let reasons = JobReason::ALL.iter().map(|reason| {
                    (reason.as_str(), reason.conditions().iter().map(|kind| kind.as_str()).collect(), reason.meaning())
                });
                conditions(&mut page, kind, kinds, reasons);
            }
            "Cluster" => {
                let kinds = ClusterConditionKind::ALL.iter().map(|kind| (kind.as_str(), kind.meaning()));
                let reasons = ClusterReason::ALL.iter().map(|reason| {
                    (reason.as_str(), reason.conditions().iter().map(|kind| kind.as_str()).collect(), reason.meaning())
                });
                conditions(&mut page, kind, kinds, reasons);
            }
            "CacheQuota" => {
                let kinds = QuotaConditionKind::ALL.iter().map(|kind| (kind.as_str(), kind.meaning()));
                let reasons = QuotaReason::ALL.iter().map(|reason| {
                    (reason.as_str(), reason.conditions().iter().map(|kind| kind.as_str()).collect(), reason.meaning())
                });
                conditions(&mut page, kind, kinds, reasons);
            }
            "NodeCache" => {
                let kinds = CacheConditionKind::ALL.iter().map(|kind| (kind.as_str(), kind.meaning()));
                let reasons = CacheReason::ALL.iter().map(|reason| {
                    (reason.as_str(), reason.conditions().iter().map(|kind| kind.as_str()).collect(), reason.meaning())
                });
                conditions(&mut page, kind, kinds, reasons);
            }
            _ => {}
        }
    }
    format!("{}\n", page.trim_end())
}

/// The tables of the conditions of a kind and of their reasons.
fn conditions<'a>(
    page: &mut String,
    kind: &str,
    kinds: impl Iterator<Item = (&'a str, &'a str)>,
    reasons: impl Iterator<Item = (&'a str, Vec<&'a str>, &'a str)>,
) {
    line(page, &format!("### Conditions of a {kind}\n\n| condition | it is True if |\n|---|---|"));
    for (name, meaning) in kinds {
        line(page, &format!("| `{name}` | {} |", cell(meaning)));
    }
    line(
        page,
        &format!("\n### Reasons in the conditions of a {kind}\n\n| reason | condition | meaning |\n|---|---|---|"),
    );
    for (name, given_by, meaning) in reasons {
        let given_by: Vec<_> = given_by.iter().map(|name| format!("`{name}`")).collect();
        line(page, &format!("| `{name}` | {} | {} |", given_by.join(", "), cell(meaning)));
    }
    line(page, "");
}

fn line(page: &mut String, text: &str) {
    writeln!(page, "{text}").expect("a String takes everything");
}

/// The text in lines of at most 100 characters.
fn wrapped(text: &str) -> String {
    let mut lines = vec![String::new()];
    for word in text.split_whitespace() {
        let last = lines.last_mut().expect("a line");
        if last.is_empty() {
            last.push_str(word);
        } else if last.chars().count() + 1 + word.chars().count() <= 100 {
            *last += " ";
            *last += word;
        } else {
            lines.push(word.to_owned());
        }
    }
    lines.join("\n")
}

#[test]
fn the_page_of_fields_is_made_from_the_definitions() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/CRDS.md");
    let page = page();
    if std::env::var_os("LARDER_WRITE_GOLDEN").is_some() {
        std::fs::write(path, &page).expect("written");
    }
    let kept = std::fs::read_to_string(path).unwrap_or_default();
    assert!(kept == page, "docs/CRDS.md is stale: run this test with LARDER_WRITE_GOLDEN=1");
}

#[test]
fn every_field_has_a_meaning_for_people_and_a_default_where_that_speaks_of_one() {
    for definition in definitions::all() {
        let definition = serde_json::to_value(&definition).expect("JSON");
        let mut all = Vec::new();
        fields(&definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"], "", &mut all);
        assert!(all.len() > 5, "{all:?}");
        for field in all {
            assert!(!field.meaning.is_empty() || field.path.starts_with(".metadata"), "{field:?} has no description");
            // Rustdoc links are of no use to users.
            assert!(!field.meaning.contains("[`"), "{field:?} is for readers of the code");
            let says = field.meaning.contains("by default") || field.meaning.contains("(default)");
            assert!(!says || !field.default.is_empty(), "{field:?} has a default that is not found");
        }
    }
}

#[test]
fn a_default_is_found_in_the_words_of_a_description() {
    for (meaning, default) in [
        ("The policy once the cache is full; `nr` by default.", "`nr`"),
        ("Which nodes: `local` (default), `partitioned` or `replicated:N`.", "`local`"),
        ("Bytes on each node; by default all of it, or its share.", "all of it"),
        ("The size of /dev/shm: a percentage (50% by default), or `off`.", "50%"),
        ("The namespaces; `*` for all, none by default.", "none"),
        ("How long; 30s by default, and 5m at least.", "30s"),
    ] {
        assert_eq!(in_words(meaning).as_deref(), Some(default), "{meaning}");
    }
    assert_eq!(in_words("The bytes."), None);
}
