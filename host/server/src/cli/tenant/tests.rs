#![allow(clippy::unwrap_used, clippy::panic)]

use super::TenantCommand;
use crate::cli::{Cli, Command};
use anyhow::Result;
use clap::Parser;
use guesthouse_tenants::Registry;
use serde_json::{Value, json};
use std::path::PathBuf;
use tempfile::TempDir;

struct Place {
    folder: TempDir,
    state: PathBuf,
}

fn place() -> Place {
    let folder = tempfile::tempdir().unwrap();
    let state = folder.path().join("data").join("state.db");
    Place { folder, state }
}

impl Place {
    /// What `guesthouse tenant LINE` prints.
    fn run(&self, line: &str) -> Result<String> {
        let state = self.state.display();
        let line = format!("guesthouse tenant {line} --state {state}");
        let cli = Cli::try_parse_from(line.split_whitespace())?;
        let Command::Tenant(command) = cli.command else {
            panic!("another command");
        };
        let mut out = Vec::new();
        TenantCommand::write(command, &mut out)?;
        Ok(String::from_utf8(out).unwrap())
    }

    fn list(&self) -> Value {
        serde_json::from_str(&self.run("list --json").unwrap()).unwrap()
    }

    fn registry(&self) -> Registry {
        Registry::open(&self.state).unwrap()
    }
}

#[test]
fn a_key_is_all_that_is_printed() {
    let place = place();
    let line = "add acme --weight 3 --priority -2 --requests-per-minute 60 --kv-blocks none --models a,b --uploads";
    let first = place.run(line).unwrap();
    let key = first.strip_suffix('\n').unwrap();
    let tenant = place.registry().authenticate(key).unwrap();
    assert_eq!(tenant.id.as_str(), "acme");
    let policy = &place.list()[0]["policy"];
    assert_eq!(
        (&policy["weight"], &policy["priority"], &policy["uploads"]),
        (&json!(3), &json!(-2), &json!(true))
    );
    assert_eq!(policy["quotas"], json!({"requests_per_minute": 60}));
    assert_eq!(policy["models"], json!({"only": ["a", "b"]}));

    let second = place.run("rotate acme --keep-old 60").unwrap();
    let registry = place.registry();
    assert!(registry.authenticate(key).is_some());
    assert!(registry.authenticate(second.trim_end()).is_some());
    let third = place.run("rotate acme").unwrap();
    let registry = place.registry();
    assert!(registry.authenticate(second.trim_end()).is_none());
    assert!(registry.authenticate(third.trim_end()).is_some());
    let shown = place.run("list --json").unwrap() + &place.run("list").unwrap();
    assert!(!shown.contains(third.trim_end()) && !shown.contains("sha256"));

    assert_eq!(place.run("remove acme").unwrap(), "");
    assert_eq!(place.list(), json!([]));
    assert!(place.registry().requires_key());
}

#[test]
fn what_is_not_mentioned_stays() {
    let place = place();
    place
        .run("add acme --weight 3 --tokens-per-minute 9")
        .unwrap();
    assert_eq!(place.run("set acme --kv-blocks 7 --models a").unwrap(), "");
    let policy = |place: &Place| place.list()[0]["policy"].clone();
    assert_eq!(policy(&place)["weight"], 3);
    let quotas = json!({"tokens_per_minute": 9, "kv_blocks": 7});
    assert_eq!(policy(&place)["quotas"], quotas);
    let back = "set acme --tokens-per-minute none --models * --uploads false";
    place.run(back).unwrap();
    assert_eq!(policy(&place)["quotas"], json!({"kv_blocks": 7}));
    assert_eq!(policy(&place)["models"], "all");

    // A file is all of it, with what the line says.
    let file = place.folder.path().join("p.json");
    let whole = json!({"priority": 4, "pins": {"*": {"chat": "house"}}});
    std::fs::write(&file, whole.to_string()).unwrap();
    let line = format!("set acme --weight 8 --policy {}", file.display());
    place.run(&line).unwrap();
    let found = policy(&place);
    assert_eq!(
        (&found["weight"], &found["priority"]),
        (&json!(8), &json!(4))
    );
    assert_eq!(found["quotas"], json!({}));
    assert_eq!(found["pins"]["*"]["chat"], "house");
    let table = place.run("list").unwrap();
    assert!(
        table.lines().nth(1).unwrap().starts_with("acme "),
        "{table}"
    );
}

#[test]
fn nonsense_is_refused_and_changes_nothing() {
    let place = place();
    let file = place.folder.path().join("p.json");
    std::fs::write(&file, r#"{"quotas": {"kv_block": 1}}"#).unwrap();
    let add_file = format!("add b --policy {}", file.display());
    place.run("add acme").unwrap();
    let before = place.list();
    for (line, words) in [
        ("add acme", "already"),
        ("add Acme", "a-z"),
        ("add key-1", "--api-key"),
        ("add b --weight 0", "at least 1"),
        ("add b --kv-blocks 4294967296", "quotas.kv_blocks"),
        ("add b --kv-blocks few", "none"),
        ("add b --policy /no/such/file", "/no/such/file"),
        (&add_file, "kv_blocks"),
        ("set b --weight 2", "no tenant 'b'"),
        ("rotate b", "no tenant 'b'"),
        ("remove b", "no tenant 'b'"),
    ] {
        let error = format!("{:#}", place.run(line).unwrap_err());
        assert!(error.contains(words), "{line}: {error}");
    }
    assert_eq!(place.list(), before);
}

#[test]
fn only_making_commands_make_the_file() {
    let place = place();
    for line in ["list", "rotate a", "remove a", "set a --weight 2"] {
        let error = place.run(line).unwrap_err().to_string();
        assert!(error.contains("no file of tenants"), "{line}: {error}");
    }
    assert!(!place.state.exists());
    assert_eq!(place.run("init").unwrap(), "");
    assert!(place.registry().requires_key());
    let key = place.run("add acme").unwrap();
    assert_eq!(place.run("init").unwrap(), "");
    assert!(place.registry().authenticate(key.trim_end()).is_some());
}
