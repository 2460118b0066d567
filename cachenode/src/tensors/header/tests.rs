use proptest::prelude::*;

use super::super::tensor::{HEADER_BYTES_MOST, Role, TENSORS_MOST, Tensor};
use super::*;

/// The beginning of a safetensors file with this JSON.
fn safetensors(json: &str) -> Vec<u8> {
    [&(json.len() as u64).to_le_bytes()[..], json.as_bytes()].concat()
}

/// The beginning of a safetensors file with tensors of these names, which begin and end at these offsets of the data.
pub(crate) fn safetensors_of(tensors: &[(String, u64, u64)]) -> Vec<u8> {
    let entries: Vec<String> = tensors
        .iter()
        .map(|(name, begin, end)| {
            format!(r#""{name}":{{"dtype":"U8","shape":[{}],"data_offsets":[{begin},{end}]}}"#, end - begin)
        })
        .collect();
    safetensors(&format!("{{{}}}", entries.join(",")))
}

fn string(text: &str) -> Vec<u8> {
    [&(text.len() as u64).to_le_bytes()[..], text.as_bytes()].concat()
}

/// A pair of a GGUF header.
fn pair(key: &str, kind: u32, value: &[u8]) -> Vec<u8> {
    [&string(key)[..], &kind.to_le_bytes(), value].concat()
}

/// The header of a GGUF file with these pairs, and tensors of these names at these offsets of the data.
fn gguf(pairs: &[Vec<u8>], tensors: &[(&str, u64)]) -> Vec<u8> {
    let mut header = b"GGUF\x03\0\0\0".to_vec();
    header.extend((tensors.len() as u64).to_le_bytes());
    header.extend((pairs.len() as u64).to_le_bytes());
    header.extend(pairs.concat());
    for (name, offset) in tensors {
        header.extend(string(name));
        header.extend(2_u32.to_le_bytes());
        header.extend([4096_u64, 11].map(u64::to_le_bytes).concat());
        header.extend(12_u32.to_le_bytes());
        header.extend(offset.to_le_bytes());
    }
    header
}

fn tensor(name: &str, begin: u64, end: u64) -> Tensor {
    Tensor { begin, end, role: Role::of(3, name.as_bytes()) }
}

#[test]
fn a_safetensors_header_says_where_its_tensors_are() {
    let json = r#"{"__metadata__":{"format":"pt","more":{"a":[1]}},
        "layers.1.w":{"dtype":"BF16","shape":[5,10],"data_offsets":[100,200]},
        "empty":{"dtype":"F32","shape":[0],"data_offsets":[100,100]},
        "layers.0.w":{"dtype":"BF16","shape":[5,10],"data_offsets":[0,100]}}    "#;
    let start = safetensors(json);
    let data = start.len() as u64;
    let expected = vec![tensor("layers.0.w", data, data + 100), tensor("layers.1.w", data + 100, data + 200)];
    assert_eq!(decode(&start, data + 200, 3), Header::Tensors(expected));
    // Only the beginning is there.
    assert_eq!(decode(&start[..20], data + 200, 3), Header::Needs(data));
}

#[test]
fn a_gguf_header_says_where_its_tensors_are() {
    let pairs = [
        pair("general.architecture", 8, &string("llama")),
        pair("general.alignment", 4, &64_u32.to_le_bytes()),
        pair("tokens", 9, &[&8_u32.to_le_bytes()[..], &2_u64.to_le_bytes(), &string("a"), &string("")].concat()),
        pair("scores", 9, &[&6_u32.to_le_bytes()[..], &3_u64.to_le_bytes(), &[0; 12]].concat()),
        pair("eps", 12, &[0; 8]),
        pair("flag", 7, &[1]),
    ];
    let start = gguf(&pairs, &[("blk.1.w", 640), ("blk.0.w", 0), ("blk.2.w", 1000)]);
    let data = (start.len() as u64).next_multiple_of(64);
    let expected = vec![
        tensor("blk.0.w", data, data + 640),
        tensor("blk.1.w", data + 640, data + 1000),
        tensor("blk.2.w", data + 1000, data + 5000),
    ];
    assert_eq!(decode(&start, data + 5000, 3), Header::Tensors(expected));
    assert_eq!(decode(&start[..100], data + 5000, 3), Header::Needs(800));
    assert_eq!(decode(&start, start.len() as u64, 3), Header::Unknown, "no data");
}

