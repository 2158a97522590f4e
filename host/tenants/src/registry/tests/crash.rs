//! A process that writes is killed in the middle, again and again.

use super::super::Registry;
use super::{id, place};
use crate::Policy;
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

const FILE: &str = "GUESTHOUSE_TEST_CRASH_FILE";
const ROUNDS: u32 = 20;

/// The process that is killed: writes for ever, and tells what it begins and what was acknowledged.
#[test]
#[ignore = "a part of the test below"]
fn child() {
    let Some(path) = std::env::var_os(FILE) else {
        return;
    };
    let registry = Registry::open(Path::new(&path)).unwrap();
    let mut out = std::io::stdout().lock();
    let mut tell = |line: String| {
        writeln!(out, "{line}").unwrap();
        out.flush().unwrap();
    };
    let begun = std::process::id();
    for n in 0_u32.. {
        let name = format!("t{begun}-{n}");
        let (_, key) = registry.add(&id(&name), &Policy::default()).unwrap();
        tell(format!("key {name} {}", key.reveal()));
        let patch = serde_json::json!({"weight": n + 2});
        registry.patch_policy(&id(&name), &patch).unwrap();
        tell(format!("weight {name} {}", n + 2));
        match n % 3 {
            0 => {
                tell(format!("doubt {name}"));
                let key = registry.rotate(&id(&name), Duration::ZERO).unwrap();
                tell(format!("key {name} {}", key.reveal()));
            }
            1 => {
                tell(format!("doubt {name}"));
                registry.remove(&id(&name)).unwrap();
                tell(format!("gone {name}"));
            }
            _ => {}
        }
    }
}

/// What must be so after the kill.
#[derive(Default)]
struct Expected {
    keys: BTreeMap<String, String>,
    weights: BTreeMap<String, u32>,
    gone: Vec<String>,
}

impl Expected {
    fn take(&mut self, line: &str) {
        let words: Vec<&str> = line.split(' ').collect();
        match words[..] {
            ["key", name, key] => drop(self.keys.insert(name.to_owned(), key.to_owned())),
            ["weight", name, weight] => {
                self.weights
                    .insert(name.to_owned(), weight.parse().unwrap());
            }
            // Either is right until it is acknowledged.
            ["doubt", name] => drop(self.keys.remove(name)),
            ["gone", name] => self.gone.push(name.to_owned()),
            // The test harness speaks too.
            _ => {}
        }
    }

    fn check(&self, registry: &Registry) {
        for (name, key) in &self.keys {
            let tenant = registry.authenticate(key).unwrap();
            assert_eq!(tenant.id.as_str(), name);
            if let Some(weight) = self.weights.get(name) {
                assert_eq!(tenant.policy.weight, *weight, "{name}");
            }
        }
        for name in &self.gone {
            assert_eq!(registry.get(&id(name)), None);
        }
    }
}

#[test]
fn what_was_acknowledged_outlives_a_kill() {
    let place = place();
    let mut expected = Expected::default();
    for round in 0..ROUNDS {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "registry::tests::crash::child"])
            .args(["--ignored", "--nocapture", "--quiet"])
            .env(FILE, &place.path)
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let mut out = BufReader::new(child.stdout.take().unwrap());
        let mut lines = String::new();
        // Killed after another number of lines each time, in whatever it does then.
        for _ in 0..3 + 7 * (round % 5) {
            assert!(out.read_line(&mut lines).unwrap() > 0, "it ended by itself");
        }
        child.kill().unwrap();
        child.wait().unwrap();
        out.read_to_string(&mut lines).unwrap();
        // A line without an end was not told.
        let whole = lines.rfind('\n').map_or(0, |end| end + 1);
        lines[..whole].lines().for_each(|line| expected.take(line));

        let registry = Registry::open(&place.path).unwrap();
        expected.check(&registry);
        let sound: String = registry
            .read(|c| c.query_row("PRAGMA integrity_check", [], |row| row.get(0)))
            .unwrap();
        assert_eq!(sound, "ok");
    }
    assert!(expected.keys.len() > 20 && expected.gone.len() > 5);
}
