//! Reads bytes as what the DRA part of `larder-devices` decodes: the CDI file of a claim, which an earlier process wrote, and a
//! ResourceClaim of the API server.
//!
//! Invariant under test: no panic; a file that is accepted names nothing that the runtime would not find in it, and a claim that is
//! accepted is found again in its file.
#![no_main]
#![expect(dead_code, reason = "the target calls a part of what it includes")]

// Included rather than linked: the crate would compile kube and NVML, with the fuzzer's flags.
#[path = "../../../device-plugins/src"]
mod devices {
    pub(crate) mod names;
    pub(crate) mod cdi {
        mod decode;
        pub(crate) use decode::{Format, names};
    }
    pub(crate) mod dra {
        pub(crate) mod claim;
        pub(crate) mod claim_file;
    }
}

use std::collections::BTreeMap;

use devices::cdi::{self, Format};
use devices::dra::claim::{Allocated, Uid, allocated};
use devices::dra::claim_file::{ClaimFile, Prepared, PreparedDevice, WHOLE, qualified};
use devices::names;
use k8s_openapi::api::resource::v1::{DeviceAllocationResult, ResourceClaim};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    if let Some(prepared) = ClaimFile::decode(data) {
        read_back(&prepared, &cdi::names(data, Format::Json));
    }
    if let Ok(claim) = serde_json::from_slice::<ResourceClaim>(data) {
        given(&claim);
    }
});

fn read_back(prepared: &Prepared, found: &[String]) {
    let own = |name: &&String| name.starts_with(&qualified(""));
    let named: Vec<&String> = prepared.devices.iter().flat_map(|device| &device.cdi).filter(own).collect();
    assert!(named.iter().all(|name| found.contains(name)));
    assert!(prepared.devices.iter().all(|device| device.cdi.len() == 2 && device.cdi[1].starts_with(&qualified(""))));
    written(prepared, named.into_iter());
}

/// What is written of it reads as it was.
fn written<'n>(prepared: &Prepared, named: impl Iterator<Item = &'n String>) {
    let environment = |name: &String| (name[qualified("").len()..].to_owned(), vec!["LARDER_CLAIM=u1".to_owned()]);
    let file = ClaimFile::new(prepared, named.map(environment).collect::<BTreeMap<_, _>>());
    assert_eq!(ClaimFile::decode(&file.encode().expect("it is text")).as_ref(), Some(prepared));
}

fn given(claim: &ResourceClaim) {
    let uid = claim.metadata.uid.as_deref().and_then(Uid::new);
    let Some(uid) = uid.or_else(|| Uid::new("u1")) else { return };
    let pool = first_pool(claim).unwrap_or_default();
    let Ok(allocated) = allocated(claim, &uid, pool) else { return };
    assert!(!allocated.is_empty() && !has_parameters(claim));
    // A claim with a device that is not offered is refused. The names of those that are offered are labels.
    let marks = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    let is_label = |name: &str| !name.is_empty() && !name.ends_with('-') && name.bytes().all(marks);
    if !allocated.iter().all(|it| is_label(&it.device)) {
        return;
    }
    let device = |it: &Allocated| {
        assert!(it.request != WHOLE && (1..64).contains(&it.request.len()) && !it.request.contains(['/', '.', '=']));
        let name = |what: &str, of: &str| qualified(&format!("{}.{what}.{of}", uid.as_str()));
        let cdi = vec![name("device", &it.device), name("request", &it.request)];
        let Allocated { request, device, share, admin } = it.clone();
        PreparedDevice { request, device, share, admin, cdi }
    };
    let prepared = Prepared { claim: "team/c".to_owned(), devices: allocated.iter().map(device).collect() };
    assert!(prepared.is_of(&allocated));
    written(&prepared, prepared.devices.iter().flat_map(|device| &device.cdi));
}

fn first_pool(claim: &ResourceClaim) -> Option<&str> {
    let results = devices_of(claim)?.results.as_ref()?;
    Some(&results.iter().find(|result| result.driver == names::DRIVER)?.pool)
}

fn has_parameters(claim: &ResourceClaim) -> bool {
    let all = devices_of(claim).and_then(|devices| devices.config.as_ref()).into_iter().flatten();
    all.flat_map(|config| &config.opaque).any(|parameters| parameters.driver == names::DRIVER)
}

fn devices_of(claim: &ResourceClaim) -> Option<&DeviceAllocationResult> {
    claim.status.as_ref()?.allocation.as_ref()?.devices.as_ref()
}
