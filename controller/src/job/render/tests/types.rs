//! The types that Larder brings are valid, and one that renders nonsense is not.

use larder_controller_api::JobTypeSpec;
use serde_json::{Value, json};

use super::*;

#[test]
fn the_types_that_larder_brings_are_valid_and_all_deployed() {
    let deployed = std::fs::read_to_string(types_folder().join("kustomization.yaml")).expect("a kustomization");
    let deployed: Value = serde_yaml_ng::from_str(&deployed).expect("YAML");
    let mut deployed: Vec<_> = deployed["resources"].as_array().expect("a list").iter().map(Value::to_string).collect();
    deployed.sort();
    let mut files = BUILTIN.map(|name| format!("\"{name}.yaml\""));
    files.sort();
    assert_eq!(deployed, files);
    for name in BUILTIN {
        let kind = builtin(name);
        validate_as(name, &kind.spec).unwrap_or_else(|error| panic!("{name}: {error}"));
        assert!(kind.spec.description.is_some_and(|text| !text.is_empty()), "{name} says what it is for");
    }
}

fn with(fields: Value) -> JobTypeSpec {
    let base = json!({"roles": [{"name": "worker", "ports": [{"name": "p", "port": 2222}]}], "success": {"roles": ["worker"]}});
    serde_json::from_value(object(base, fields)).expect("of the schema's form")
}

fn variable(value: &str) -> JobTypeSpec {
    with(json!({"environment": [{"name": "A", "value": value}]}))
}

fn template_of(container: Value) -> JobTypeSpec {
    with(json!({"roles": [{"name": "worker", "template": template(container)}]}))
}

#[test]
fn a_type_that_renders_nonsense_names_the_field() {
    let when = |when: &str| with(json!({"environment": [{"name": "A", "value": "", "when": when}]}));
    let file = |content: &str| with(json!({"files": [{"path": "/etc/a/b", "content": content}]}));
    let value = "spec.environment[A].value";
    for (field, what, spec) in [
        (value, "cannot be rendered", variable("{{ hosst }}")),
        (value, "cannot be rendered", variable("{{ roles.chief.hosts }}")),
        (value, "cannot be rendered", variable("{{ hosts")),
        (value, "cannot be rendered", variable("{% for host in hosts %}")),
        (value, "cannot be rendered", variable("{{ hosts | sorted_by_size }}")),
        // There are fewer hosts in a smaller job.
        (value, "cannot be rendered", variable("{{ hosts[2] }}")),
        (
            value,
            "more than",
            variable("{% for a in range(10000) %}{% for b in range(10000) %}.{% endfor %}{% endfor %}"),
        ),
        (value, "is no JSON", variable("{\"a\": {{ hosts }}")),
        (value, "byte of 0", variable("{{ \"\\u0000\" }}")),
        (
            value,
            "twice",
            with(
                json!({"environment": [{"name": "A", "value": "1"}, {"name": "A", "value": "2", "when": "index == 0"}]}),
            ),
        ),
        ("spec.environment[A].when", "cannot be rendered", when("rank >")),
        ("spec.environment[A].when", "cannot be rendered", when("nobody.index == 1")),
        ("spec.files[/etc/a/b].content", "cannot be rendered", file("{{ index }}")),
        (
            "spec.roles[worker].template.spec.containers[0].args[1]",
            "cannot be rendered",
            template_of(json!({"args": ["a", "{{ portt }}"]})),
        ),
        (
            "spec.files",
            "two volumes",
            with(json!({
                "files": [{"path": "/data/b", "content": ""}],
                "roles": [{"name": "worker", "template": {"spec": {
                    "containers": [{"name": "main", "volumeMounts": [{"name": "a", "mountPath": "/data/"}]}]
                }}}],
            })),
        ),
    ] {
        let error = validate(&spec).expect_err(&format!("{field} {what}"));
        assert!(error.field == field && error.what.contains(what), "{field} {what}: {error}");
    }
    validate(&with(json!({}))).expect("valid without any template");
}

#[test]
fn what_only_some_jobs_lack_can_be_asked_for() {
    let spec = with(json!({
        "roles": [{"name": "chief", "most": 1}, {"name": "worker"}],
        "environment": [
            {"name": "CHIEF", "value": "{{ roles.chief.hosts[0] }}", "when": "roles.chief"},
            {"name": "FIRST", "value": "{{ (roles.chief or roles.worker).hosts[0] }}"},
        ],
        "success": {"roles": ["chief", "worker"]},
    }));
    validate(&spec).expect("valid");
}
