#![allow(clippy::unwrap_used)]

use std::io::Write;

use super::{LEAST_HEAD, WeightsFile};
use crate::WeightsError;

#[test]
fn a_file_that_shrank_is_an_error_not_a_crash() {
    let mut file = tempfile::NamedTempFile::new().unwrap();
    file.write_all(&[7; 10_000]).unwrap();
    let weights = WeightsFile::open(file.path()).unwrap();
    assert_eq!(weights.bytes(9_999..10_000).unwrap(), [7]);
    file.as_file().set_len(100).unwrap();
    for range in [0..10, 5_000..6_000] {
        let error = weights.bytes(range).unwrap_err();
        assert!(
            matches!(
                error,
                WeightsError::Shrank {
                    before: 10_000,
                    now: 100,
                    ..
                }
            ),
            "{error}"
        );
    }
}

#[test]
fn folders_missing_files_and_wild_ranges_are_errors() {
    let dir = tempfile::tempdir().unwrap();
    assert!(matches!(
        WeightsFile::open(dir.path()),
        Err(WeightsError::Io { .. })
    ));
    assert!(WeightsFile::open(&dir.path().join("none")).is_err());
    let path = dir.path().join("f");
    std::fs::write(&path, [1, 2, 3]).unwrap();
    let weights = WeightsFile::open(&path).unwrap();
    assert!(weights.bytes(2..4).is_err());
    #[allow(clippy::reversed_empty_ranges)]
    let reversed = weights.bytes(2..1);
    assert!(reversed.is_err());
    assert!(weights.bytes(0..usize::MAX).is_err());
    assert_eq!(weights.bytes(0..3).unwrap(), [1, 2, 3]);
}

#[test]
fn a_head_grows_until_it_is_whole() {
    let mut file = tempfile::NamedTempFile::new().unwrap();
    file.write_all(&vec![1; 3 * LEAST_HEAD]).unwrap();
    let weights = WeightsFile::open(file.path()).unwrap();
    let needs = |bytes: usize| {
        weights.parse_head(move |head| {
            assert_eq!(head.file_len, 3 * LEAST_HEAD);
            match head.bytes.len() {
                found if found >= bytes => Ok(found),
                found => Err(WeightsError::missing("x", found.to_string())),
            }
        })
    };
    assert_eq!(needs(1).unwrap(), LEAST_HEAD);
    assert_eq!(needs(2 * LEAST_HEAD).unwrap(), 3 * LEAST_HEAD);
    let error = needs(4 * LEAST_HEAD).unwrap_err().to_string();
    assert!(error.contains(&(3 * LEAST_HEAD).to_string()), "{error}");
}
