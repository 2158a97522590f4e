#![allow(clippy::unwrap_used, clippy::panic)]

use super::*;

#[test]
fn a_named_file_that_is_missing_opens_no_server() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("data").join("state.db");
    let file = StateFile {
        state: Some(path.clone()),
    };
    for error in [
        file.open_for_serving().map(drop).unwrap_err(),
        file.open().map(drop).unwrap_err(),
    ] {
        let error = error.to_string();
        for words in [&*path.to_string_lossy(), "tenant add", "tenant init"] {
            assert!(error.contains(words), "{error}");
        }
    }
    assert!(!path.parent().unwrap().exists());

    file.open_or_make().unwrap();
    assert!(file.open_for_serving().unwrap().is_some());
    // Nor does one that leads nowhere.
    std::fs::rename(&path, folder.path().join("moved.db")).unwrap();
    std::os::unix::fs::symlink(folder.path().join("nowhere.db"), &path).unwrap();
    assert!(file.open_for_serving().is_err());
}
