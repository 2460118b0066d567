use serde_json::json;

use super::super::samples::claim;
use super::*;

fn of(claim: serde_json::Value) -> Result<Vec<String>, String> {
    let claim: ResourceClaim = serde_json::from_value(claim).unwrap();
    let allocated = allocated(&claim, &Uid::new("u1").unwrap(), "n1").map_err(|refusal| refusal.to_string())?;
    Ok(allocated.into_iter().map(|it| format!("{} {} {:?}", it.request, it.device, it.share)).collect())
}

#[test]
fn devices_of_other_drivers_in_a_claim_are_ignored() {
    let mut mixed = claim("u1", &[("gpu", "gpu-0"), ("net", "eth0"), ("hca/fast", "hca-0")]);
    let results = &mut mixed["status"]["allocation"]["devices"]["results"];
    results[1]["driver"] = json!("net.example.com");
    results[1]["pool"] = json!("other");
    results[2]["shareID"] = json!("s1");
    assert_eq!(of(mixed), Ok(vec!["gpu gpu-0 None".to_owned(), "hca hca-0 Some(\"s1\")".to_owned()]));
}

#[test]
fn a_claim_that_differs_from_the_kubelets_request_is_refused() {
    let with = |path: &str, value: serde_json::Value| {
        let mut claim = claim("u1", &[("gpu", "gpu-0")]);
        *claim.pointer_mut(path).unwrap() = value;
        of(claim).unwrap_err()
    };
    let result = "/status/allocation/devices/results/0";
    assert_eq!(with("/metadata/uid", json!("u2")), "the claim was deleted and created again as \"u2\"");
    let nothing = "no device of devices.larder.dev is allocated to the claim";
    assert_eq!(with("/status", json!({})), nothing);
    assert_eq!(with("/status/allocation", json!({})), nothing);
    assert_eq!(with("/status/allocation/devices/results", json!([])), nothing);
    assert_eq!(with(&format!("{result}/driver"), json!("x.dev")), nothing);
    let elsewhere = with(&format!("{result}/pool"), json!("n2"));
    assert_eq!(elsewhere, "device gpu-0 of pool n2 is not on this node, n1");
    for request in ["", "../x", "a b", "A", "a-", "*", "/x", &"a".repeat(64)] {
        let why = with(&format!("{result}/request"), json!(request));
        assert_eq!(why, format!("{request:?} is not a request name"));
    }
}

#[test]
fn parameters_for_this_driver_are_refused_and_others_ignored() {
    let with = |config: serde_json::Value| {
        let mut claim = claim("u1", &[("gpu", "gpu-0")]);
        claim["status"]["allocation"]["devices"]["config"] = config;
        of(claim)
    };
    let config = |source: &str, driver: &str| json!({"requests": ["gpu"], "source": source, "opaque": {"driver": driver, "parameters": {}}});
    let [others, ours] = ["net.example.com", "devices.larder.dev"].map(|driver| config("FromClaim", driver));
    let sound = Ok(vec!["gpu gpu-0 None".to_owned()]);
    for none_of_ours in [json!(null), json!([]), json!([others]), json!([{"source": "FromClaim"}])] {
        assert_eq!(with(none_of_ours), sound);
    }
    let refused = |of: &str| {
        let remove = format!("remove them from the `config` of the {of} and create the claim again");
        Err(format!("devices.larder.dev takes no parameters: {remove}"))
    };
    assert_eq!(with(json!([others, ours])), refused("claim"));
    assert_eq!(with(json!([config("FromClass", "devices.larder.dev")])), refused("DeviceClass"));
}

#[test]
fn a_claim_with_everything_that_it_may_have_is_read() {
    let golden = include_str!("../../../golden/claim.dra");
    let claim: ResourceClaim = serde_json::from_str(golden).unwrap();
    let uid = Uid::new(claim.metadata.uid.as_deref().unwrap()).unwrap();
    let allocated = allocated(&claim, &uid, "n1").unwrap();
    let shown: Vec<(&str, &str, bool, bool)> =
        allocated.iter().map(|it| (&*it.request, &*it.device, it.share.is_some(), it.admin)).collect();
    let expected =
        [("gpu", "gpu-0", false, false), ("hca", "hca-0000-20-00-0", true, false), ("look", "gpu-1", false, true)];
    assert_eq!(shown, expected);
}

#[test]
fn a_uid_is_fit_for_a_file_name() {
    for sound in ["3b2e8a0c-0000-4000-8000-000000000001", "a", &"a".repeat(64)] {
        assert_eq!(Uid::new(sound).map(|uid| uid.as_str().to_owned()).as_deref(), Some(sound));
    }
    for odd in ["", "..", "../x", "a/b", "a.b", "-a", "a-", "a b", "ä", "a\0", &"a".repeat(65)] {
        assert_eq!(Uid::new(odd), None, "{odd}");
    }
}
