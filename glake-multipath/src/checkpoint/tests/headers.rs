//! Headers: what is taken, what is refused, and that the format's own crate thinks the same.

use proptest::prelude::*;
use safetensors::SafeTensors;

use super::super::error::{HeaderError, IndexError};
use super::super::{HEADER_BYTES, Tensor, header, index};
use super::{Dtype, bytes, file_of, made};

/// What a whole file says.
fn parse(file: &[u8]) -> Result<Vec<Tensor>, HeaderError> {
    let file_bytes = file.len() as u64;
    let prefix = file.first_chunk().copied().unwrap_or_default();
    let header_bytes = header::header_bytes(prefix, file_bytes)?;
    let start = usize::try_from(8 + header_bytes).unwrap();
    header::parse(&file[8..start], 8 + header_bytes..file_bytes)
}

/// A file of that header and so many bytes.
fn file(header: &str, data_bytes: usize) -> Vec<u8> {
    let mut file = (header.len() as u64).to_le_bytes().to_vec();
    file.extend(header.as_bytes());
    file.resize(file.len() + data_bytes, 7);
    file
}

/// A header of bytes: name, start, end.
fn header(entries: &[(&str, u64, u64)]) -> String {
    let entry = |(name, start, end): &(&str, u64, u64)| {
        let length = end.saturating_sub(*start);
        format!(r#""{name}":{{"dtype":"U8","shape":[{length}],"data_offsets":[{start},{end}]}}"#)
    };
    format!("{{{}}}", entries.iter().map(entry).collect::<Vec<_>>().join(","))
}

#[test]
fn tensors_come_in_the_order_of_the_file() {
    let text = header(&[("b", 4, 10), ("z", 0, 4), ("a", 10, 10), ("m", 10, 10)]);
    let found = parse(&file(&text, 10)).unwrap();
    let start = 8 + text.len() as u64;
    let found: Vec<_> = found.iter().map(|t| (&*t.name, t.offset_bytes - start, t.bytes)).collect();
    assert_eq!(found, [("z", 0, 4), ("b", 4, 6), ("a", 10, 0), ("m", 10, 0)]);
}

#[test]
fn broken_files_are_told_apart() {
    type Is = fn(&HeaderError) -> bool;
    let one = |dtype: &str, shape: &str, start: u64, end: u64| {
        format!(r#"{{"a":{{"dtype":"{dtype}","shape":{shape},"data_offsets":[{start},{end}]}}}}"#)
    };
    let cases: Vec<(Vec<u8>, Is)> = vec![
        (vec![], |e| matches!(e, HeaderError::Truncated { file_bytes: 0, needed_bytes: 8 })),
        (vec![2, 0, 0], |e| matches!(e, HeaderError::Truncated { file_bytes: 3, needed_bytes: 8 })),
        (file("{}", 0)[..9].to_vec(), |e| {
            matches!(e, HeaderError::Truncated { file_bytes: 9, needed_bytes: 10 })
        }),
        ((HEADER_BYTES + 1).to_le_bytes().to_vec(), |e| matches!(e, HeaderError::TooLong { .. })),
        (u64::MAX.to_le_bytes().to_vec(), |e| matches!(e, HeaderError::TooLong { header_bytes: u64::MAX })),
        (file("", 0), |e| matches!(e, HeaderError::Json(_))),
        (file("[]", 0), |e| matches!(e, HeaderError::Json(_))),
        (file(r#"{"a":3}"#, 0), |e| matches!(e, HeaderError::Json(_))),
        (file(r#"{"__metadata__":{"a":1}}"#, 0), |e| matches!(e, HeaderError::Json(_))),
        (file(r#"{"__metadata__":{},"__metadata__":{}}"#, 0), |e| matches!(e, HeaderError::Json(_))),
        (file(&one("U8", "[-1]", 0, 1), 1), |e| matches!(e, HeaderError::Json(_))),
        (
            file(&header(&[("a", 0, 1), ("a", 1, 2)]), 2),
            |e| matches!(e, HeaderError::Duplicate { tensor } if &**tensor == "a"),
        ),
        (
            file(&one("F12", "[1]", 0, 1), 1),
            |e| matches!(e, HeaderError::UnknownDtype { dtype, .. } if &**dtype == "F12"),
        ),
        (file(&one("F32", "[1]", 0, 3), 3), |e| matches!(e, HeaderError::Shape { .. })),
        (file(&one("F4", "[3]", 0, 2), 2), |e| matches!(e, HeaderError::Shape { .. })),
        (file(&one("U8", "[4294967296,4294967296,2]", 0, 0), 0), |e| matches!(e, HeaderError::Shape { .. })),
        (file(&one("U8", "[1]", 1, 0), 1), |e| matches!(e, HeaderError::Backwards { .. })),
        (file(&header(&[("a", 0, 9)]), 4), |e| matches!(e, HeaderError::Outside { missing_bytes: 5, .. })),
        (file(&header(&[("a", 0, u64::MAX)]), 4), |e| matches!(e, HeaderError::Outside { .. })),
        (
            file(&header(&[("a", 0, 3), ("b", 2, 4)]), 4),
            |e| matches!(e, HeaderError::Overlap { tensor } if &**tensor == "b"),
        ),
        (
            file(&header(&[("a", 0, 2), ("b", 0, 4)]), 4),
            |e| matches!(e, HeaderError::Overlap { tensor } if &**tensor == "b"),
        ),
        (file(&header(&[("a", 1, 4)]), 4), |e| matches!(e, HeaderError::Hole { offset_bytes: 0, bytes: 1 })),
        (file(&header(&[("a", 0, 1), ("b", 3, 4)]), 4), |e| {
            matches!(e, HeaderError::Hole { offset_bytes: 1, bytes: 2 })
        }),
        (file(&header(&[("a", 0, 1)]), 4), |e| matches!(e, HeaderError::Hole { offset_bytes: 1, bytes: 3 })),
        (file("{}", 4), |e| matches!(e, HeaderError::Hole { offset_bytes: 0, bytes: 4 })),
    ];
    for (file, is) in cases {
        let error = parse(&file).unwrap_err();
        assert!(is(&error), "{error:?} for {:?}", String::from_utf8_lossy(&file));
        assert!(SafeTensors::read_metadata(&file).is_err() || matches!(error, HeaderError::Duplicate { .. }));
    }
}

#[test]
fn an_empty_checkpoint_has_no_tensors() {
    for text in ["{}", "{}   ", r#"{"__metadata__":{"format":"pt"}}"#, r#"{"__metadata__":null}"#] {
        assert_eq!(parse(&file(text, 0)).unwrap(), []);
    }
}

/// Whatever it is, both think the same of it.
fn agree(file: &[u8]) {
    let ours = parse(file);
    let theirs = SafeTensors::read_metadata(file);
    match (&ours, &theirs) {
        (Ok(ours), Ok((header_bytes, theirs))) => {
            assert_eq!(ours.len(), theirs.tensors().len());
            for tensor in ours {
                let info = theirs.info(&tensor.name).unwrap();
                let start = tensor.offset_bytes - 8 - *header_bytes as u64;
                let (from, to) = info.data_offsets;
                assert_eq!((start, start + tensor.bytes), (from as u64, to as u64));
                assert_eq!(tensor.dtype, info.dtype);
                assert!(
                    tensor.shape.iter().eq(info
                        .shape
                        .iter()
                        .map(|length| *length as u64)
                        .collect::<Vec<_>>()
                        .iter())
                );
            }
        }
        // They keep the last of two that have the same name.
        (Err(HeaderError::Duplicate { .. }), _) | (Err(_), Err(_)) => {}
        _ => panic!("{ours:?} and {theirs:?} for {:?}", String::from_utf8_lossy(file)),
    }
}

/// Headers that are nearly right.
fn nearly() -> impl Strategy<Value = Vec<u8>> {
    let dtype = prop_oneof![Just("U8"), Just("F16"), Just("F4"), Just("F8_E4M3"), Just("X")];
    let entry = ("[ab]", dtype, prop::collection::vec(0_u64..4, 0..3), 0_u64..8, 0_u64..8, 0..9_u32);
    let entries = prop::collection::vec(entry, 0..4);
    (entries, 0..12_usize, any::<bool>()).prop_map(|(entries, data_bytes, fits)| {
        let mut at = 0;
        let mut texts: Vec<String> = Vec::new();
        for (name, dtype, shape, start, end, luck) in entries {
            let bits = shape.iter().product::<u64>()
                * if dtype == "F16" {
                    16
                } else if dtype == "F4" {
                    4
                } else {
                    8
                };
            let (start, end) = if fits || luck > 0 { (at, at + bits / 8) } else { (start, end) };
            at = end;
            texts.push(format!(
                r#""{name}{}":{{"dtype":"{dtype}","shape":{shape:?},"data_offsets":[{start},{end}]}}"#,
                texts.len() / 2
            ));
        }
        let data_bytes = if fits { usize::try_from(at).unwrap() } else { data_bytes };
        file(&format!("{{{}}}", texts.join(",")), data_bytes)
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn any_bytes_are_taken_or_refused(file in prop::collection::vec(any::<u8>(), 0..64)) {
        agree(&file);
    }

    #[test]
    fn any_header_is_taken_or_refused(text in "[{}\\[\\]\":,0-9a-cU8dtypeshx_ ]{0,80}", data_bytes in 0..20_usize) {
        agree(&file(&text, data_bytes));
    }

    #[test]
    fn headers_that_are_nearly_right_are_judged_as_by_the_formats_own_crate(file in nearly()) {
        agree(&file);
    }

    #[test]
    fn a_damaged_file_is_judged_as_by_the_formats_own_crate(
        damage in prop::collection::vec((0..400_usize, any::<u8>()), 0..3), cut in 0..500_usize,
    ) {
        let mut file = file_of(&[bytes("x", 5), made("y.weight", Dtype::F16, &[2, 3]), bytes("", 0)]);
        for (at, value) in damage {
            let at = at % file.len();
            file[at] = value;
        }
        file.truncate(file.len().max(cut));
        agree(&file);
        file.truncate(cut);
        agree(&file);
    }

    #[test]
    fn any_index_is_taken_or_refused(text in "[{}\\[\\]\":,a-cweight_map/. ]{0,80}") {
        let _ = index::parse(text.as_bytes());
    }

    #[test]
    fn a_file_of_an_index_lies_in_its_folder(file in "[./a-c]{0,8}") {
        let index = serde_json::json!({ "weight_map": { "t": file } }).to_string();
        match index::parse(index.as_bytes()) {
            Ok(files) => {
                let path = files.keys().next().unwrap();
                assert!(!path.starts_with("/") && !path.iter().any(|part| part == ".."), "{path:?}");
            }
            Err(error) => assert!(matches!(error, IndexError::Escapes(_)), "{error:?}"),
        }
    }
}

#[test]
fn an_index_that_is_broken_is_told_apart() {
    type Is = fn(&IndexError) -> bool;
    let cases: &[(&str, Is)] = &[
        ("", |e| matches!(e, IndexError::Json(_))),
        ("{}", |e| matches!(e, IndexError::Json(_))),
        (r#"{"weight_map":{"a":1}}"#, |e| matches!(e, IndexError::Json(_))),
        (
            r#"{"weight_map":{"a":"x","a":"y"}}"#,
            |e| matches!(e, IndexError::Duplicate(name) if &**name == "a"),
        ),
        (r#"{"weight_map":{"a":"../x"}}"#, |e| matches!(e, IndexError::Escapes(_))),
        (r#"{"weight_map":{"a":"y/../x"}}"#, |e| matches!(e, IndexError::Escapes(_))),
        (r#"{"weight_map":{"a":"/etc/passwd"}}"#, |e| matches!(e, IndexError::Escapes(_))),
        (r#"{"weight_map":{"a":""}}"#, |e| matches!(e, IndexError::Escapes(_))),
        (r#"{"weight_map":{"a":".."}}"#, |e| matches!(e, IndexError::Escapes(_))),
    ];
    for (text, is) in cases {
        let error = index::parse(text.as_bytes()).unwrap_err();
        assert!(is(&error), "{error:?} for {text}");
    }
    let files = index::parse(br#"{"weight_map":{"a":"p/x","b":"y","c":"p//x"}}"#).unwrap();
    let files: Vec<_> = files.iter().map(|(file, names)| (file.to_str().unwrap(), names.len())).collect();
    assert_eq!(files, [("p/x", 2), ("y", 1)]);
}
