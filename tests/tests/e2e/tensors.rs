//! Models that programs read through a mapping: what comes from the origin for which readers.
#![expect(unsafe_code, reason = "a mapping of a file")]

use std::fs::File;
use std::ops::Range;

use larder_e2e::{Lab, Mount};
use memmap2::Mmap;

const MIB: u64 = 1 << 20;
const PAGE: u64 = 4096;

const NAME: &str = "model.safetensors";
const LAYERS: u64 = 8;
const WEIGHT: u64 = 32 * MIB;
const NORM: u64 = 8 << 10;

/// A byte of the file behind the header.
fn byte_of(at: u64) -> u8 {
    (at / PAGE % 251) as u8
}

/// A model of 256 MiB at the origin: its layers, each with the bytes of its small and of its large tensor.
struct Model {
    lab: Lab,
    layers: Vec<[Range<u64>; 2]>,
    size: u64,
}

impl Model {
    fn new() -> Self {
        let data: Vec<[Range<u64>; 2]> = (0..LAYERS)
            .map(|layer| {
                let begin = layer * (NORM + WEIGHT);
                [begin..begin + NORM, begin + NORM..begin + NORM + WEIGHT]
            })
            .collect();
        let entry = |name: &str, layer: usize, Range { start, end }: &Range<u64>| {
            let (shape, offsets) = (end - start, format!("[{start},{end}]"));
            format!(r#""layers.{layer}.{name}":{{"dtype":"U8","shape":[{shape}],"data_offsets":{offsets}}}"#)
        };
        let entries: Vec<String> = data
            .iter()
            .enumerate()
            .flat_map(|(layer, [norm, weight])| [entry("norm", layer, norm), entry("mlp", layer, weight)])
            .collect();
        let json = format!("{{{}}}", entries.join(","));
        let mut bytes = [&(json.len() as u64).to_le_bytes()[..], json.as_bytes()].concat();
        let begin = bytes.len() as u64;
        let size = begin + LAYERS * (NORM + WEIGHT);
        bytes.reserve((size - begin) as usize);
        while (bytes.len() as u64) < size {
            let at = bytes.len() as u64;
            let end = ((at / PAGE + 1) * PAGE).min(size);
            bytes.resize(end as usize, byte_of(at));
        }
        let lab = Lab::new();
        lab.put(NAME, bytes);
        let layers = data.into_iter().map(|layer| layer.map(|range| begin + range.start..begin + range.end)).collect();
        Self { lab, layers, size }
    }

    /// Maps the model in a new mount, and reads its header.
    fn open(&self) -> (Mount, Mmap) {
        let mount = self.lab.mount("m", &self.lab.url(), &[]);
        self.lab.server.reset_counters();
        let file = File::open(mount.path(NAME)).unwrap();
        // SAFETY: the mount is read-only and its files never change, so nothing alters or truncates what is mapped.
        let map = unsafe { Mmap::map(&file) }.unwrap();
        assert_eq!(map[8], b'{');
        // The header is known once what the page of it has started has ended.
        mount.settle();
        (mount, map)
    }

    fn fetched(&self) -> u64 {
        self.lab.server.counters().get_bytes
    }
}

/// Reads a range through the mapping.
fn read(map: &Mmap, range: Range<u64>) {
    for at in range.clone().step_by(PAGE as usize).chain([range.end - 1]) {
        assert_eq!(map[at as usize], byte_of(at), "at {at}");
    }
}

// SEMANTICS: C31
#[test]
fn a_page_of_a_layer_brings_more_of_it_to_a_reader_of_whole_tensors_and_each_byte_comes_about_once() {
    let model = Model::new();
    let (mount, map) = model.open();
    model.layers[0].iter().for_each(|tensor| read(&map, tensor.clone()));
    mount.settle();
    let before = model.fetched();
    let [norm, weight] = model.layers[5].clone();
    read(&map, norm);
    read(&map, weight.start..weight.start + PAGE);
    mount.settle();
    let fetched = model.fetched() - before;
    assert!((WEIGHT / 2..=3 * WEIGHT).contains(&fetched), "{} MiB", fetched / MIB);
    // As programs do that go by names.
    for layer in [0, 1, 7, 5, 6, 2, 3, 4] {
        model.layers[layer].iter().for_each(|tensor| read(&map, tensor.clone()));
    }
    mount.settle();
    assert!(model.fetched() <= model.size + model.size / 8, "{} MiB", model.fetched() / MIB);
    assert_eq!(mount.metric("fs_errors_total"), 0);
}

// SEMANTICS: C31
#[test]
fn a_reader_of_an_eighth_of_each_tensor_does_not_have_the_rest_fetched() {
    let model = Model::new();
    let (mount, map) = model.open();
    for [norm, weight] in &model.layers {
        read(&map, norm.clone());
        read(&map, weight.start + 3 * WEIGHT / 8..weight.start + WEIGHT / 2);
    }
    mount.settle();
    let fetched = model.fetched();
    assert!(fetched >= model.size / 8, "{} MiB", fetched / MIB);
    // With the beginning of the file, what a stream fetches until the first layer has been read, and the pages around
    // each eighth that the kernel reads as well. Without the header it would be four fifths of the file, or all of it.
    assert!(fetched <= model.size * 11 / 16, "{} MiB of {}", fetched / MIB, model.size / MIB);
}
