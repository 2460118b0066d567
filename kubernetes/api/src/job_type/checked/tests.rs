use serde_json::{Value, json};

use super::*;

/// A valid spec, with these fields replaced.
fn with(fields: Value) -> Value {
    let mut spec = json!({
        "roles": [{"name": "launcher", "required": true, "most": 1}, {"name": "worker"}],
        "service": {},
        "launcher": {"role": "launcher", "starts": ["worker"], "port": 7422},
        "success": {"roles": ["launcher"]},
    });
    spec.as_object_mut().expect("an object").extend(fields.as_object().expect("an object").clone());
    spec
}

fn checked(spec: Value) -> Result<CheckedType, InvalidField> {
    serde_json::from_value::<JobTypeSpec>(spec).expect("of the schema's form").check()
}

#[test]
fn what_is_left_out_has_its_default() {
    let got = checked(with(json!({}))).expect("valid");
    assert_eq!((got.scope, got.max_crashes), (RestartScope::Job, 3));
    assert_eq!((got.success.indexes, got.success.then), (Indexes::All, Outcome::Complete));
    assert_eq!(got.service, Some(ServiceRules { publish_not_ready: true }));
    let performance = &got.performance;
    assert!(performance.guaranteed && performance.whole_cpus && performance.hugepages);
    assert_eq!((performance.shared_memory, performance.cpus), (SharedMemory::Percent(50), None));
    assert_eq!(got.role("worker").map(|role| role.elastic), Some(false));
    let off = json!({"performance": {"guaranteed": false, "sharedMemory": "off", "memory": "2Gi", "cpus": 2}});
    let got = checked(with(off)).expect("valid").performance;
    assert!(!got.guaranteed && got.whole_cpus);
    assert_eq!((got.shared_memory, got.memory_bytes, got.cpus), (SharedMemory::Off, Some(2 << 30), Some(2)));
    let sized = checked(with(json!({"performance": {"sharedMemory": "8Gi"}}))).expect("valid");
    assert_eq!(sized.performance.shared_memory, SharedMemory::Bytes(8 << 30));
}

#[test]
fn every_mistake_is_named_by_its_field() {
    let role = |fields: Value| {
        let mut role = json!({"name": "launcher"});
        role.as_object_mut().expect("an object").extend(fields.as_object().expect("an object").clone());
        with(json!({"roles": [role, {"name": "worker"}]}))
    };
    let launcher = |fields: Value| {
        let mut launcher = json!({"role": "launcher", "starts": ["worker"], "port": 7422});
        launcher.as_object_mut().expect("an object").extend(fields.as_object().expect("an object").clone());
        with(json!({"launcher": launcher}))
    };
    for (field, spec) in [
        ("spec.roles", with(json!({"roles": []}))),
        ("spec.roles", with(json!({"roles": [{"name": "worker"}, {"name": "worker"}]}))),
        ("spec.roles[].name", with(json!({"roles": [{"name": "Worker"}]}))),
        ("spec.roles[].name", with(json!({"roles": [{"name": "a-name-of-16-let"}]}))),
        ("spec.roles[launcher].most", role(json!({"most": 0}))),
        ("spec.roles[launcher].ports", role(json!({"ports": [{"name": "a", "port": 1}, {"name": "a", "port": 2}]}))),
        ("spec.roles[launcher].template.spec.containers", role(json!({"template": {"spec": {"containers": []}}}))),
        ("spec.success.roles", with(json!({"success": {"roles": []}}))),
        ("spec.success.roles", with(json!({"success": {"roles": ["chief"]}}))),
        ("spec.environment[].roles", with(json!({"environment": [{"name": "A", "value": "", "roles": ["ps"]}]}))),
        ("spec.environment[].name", with(json!({"environment": [{"name": "1A", "value": ""}]}))),
        ("spec.environment[].name", with(json!({"environment": [{"name": "A-B", "value": ""}]}))),
        ("spec.files[].roles", with(json!({"files": [{"path": "/etc/a/b", "content": "", "roles": ["ps"]}]}))),
        ("spec.files[].path", with(json!({"files": [{"path": "/passwd", "content": ""}]}))),
        ("spec.files[].path", with(json!({"files": [{"path": "/etc/../b", "content": ""}]}))),
        ("spec.files[].path", with(json!({"files": [{"path": "etc/a", "content": ""}]}))),
        (
            "spec.files",
            with(json!({"files": [{"path": "/etc/a/b", "content": ""}, {"path": "/etc/a/b", "content": ""}]})),
        ),
        ("spec.launcher.role", launcher(json!({"role": "chief"}))),
        ("spec.launcher.starts", launcher(json!({"starts": ["ps"]}))),
        ("spec.launcher.starts", launcher(json!({"starts": []}))),
        ("spec.launcher.starts", launcher(json!({"starts": ["launcher"]}))),
        ("spec.launcher.port", launcher(json!({"port": 80}))),
        ("spec.service", with(json!({"service": null}))),
        ("spec.performance.sharedMemory", with(json!({"performance": {"sharedMemory": "0%"}}))),
        ("spec.performance.sharedMemory", with(json!({"performance": {"sharedMemory": "101%"}}))),
        ("spec.performance.sharedMemory", with(json!({"performance": {"sharedMemory": "much"}}))),
        ("spec.performance.memory", with(json!({"performance": {"memory": "0"}}))),
    ] {
        let error = checked(spec.clone()).expect_err(field);
        assert_eq!(error.field, field, "{spec}: {error}");
    }
}
