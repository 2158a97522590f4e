//! `docs/models.md` against what is there.

use crate::model::testing::modules;
use guesthouse_component::{Role, builtin};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn code_words(cell: &str) -> Vec<String> {
    cell.split('`')
        .skip(1)
        .step_by(2)
        .map(str::to_owned)
        .collect()
}

/// Class → (guest, golden cases), of the page's table.
fn table() -> BTreeMap<String, (String, BTreeSet<String>)> {
    let page = fs::read_to_string(root().join("docs/models.md")).unwrap();
    let rows = page.lines().filter(|line| line.starts_with("| `"));
    rows.map(|row| {
        let cells: Vec<&str> = row.trim_matches('|').split('|').collect();
        let class = code_words(cells[0]).remove(0);
        let guest = code_words(cells[1]).remove(0);
        (class, (guest, code_words(cells[2]).into_iter().collect()))
    })
    .collect()
}

#[test]
fn the_table_of_models_is_what_the_guests_answer() {
    let store = modules();
    let mut answered = BTreeMap::new();
    for guest in builtin::ALL.iter().filter(|g| g.role == Role::Graph) {
        let module = store.named(Role::Graph, guest.name).unwrap().unwrap();
        for class in module.graph().unwrap().architectures().unwrap() {
            let before = answered.insert(class.clone(), guest.name.to_owned());
            assert_eq!(before, None, "{class} is built by two guests");
        }
    }
    let listed: BTreeMap<_, _> = table()
        .into_iter()
        .map(|(c, (guest, _))| (c, guest))
        .collect();
    assert_eq!(listed, answered, "run python3 tests/golden/models.py");
}

#[test]
fn the_table_of_models_lists_every_golden_case() {
    let mut cases: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for entry in fs::read_dir(root().join("tests/golden/cases")).unwrap() {
        let folder = entry.unwrap();
        let config = fs::read_to_string(folder.path().join("config.json")).unwrap();
        let config: Value = serde_json::from_str(&config).unwrap();
        for class in config["architectures"].as_array().unwrap() {
            let class = class.as_str().unwrap().to_owned();
            let name = folder.file_name().into_string().unwrap();
            cases.entry(class).or_default().insert(name);
        }
    }
    let listed: BTreeMap<_, _> = table()
        .into_iter()
        .map(|(class, (_, cases))| (class, cases))
        .filter(|(_, cases)| !cases.is_empty())
        .collect();
    assert_eq!(listed, cases, "run python3 tests/golden/models.py");
}

/// The host runs any architecture because it knows none. Names stand in tests, and in the tables of GGUF, whose files say
/// them instead of tensor names.
#[test]
fn the_host_knows_no_architecture() {
    let classes: Vec<String> = table().into_keys().collect();
    assert!(classes.len() > 5);
    // Class names without what all share, as a program would spell a special case; short ones are words of other things.
    let stems = classes.iter().filter_map(|class| {
        let stem = ["ForCausalLM", "LMHeadModel", "ForConditionalGeneration"]
            .iter()
            .find_map(|end| class.strip_suffix(end))?;
        (stem.len() > 4).then(|| stem.to_ascii_lowercase())
    });
    let stems: BTreeSet<String> = stems.collect();
    let mut found = Vec::new();
    let mut files = vec![root().join("host")];
    while let Some(path) = files.pop() {
        if path.is_dir() {
            let skipped = ["tests", "examples", "target", "snapshots", "templates"];
            let entries = fs::read_dir(&path).unwrap().map(|e| e.unwrap().path());
            files.extend(
                entries.filter(|p| !skipped.contains(&p.file_name().unwrap().to_str().unwrap())),
            );
            continue;
        }
        let exempt = path.extension().is_none_or(|e| e != "rs")
            || path.file_name().is_some_and(|n| n == "tests.rs")
            || path.to_string_lossy().contains("/gguf");
        if exempt {
            continue;
        }
        let text = fs::read_to_string(&path).unwrap();
        for (number, line) in text.lines().enumerate() {
            // Prose may say where something comes from.
            let code = line.split("//").next().unwrap_or_default();
            // Strings are where a program could compare a name.
            for string in code.split('"').skip(1).step_by(2) {
                let lower = string.to_ascii_lowercase();
                let whole = classes.iter().any(|class| string.contains(class.as_str()));
                if whole || stems.contains(&lower) {
                    found.push(format!("{}:{}: {string:?}", path.display(), number + 1));
                }
            }
        }
    }
    assert!(
        found.is_empty(),
        "architectures are named in the host:\n{}",
        found.join("\n")
    );
}