#[test]
fn headers_that_lie_are_not_believed() {
    let entry = |begin: u64, end: u64| format!(r#"{{"a":{{"data_offsets":[{begin},{end}]}}}}"#);
    let two = |one: &str, other: &str| format!(r#"{{"a":{{"data_offsets":{one}}},"b":{{"data_offsets":{other}}}}}"#);
    let deep = format!(r#"{{"a":{{"x":{}"#, "[".repeat(100_000));
    let many: Vec<String> =
        (0..=TENSORS_MOST as u64).map(|at| format!(r#""{at}":{{"data_offsets":[{at},{}]}}"#, at + 1)).collect();
    for json in [
        // Behind the end of the file, and beyond all numbers.
        entry(0, 1 << 21),
        entry(u64::MAX - 1, u64::MAX),
        entry(2, 1),
        // On each other.
        two("[0,100]", "[99,200]"),
        two("[0,100]", "[0,100]"),
        // No tensors, and none at all.
        "{}".to_owned(),
        r#"{"__metadata__":{}}"#.to_owned(),
        r#"{"a":{"data_offsets":[0]}}"#.to_owned(),
        r#"{"a":{"data_offsets":[-1,5]}}"#.to_owned(),
        r#"{"a":{"data_offsets":[0,1e300]}}"#.to_owned(),
        r#"{"a":{"dtype":"F32"}}"#.to_owned(),
        r#"{"a":{"data_offsets":[0,5]}} {}"#.to_owned(),
        r#"{"a":{"data_offsets":[0,5]}"#.to_owned(),
        deep,
        format!("{{{}}}", many.join(",")),
    ] {
        let start = safetensors(&json);
        assert_eq!(decode(&start, start.len() as u64 + (1 << 20), 3), Header::Unknown, "{json:.80}");
    }
    let with_len = |len: u64| [&len.to_le_bytes()[..], b"{\"a\"", &[b' '; 100]].concat();
    for len in [u64::MAX, HEADER_BYTES_MOST, 1 << 40, 1 << 20] {
        assert_eq!(decode(&with_len(len), 1 << 20, 3), Header::Unknown, "{len}");
    }
    for start in [&b""[..], b"GGUF", b"GGU", b"\x10\0\0\0\0\0\0\0 {", b"PK\x03\x04 a checkpoint of PyTorch"] {
        assert_eq!(decode(start, start.len() as u64, 3), Header::Unknown, "{start:?}");
    }
    let ok = [("a", 0)];
    let with = |at: usize, bytes: &[u8]| {
        let mut start = gguf(&[], &ok);
        start[at..at + bytes.len()].copy_from_slice(bytes);
        start
    };
    for start in [
        with(4, &1_u32.to_le_bytes()),
        with(4, &3_u32.to_be_bytes()),
        with(8, &u64::MAX.to_le_bytes()),
        // A name, and a shape, of any length.
        with(24, &u64::MAX.to_le_bytes()),
        with(33, &u32::MAX.to_le_bytes()),
        gguf(&[], &[("a", u64::MAX)]),
        gguf(&[], &[("a", 5), ("b", 5)]),
        gguf(&[pair("general.alignment", 4, &[3, 0, 0, 0])], &ok),
        gguf(&[pair("general.alignment", 4, &[0, 0, 0, 0x40])], &ok),
        gguf(&[pair("general.alignment", 4, &[0; 4])], &ok),
        gguf(&[pair("a", 13, &[0; 8])], &ok),
        gguf(&[pair("a", 9, &[&9_u32.to_le_bytes()[..], &1_u64.to_le_bytes()].concat())], &ok),
        gguf(&[pair("a", 9, &[&12_u32.to_le_bytes()[..], &u64::MAX.to_le_bytes()].concat())], &ok),
    ] {
        assert_eq!(decode(&start, 1 << 20, 3), Header::Unknown, "{start:?}");
    }
    // A count of pairs that never end: more is read up to the limit, and then no more.
    let endless = |len: usize| [&b"GGUF\x03\0\0\0"[..], &[0; 8], &[0xff; 8], &vec![0; len]].concat();
    assert_eq!(decode(&endless(1000), 1 << 30, 3), Header::Needs(8 * 1024));
    assert_eq!(decode(&endless(HEADER_BYTES_MOST as usize), 1 << 30, 3), Header::Unknown);
}

proptest! {
    #[test]
    fn any_bytes_are_decoded_to_tensors_within_the_file(
        bytes in proptest::collection::vec(any::<u8>(), 0..400),
        changes in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..4),
        file_bytes in 0..100_000_u64,
    ) {
        let names = ["layers.0.a", "layers.1.a", "b"];
        let tensors: Vec<_> = (0..).zip(names).map(|(at, name)| (name.to_owned(), at * 1000, at * 1000 + 700)).collect();
        let valid = [safetensors_of(&tensors), gguf(&[pair("a", 8, &string("b"))], &[("blk.0.a", 0), ("c", 320)])];
        let mut starts = vec![bytes.clone(), [&b"GGUF\x03\0\0\0"[..], &bytes].concat(), safetensors("{}")];
        for mut start in valid {
            for (at, byte) in &changes {
                let at = at.index(start.len());
                start[at] = *byte;
            }
            starts.push(start);
        }
        for start in starts {
            match decode(&start, file_bytes, 3) {
                Header::Tensors(tensors) => {
                    prop_assert!(tensors.iter().all(|tensor| tensor.begin < tensor.end && tensor.end <= file_bytes));
                    prop_assert!(tensors.windows(2).all(|pair| pair[0].end <= pair[1].begin));
                }
                Header::Needs(bytes) => {
                    prop_assert!(bytes > start.len() as u64 && bytes <= file_bytes.min(HEADER_BYTES_MOST));
                }
                Header::Unknown => {}
            }
        }
    }
}
