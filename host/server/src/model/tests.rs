//! What a model's folder says, and what is said when it is not one.
#![allow(clippy::unwrap_used, clippy::panic)]

use super::{LoadOptions, ModelFiles, load};
use crate::source::LocalModel;
use guesthouse_component::{Runtime, RuntimeConfig};
use std::path::PathBuf;

fn golden(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden").join(name)
}

#[test]
fn a_folder_without_config_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let error = ModelFiles::open(&LocalModel::Folder(folder.path().into())).err().unwrap();
    assert!(error.to_string().contains("config.json is missing"), "{error}");
}

#[test]
fn config_that_is_not_json_is_named() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("config.json"), "{").unwrap();
    let error = ModelFiles::open(&LocalModel::Folder(folder.path().into())).err().unwrap();
    assert!(error.to_string().contains("config.json is not JSON"), "{error}");
}
