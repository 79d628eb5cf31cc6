//! Which files make a checkpoint.

use super::super::{CheckpointError, HeaderError, IndexError};
use super::*;

fn names(checkpoint: &Checkpoint) -> Vec<&str> {
    checkpoint.tensors().iter().map(|tensor| &*tensor.name).collect()
}

#[test]
fn a_folder_stands_for_what_it_holds() {
    let folder = Folder::new();
    let open = || Checkpoint::open(folder.0.path());
    assert!(matches!(open(), Err(CheckpointError::NothingThere(_))));
    folder.write("config.json", "{}");
    folder.write("other.safetensors", file_of(&[bytes("other", 1)]));
    assert_eq!(names(&open().unwrap()), ["other"]);
    folder.write("second.safetensors", file_of(&[bytes("second", 1)]));
    assert!(matches!(open(), Err(CheckpointError::Ambiguous(_))));
    let index = r#"{"weight_map":{"second":"second.safetensors"}}"#;
    folder.write("unet.safetensors.index.json", index);
    assert_eq!(names(&open().unwrap()), ["second"]);
    folder.write_shards(&[vec![bytes("a", 1)], vec![bytes("b", 2)]]);
    assert_eq!(names(&open().unwrap()), ["a", "b"]);
    folder.write("model.safetensors", file_of(&[bytes("whole", 1)]));
    assert_eq!(names(&open().unwrap()), ["whole"]);
}

#[test]
fn tensors_are_found_by_name_and_by_place() {
    let folder = Folder::new();
    folder.write_shards(&[vec![bytes("z", 3), bytes("m", 1)], vec![bytes("a", 2)]]);
    let checkpoint = Checkpoint::open(folder.0.path()).unwrap();
    assert_eq!(names(&checkpoint), ["m", "z", "a"]);
    assert_eq!(checkpoint.by_name().map(|tensor| &*tensor.name).collect::<Vec<_>>(), ["a", "m", "z"]);
    assert_eq!((checkpoint.bytes(), checkpoint.shards().len()), (6, 2));
    assert_eq!(checkpoint.get("z").map(|tensor| (tensor.shard, tensor.bytes)), Some((0, 3)));
    assert_eq!(checkpoint.get("a").map(|tensor| (tensor.shard, tensor.bytes)), Some((1, 2)));
    assert!(checkpoint.get("q").is_none());
    let part = checkpoint.only(|tensor| &*tensor.name != "m");
    assert_eq!((names(&part), part.bytes()), (vec!["z", "a"], 5));
    assert!(part.get("m").is_none());
    assert_eq!(part.get("a"), checkpoint.get("a"));
    let none = part.only(|_| false);
    assert_eq!((none.bytes(), none.by_name().len(), none.shards().len()), (0, 0, 2));
}

#[test]
fn two_files_with_the_same_tensor_are_refused() {
    let folder = Folder::new();
    let paths = [
        folder.write("1.safetensors", file_of(&[bytes("a", 1), bytes("b", 1)])),
        folder.write("2.safetensors", file_of(&[bytes("c", 1), bytes("b", 1)])),
    ];
    let error = Checkpoint::open_files(&paths).unwrap_err();
    let CheckpointError::Duplicate { tensor, paths: found } = error else { panic!("{error:?}") };
    assert_eq!((&*tensor, found.map(PathBuf::from)), ("b", paths.clone()));
    let other = folder.write("3.safetensors", file_of(&[bytes("d", 1)]));
    assert_eq!(names(&Checkpoint::open_files(&[&paths[1], &other]).unwrap()), ["b", "c", "d"]);
    // An index says which of the two it is.
    let index = r#"{"weight_map":{"a":"1.safetensors","b":"2.safetensors"}}"#;
    let checkpoint = Checkpoint::open(folder.write("x.json", index)).unwrap();
    assert_eq!(names(&checkpoint), ["a", "b"]);
    assert_eq!(checkpoint.get("b").unwrap().shard, 1);
}

