#![allow(clippy::unwrap_used)]

use std::io::Write;

use super::Mapping;
use crate::WeightsError;

#[test]
fn a_file_that_shrank_is_an_error_not_a_crash() {
    let mut file = tempfile::NamedTempFile::new().unwrap();
    file.write_all(&[7; 10_000]).unwrap();
    let map = Mapping::open(file.path()).unwrap();
    assert_eq!(map.bytes(9_999..10_000).unwrap(), [7]);
    file.as_file().set_len(100).unwrap();
    let error = map.bytes(0..10).unwrap_err();
    assert!(
        matches!(
            error,
            WeightsError::Shrank {
                mapped: 10_000,
                now: 100,
                ..
            }
        ),
        "{error}"
    );
}

#[test]
fn folders_missing_files_and_wild_ranges_are_errors() {
    let dir = tempfile::tempdir().unwrap();
    assert!(matches!(
        Mapping::open(dir.path()),
        Err(WeightsError::Io { .. })
    ));
    assert!(Mapping::open(&dir.path().join("none")).is_err());
    let file = dir.path().join("f");
    std::fs::write(&file, [1, 2, 3]).unwrap();
    let map = Mapping::open(&file).unwrap();
    assert!(map.bytes(2..4).is_err());
    assert_eq!(map.all().unwrap(), [1, 2, 3]);
}
