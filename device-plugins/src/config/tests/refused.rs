//! What is refused, with the line.

use crate::config::Config;

#[track_caller]
fn is_refused(text: &str, line: usize, words: &str) {
    let error = Config::parse("devices.yaml", text).expect_err(text).to_string();
    assert!(error.starts_with(&format!("devices.yaml, line {line}: ")), "{text}\n{error}");
    assert!(error.contains(words), "{text}\n{error}");
}

/// Refusals of a resource, whose text begins on line 4.
#[track_caller]
fn resource_is_refused(text: &str, line: usize, words: &str) {
    let indented = text.replace('\n', "\n  ");
    is_refused(&format!("resources:\n- name: a/sound\n  kind: gpu\n- {indented}\n"), line, words);
}

// SEMANTICS: D1
#[test]
fn unknown_keys() {
    is_refused("resources: []\nresource: []\n", 2, "unknown field `resource`");
    is_refused(
        "resources:\n- {name: a/b, kind: gpu}\nhealth:\n  portUp: 1s\n  portsUp: 1s\n",
        5,
        "unknown field `portsUp`",
    );
    resource_is_refused("name: a/b\nkind: gpu\nshares: 2", 6, "unknown field `shares`");
    resource_is_refused("name: a/b\nkind: gpus", 5, "unknown variant `gpus`, expected one of gpu, mig, rdma, rail");
    resource_is_refused(
        "name: a/b\nkind: rdma\nselect:\n  vendors: [15b3]\n  vendor: 15b3",
        8,
        "unknown field `vendor`",
    );
    resource_is_refused(
        "name: a/b\nkind: rdma\nselect:\n  deviceIds: ['1021']",
        7,
        "expected one of vendors, deviceIDs",
    );
    resource_is_refused("name: a/b\nkind: rdma\nlimits:\n  hcaHandle: 2", 7, "unknown field `hcaHandle`");
    resource_is_refused("name: a/b\nkind: gpu\nmode: driver", 6, "unknown variant `driver`");
    resource_is_refused("name: a/b\nname: a/c\nkind: gpu", 4, "duplicate field `name`");
    resource_is_refused("name: a/b", 4, "missing field `kind`");
    resource_is_refused("a/b", 4, "a resource: a mapping with `name` and `kind`");
}

#[test]
fn files_without_resources() {
    is_refused("", 1, "the file is empty: write `resources`");
    is_refused("# resources:\n", 2, "the file is empty: write `resources`");
    is_refused("[]", 1, "a mapping with the key `resources`");
    is_refused("health: {}\n", 1, "missing field `resources`");
    is_refused("\nresources: []\n", 2, "resources is empty: list the resources");
    is_refused("resources:\n- {name: a/b, kind: gpu\n", 2, "unclosed bracket '{'");
    is_refused("resources:\n- {name: a/b, kind: gpu}\n---\nhealth: {}\n", 4, "a second YAML document begins here");
    let many: String = (0..65).map(|nth| format!("- {{name: a/b{nth}, kind: gpu}}\n")).collect();
    is_refused(&format!("resources:\n{many}"), 66, "a node offers at most 64 resources");
}

#[test]
fn names() {
    for name in ["gpu", "kubernetes.io/gpu", "requests.a/b", "A.b/c", "a/"] {
        resource_is_refused(
            &format!("kind: gpu\nname: {name}"),
            5,
            &format!("`{name}` is not a resource name: write a domain"),
        );
    }
    resource_is_refused("name: a/sound\nkind: mig", 4, "a/sound is also the name of the resource on line 2: a name");
    resource_is_refused(
        "name: a/sound\nkind: gpu\nmode: dra",
        4,
        "resource on line 2, in both modes: a name belongs to one resource",
    );
    let long = format!("a.{}/{}", "b".repeat(40), "c".repeat(22));
    resource_is_refused(
        &format!("name: {long}\nkind: gpu\nmode: dra"),
        4,
        "with `mode: dra` a name has at most 64 characters",
    );
}

#[test]
fn shares() {
    for share in ["0", "257", "-1", "1.5", "many", "99999999999999999999"] {
        resource_is_refused(&format!("name: a/b\nkind: gpu\nshare: {share}"), 6, &format!("share of {share}: "));
    }
    resource_is_refused(
        "name: a/b\nkind: rail\nshare: 1",
        6,
        "a rail is a GPU and an HCA for one container alone: remove `share`",
    );
    for text in [
        "name: a/b\nkind: gpu\ngive: all",
        "name: a/b\nkind: rail\ngive: all",
        "name: a/b\nkind: rdma\ngive: all\nmode: dra",
    ] {
        resource_is_refused(text, 6, "it needs `kind: rdma` and `mode: plugin`");
    }
    resource_is_refused("name: a/b\nkind: mig\nmad: true", 6, "`mad` is for HCAs: remove it here");
}