#[test]
fn an_index_agrees_with_its_files_or_is_refused() {
    let folder = Folder::new();
    folder.write("1.safetensors", file_of(&[bytes("a", 1)]));
    let open = |weight_map: &str| {
        let index = format!(r#"{{"weight_map":{weight_map}}}"#);
        let error = match Checkpoint::open(folder.write("model.safetensors.index.json", index)) {
            Ok(checkpoint) => return Ok(checkpoint),
            Err(CheckpointError::Index { source, .. }) => *source,
            Err(error) => panic!("{error:?}"),
        };
        Err(error)
    };
    assert!(matches!(open(r#"{"a":"../1.safetensors"}"#), Err(IndexError::Escapes(_))));
    let missing = open(r#"{"a":"1.safetensors","b":"2.safetensors"}"#).unwrap_err();
    assert!(matches!(&missing, IndexError::MissingFile(file) if &**file == Path::new("2.safetensors")));
    let missing = open(r#"{"a":"1.safetensors","b":"1.safetensors"}"#).unwrap_err();
    let IndexError::MissingTensor { tensor, file } = missing else { panic!("{missing:?}") };
    assert_eq!((&*tensor, &*file), ("b", Path::new("1.safetensors")));
    assert_eq!(names(&open("{}").unwrap()), [""; 0]);
    assert_eq!(names(&open(r#"{"a":"1.safetensors"}"#).unwrap()), ["a"]);
}

/// As in the hub's cache, where a model's files are links to files elsewhere.
#[test]
fn a_link_leads_where_its_owner_wants() {
    let (folder, elsewhere) = (Folder::new(), Folder::new());
    let file = elsewhere.write("blob", file_of(&[bytes("a", 1)]));
    std::os::unix::fs::symlink(file, folder.path("1.safetensors")).unwrap();
    let index = folder.write("x.json", r#"{"weight_map":{"a":"1.safetensors"}}"#);
    assert_eq!(names(&Checkpoint::open(index).unwrap()), ["a"]);
}

#[test]
fn a_file_that_was_cut_short_is_refused_before_anything_is_allocated() {
    let folder = Folder::new();
    let whole = file_of(&[bytes("a", 100), bytes("b", 50)]);
    for length in 0..whole.len() {
        let path = folder.write("model.safetensors", &whole[..length]);
        let error = Checkpoint::open(&path).unwrap_err();
        let CheckpointError::Header { path: found, source } = error else { panic!("{error:?}") };
        assert_eq!(*found, *path);
        let is_right = matches!(*source, HeaderError::Truncated { .. } | HeaderError::Outside { .. });
        assert!(is_right, "{source:?} at {length}");
    }
    assert!(Checkpoint::open(folder.write("model.safetensors", &whole)).is_ok());
}

#[test]
fn what_cannot_be_opened_says_which_file_and_why() {
    let folder = Folder::new();
    for path in ["none.safetensors", "none.json"] {
        let error = Checkpoint::open(folder.path(path)).unwrap_err();
        let CheckpointError::Open { path: found, source } = error else { panic!("{error:?}") };
        assert_eq!((&*found, source.kind()), (&*folder.path(path), std::io::ErrorKind::NotFound));
    }
}

/// A header's length is checked against the file's before memory is taken for it.
#[test]
fn a_long_header_of_a_sparse_file_is_refused() {
    let folder = Folder::new();
    let path = folder.write("x.safetensors", 100_000_001_u64.to_le_bytes());
    fs::File::options().write(true).open(&path).unwrap().set_len(1 << 40).unwrap();
    let error = Checkpoint::open(&path).unwrap_err();
    let CheckpointError::Header { source, .. } = error else { panic!("{error:?}") };
    assert!(matches!(*source, HeaderError::TooLong { header_bytes: 100_000_001 }));
}
