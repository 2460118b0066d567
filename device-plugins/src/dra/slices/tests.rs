use super::*;

fn owner() -> Owner {
    Owner { name: "n1".into(), uid: "u1".into() }
}

fn devices(count: usize) -> Vec<Device> {
    (0..count).map(|number| Device { name: format!("d{number:03}"), ..Device::default() }).collect()
}

/// The slices in the API server after these writes.
fn after(found: &[ResourceSlice], writes: Vec<Write>) -> Vec<ResourceSlice> {
    let mut slices: BTreeMap<String, ResourceSlice> =
        found.iter().map(|slice| (slice.metadata.name.clone().unwrap(), slice.clone())).collect();
    for write in writes {
        match write {
            Write::Create(mut slice) => {
                slice.metadata.resource_version = Some("1".into());
                assert_eq!(slices.insert(slice.metadata.name.clone().unwrap(), slice), None);
            }
            Write::Replace(slice) => {
                let before = slices.insert(slice.metadata.name.clone().unwrap(), slice.clone()).unwrap();
                assert_eq!(before.metadata.resource_version, slice.metadata.resource_version);
            }
            Write::Delete(name, _) => assert!(slices.remove(&name).is_some()),
        }
    }
    slices.into_values().collect()
}

fn shown(slices: &[ResourceSlice]) -> Vec<String> {
    let shown = |slice: &ResourceSlice| {
        let (spec, pool) = (&slice.spec, &slice.spec.pool);
        assert_eq!((&*spec.driver, spec.node_name.as_deref(), &*pool.name), (DRIVER, Some("n1"), "n1"));
        assert_eq!(slice.metadata.owner_references.as_ref().unwrap()[0].uid, "u1");
        let count = spec.devices.as_ref().map_or(0, Vec::len);
        let name = slice.metadata.name.as_deref().unwrap();
        format!("{name}: {count}, generation {} of {}", pool.generation, pool.resource_slice_count)
    };
    slices.iter().map(shown).collect()
}

#[test]
fn unchanged_slices_are_not_written_and_changed_ones_get_a_new_generation() {
    let mut there = after(&[], writes(&owner(), &devices(64), &[]));
    assert_eq!(shown(&there), ["n1-devices.larder.dev-0: 64, generation 1 of 1"]);
    assert_eq!(writes(&owner(), &devices(64), &there), []);
    there = after(&there, writes(&owner(), &devices(65), &there));
    assert_eq!(
        shown(&there),
        ["n1-devices.larder.dev-0: 64, generation 2 of 2", "n1-devices.larder.dev-1: 1, generation 2 of 2"]
    );
    assert_eq!(writes(&owner(), &devices(65), &there), []);
    // Another client changed or removed a slice.
    there[1].spec.devices = None;
    there = after(&there, writes(&owner(), &devices(65), &there));
    assert_eq!(there.iter().map(|slice| slice.spec.pool.generation).collect::<Vec<_>>(), [3, 3]);
    there.remove(0);
    there = after(&there, writes(&owner(), &devices(65), &there));
    assert_eq!(there.iter().map(|slice| slice.spec.pool.generation).collect::<Vec<_>>(), [4, 4]);
    there = after(&there, writes(&owner(), &devices(1), &there));
    assert_eq!(shown(&there), ["n1-devices.larder.dev-0: 1, generation 5 of 1"]);
    assert_eq!(after(&there, writes(&owner(), &[], &there)), []);
}

#[test]
fn a_slice_of_an_earlier_name_goes_after_the_new_one_is_there() {
    let mut old = after(&[], writes(&owner(), &devices(2), &[]));
    old[0].metadata.name = Some("n1-abcde".into());
    old[0].metadata.uid = Some("s1".into());
    let writes = writes(&owner(), &devices(2), &old);
    assert!(
        matches!(&writes[..], [Write::Create(_), Write::Delete(name, Some(uid))] if name == "n1-abcde" && uid == "s1")
    );
}
