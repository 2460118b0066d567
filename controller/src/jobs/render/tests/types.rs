//! The built-in types are valid, and a type that renders nonsense is rejected.

use larder_api::JobTypeSpec;
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
        // A smaller sample job has fewer hosts.
        (value, "cannot be rendered", variable("{{ hosts[2] }}")),
        (
            value,
            "more than",
            variable("{% for a in range(10000) %}{% for b in range(10000) %}.{% endfor %}{% endfor %}"),
        ),
        (value, "is not valid JSON", variable("{\"a\": {{ hosts }}")),
        (value, "NUL byte", variable("{{ \"\\u0000\" }}")),
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
fn a_value_that_only_some_jobs_lack_can_be_asked_for() {
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

#[test]
fn no_template_takes_more_memory_than_is_counted() {
    let again = |set: &str| format!("{{% set a = 'a' %}}{}{{{{ a }}}}", set.repeat(60));
    for (what, text) in [
        ("`~` is not supported", again("{% set a = a ~ a %}")),
        ("`+` adds numbers", again("{% set a = a + a %}")),
        ("`*` is for numbers", "{{ 'a' * 99999999 }}".into()),
        ("`*` is for numbers", "{{ hosts[0] * size }}".into()),
        ("of constants", again("{% set a = [a, a] | join %}")),
        ("of constants", again("{% set a = {1: a, 2: a} | tojson %}")),
        ("`set` without `=` is not supported", again("{% set a %}{{ a }}{{ a }}{% endset %}")),
        ("no `filter` block", "{% filter join(hosts[0]) %}{{ hosts }}{% endfilter %}".into()),
        ("`recursive` is not supported", "{% for a in hosts recursive %}{{ loop(hosts) }}{% endfor %}".into()),
        ("slices are not supported", "{{ hosts[1:] }}".into()),
        ("no function but", "{% set all = namespace(a='a') %}".into()),
        ("cannot be rendered", "{{ hosts[0] | replace('a', hosts[0]) }}".into()),
        ("texts of more than", format!("{{{{ range(100000) | join('{}') }}}}", "a".repeat(100))),
        ("texts of more than", format!("{{% for a in range(100000) %}}{}{{% endfor %}}", "a".repeat(100))),
        ("texts of more than", format!("{{% set a = range(90000) | tojson %}}{}", "{{ a | tojson }}".repeat(20))),
    ] {
        let error = validate(&variable(&text)).expect_err(what);
        assert!(error.field == "spec.environment[A].value" && error.what.contains(what), "{what}: {error}");
    }
    let when = |when: &str| with(json!({"environment": [{"name": "A", "value": "", "when": when}]}));
    assert!(validate(&when("'a' * 99999999")).is_err() && validate(&when("size * 2 - 1 in [1, 3]")).is_err());
    validate(&when("(size | int) * 2 - 1 in [1, 3]")).expect("valid");
    validate(&variable("{{ index + 1 }} {{ 1 + size - 2 ** 2 }} {{ 2 * (size + 1) }} {{ hosts | length - 1 }}"))
        .expect("valid");
}

// SEMANTICS: J7
#[test]
fn no_template_is_deeper_than_a_stack() {
    let of = |count: usize| {
        [
            format!("{{{{ 1{} }}}}", "-1".repeat(count)),
            format!("{{{{ 1{} }}}}", " and 1".repeat(count)),
            format!("{{{{ 1{} }}}}", " == 1".repeat(count)),
            format!("{{{{ {}1 }}}}", "not ".repeat(count)),
            format!("{{{{ {}1 }}}}", "-".repeat(count)),
            format!("{{{{ job{} }}}}", ".name".repeat(count)),
            format!("{{{{ job{} }}}}", "[0]".repeat(count)),
            format!("{{{{ job{} }}}}", "|length".repeat(count)),
            format!("{{{{ 1{} }}}}", " is defined".repeat(count)),
            format!("{{{{ {}1{} }}}}", "(".repeat(count), ")".repeat(count)),
            format!("{{{{ {}1{} }}}}", "[".repeat(count), "]".repeat(count)),
            format!("{{{{ {}1{} }}}}", "{1:".repeat(count), "}".repeat(count)),
            format!("{{{{ {}1 }}}}", "1 if 1 else ".repeat(count)),
            format!("{{% if 1 %}}{}{{% endif %}}", "{% elif 1 %}".repeat(count)),
            format!("{}{}", "{% if 1 %}".repeat(count), "{% endif %}".repeat(count)),
            format!("{}{}", "{% for a in hosts %}".repeat(count), "{% endfor %}".repeat(count)),
            format!("{}{}", "{% with a = 1 %}".repeat(count), "{% endwith %}".repeat(count)),
        ]
    };
    let validate = |text: String| {
        // The stack size of the threads that parse JobTypes.
        let thread = std::thread::Builder::new().stack_size(2 << 20);
        let begun = thread.spawn(move || validate(&variable(&text)).map(|_| ()).map_err(|error| error.what));
        begun.expect("a thread").join().expect("no panic")
    };
    for text in [80, 98, 120, 250].into_iter().flat_map(of) {
        // Any result is fine, as long as nothing panics or overflows.
        let _ = validate(text);
    }
    for text in of(32_000).into_iter().chain(["{% elif 1 %}".repeat(32_000)]) {
        if text.len() > 32_000 {
            let what = validate(text).expect_err("too deep");
            let whys = ["an expression of more than 256 words", "100 `elif`", "recursion"];
            assert!(whys.iter().any(|why| what.contains(why)), "{what}");
        }
    }
    let when = |when: &str| with(json!({"environment": [{"name": "A", "value": "", "when": when}]}));
    let error = super::validate(&when(&"not ".repeat(32_000))).expect_err("too deep");
    assert!(error.what.contains("256 words"), "{error}");
    validate(format!(
        "{{% if 1 == 2 %}}{}{{% endif %}}{{{{ 1{} }}}}",
        "{% elif 1 == 1 %}".repeat(100),
        " + 1".repeat(120)
    ))
    .expect("not too deep");
}

// SEMANTICS: J7
#[test]
fn no_type_takes_more_steps_than_are_counted() {
    let all = "{% for a in range(1000) %}{{ -1 in range(100000) }}{% endfor %}";
    let error = validate(&variable(all)).expect_err("too many");
    assert!(error.what.contains("more than 1000000 steps"), "{error}");
    let one = |at: usize| json!({"name": format!("A{at}"), "value": "{% for a in range(100000) %}{% endfor %}"});
    let variables: Vec<Value> = (0..64).map(one).collect();
    let error = validate(&with(json!({"environment": variables}))).expect_err("too many");
    assert!(error.what.contains("more than 20000000 steps"), "{error}");
    validate(&variable("{% for a in range(1000) %}{{ loop.length }}{{ a in range(9, 0, -1) }}{% endfor %}"))
        .expect("not too many");
}

#[test]
fn a_job_of_more_pods_than_its_type_can_serve_is_too_large() {
    let fits = |kind: &str, counts: &[(&str, u32, u32, u32)]| fits(&Sample::of(kind, roles(counts)).rendered());
    fits("tensorflow", &[("worker", 1_000, 1_000, 1_000)]).expect("not too large");
    fits("tensorflow", &[("worker", 9_000, 8_000, 9_000)]).expect("elastic workers know one pod only");
    let error = fits("tensorflow", &[("worker", 9_000, 9_000, 9_000)]).expect_err("too large");
    assert!(error.field == "the variable TF_CONFIG" && error.what.contains("131072 bytes"), "{error}");
    fits("mpi", &[("launcher", 1, 1, 1), ("worker", 2_000, 2_000, 2_000)]).expect("not too large");
    let error = fits("mpi", &[("launcher", 1, 1, 1), ("worker", 9_000, 9_000, 9_000)]).expect_err("too large");
    assert!(error.field == "spec.files" && error.what.contains("the API server accepts at most 1048576"), "{error}");
    let large = json!({"args": ["a".repeat(1 << 20)]});
    let job = Sample::of("single", json!({"roles": [{"name": "worker", "template": template(large)}]}));
    assert_eq!(super::fits(&job.rendered()).expect_err("too large").field, "a pod");
}