#[test]
fn selectors() {
    resource_is_refused(
        "name: a/b\nkind: rdma\nselect:\n  vendors: [15b3]\n  drivers: []",
        8,
        "`drivers` is empty and would select nothing",
    );
    resource_is_refused(
        "name: a/b\nkind: rdma\nselect:\n  models: [H100]",
        7,
        "`models` selects GPUs, which this resource does not have",
    );
    resource_is_refused(
        "name: a/b\nkind: gpu\nselect:\n  vendors: [10de]",
        7,
        "`vendors` selects HCAs, which this resource does not have",
    );
    for (selector, item, words) in [
        ("vendors", "Mellanox", "`Mellanox` is not valid here: write four hexadecimal digits"),
        ("deviceIDs", "'0x10211'", "`0x10211` is not valid here"),
        ("linkTypes", "Unknown", "write InfiniBand or Ethernet"),
        ("ifNames", "''", "`` is not valid here: write a name"),
        ("uuids", "GPU-1", "write the node GUID of an HCA"),
    ] {
        resource_is_refused(&format!("name: a/b\nkind: rdma\nselect:\n  {selector}:\n  - {item}"), 8, words);
    }
    resource_is_refused("name: a/b\nkind: gpu\nselect:\n  uuids: [GPU-1,\n    MIG-1]", 8, "write the UUID of a GPU");
    resource_is_refused(
        "name: a/b\nkind: mig\nselect:\n  uuids: ['0002:c903:00a1:b2c4']",
        7,
        "write the UUID of a slice",
    );
    resource_is_refused("name: a/b\nkind: rail\nselect:\n  uuids: [MIG-1]", 7, "or the node GUID of an HCA");
}

#[test]
fn limits() {
    resource_is_refused("name: a/b\nkind: gpu\nlimits: {memlock: 1GiB}", 6, "limits are for containers with HCAs");
    resource_is_refused("name: a/b\nkind: rdma\nlimits: {}", 6, "limits limit nothing");
    resource_is_refused("name: a/b\nkind: rdma\nlimits:\n  required: true", 7, "limits limit nothing");
    // The kernel takes the greatest number for `max`.
    for number in ["0", "unlimited", "max", "2147483647", "-1"] {
        resource_is_refused(
            &format!("name: a/b\nkind: rail\nlimits:\n  memlock: 1GiB\n  hcaHandles: {number}"),
            8,
            &format!("hcaHandles of {number}: it is always a limit, and never 0"),
        );
        resource_is_refused(&format!("name: a/b\nkind: rdma\nlimits:\n  hcaObjects: {number}"), 7, "hcaObjects of");
    }
    resource_is_refused("name: a/b\nkind: rdma\nlimits:\n  hcaHandles: 1\n  memlock: 0", 8, "memlock of 0");
    resource_is_refused("name: a/b\nkind: rdma\nlimits:\n  memlock: 1XB", 7, "`1XB` is not a size");
}

#[test]
fn health() {
    let health = |text: &str| format!("resources:\n- {{name: a/b, kind: gpu}}\nhealth:\n  gpuQuiet: 1m\n{text}\n");
    is_refused(&health("  portDown: soon"), 5, "portDown: `soon` is not a time");
    is_refused(&health("  portUp: 0s"), 5, "portUp: `0s` is not a time");
    is_refused(&health("  nvmlUnknown: 8d"), 5, "nvmlUnknown: `8d` is too long; write at most 7d");
    is_refused(
        &health("  xids:\n    13: ignore\n    31: reboot"),
        7,
        "unknown variant `reboot`, expected one of ignore, watch, restartWorker, drainGpu, drainNode",
    );
    is_refused(&health("  xids:\n    13: ignore\n    13: watch"), 6, "Xid 13 is listed twice");
    is_refused(&health("  xids: [13]"), 5, "a mapping of Xids to actions");
    is_refused(&health("  xids:\n    thirteen: ignore"), 6, "`thirteen` is not the number of an Xid");
}

#[test]
fn files_of_mellanoxs_plugin() {
    let entry = |text: &str| {
        format!(
            "{{\n\"configList\": [\n{{\"resourceName\": \"a\", \"rdmaHcaMax\": 1, \"devices\": [\"ib0\"]}},\n{text}]}}"
        )
    };
    for (text, line, words) in [
        ("{\"configList\": []}", 1, "configList is empty"),
        ("{\"configList\": [],\n\"configs\": []}", 2, "unknown field `configs`"),
        ("{\"configList\": [],\n\"periodicUpdateInterval\": -1}", 2, "periodicUpdateInterval is a number of seconds"),
        ("{\"configList\": [\n", 1, "unclosed bracket '['"),
    ] {
        is_refused(text, line, words);
    }
    for (text, line, words) in [
        (
            "{\"resourceName\": \"a\", \"rdmaHcaMax\": 1, \"devices\": [\"ib1\"]}",
            4,
            "rdma/a is also the name of the resource on line 3",
        ),
        ("{\"resourceName\": \"b\",\n\"rdmaHcaMax\": 0, \"devices\": [\"ib1\"]}", 5, "rdmaHcaMax of 0"),
        ("{\"resourceName\": \"b\",\n\"rdmaHcaMax\": 4097, \"devices\": [\"ib1\"]}", 5, "write 1 to 4096"),
        ("{\"resourceName\": \"b\",\n\"devices\": [\"ib1\"]}", 4, "missing field `rdmaHcaMax`"),
        ("{\"resourceName\": \"b\", \"rdmaHcaMax\": 1}", 4, "rdma/b selects no devices: write `selectors`"),
        ("{\"resourceName\": \"b\", \"rdmaHcaMax\": 1, \"selectors\": {\"vendors\": []}}", 4, "selects no devices"),
        (
            "{\"rdmaHcaMax\": 1, \"devices\": [\"ib1\"],\n\"resourceName\": \"b b\"}",
            5,
            "`rdma/b b` is not a resource name",
        ),
        (
            "{\"resourceName\": \"b\", \"rdmaHcaMax\": 1,\n\"selectors\":\n{\"ifName\": []}}",
            6,
            "unknown field `ifName`",
        ),
        (
            "{\"resourceName\": \"b\", \"rdmaHcaMax\": 1, \"selectors\": {\"vendors\": [\"15b3\"]},\n\"devices\": [\"ib1\"]}",
            5,
            "has `selectors` and `devices`",
        ),
    ] {
        is_refused(&entry(text), line, words);
    }
}
