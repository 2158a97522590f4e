#![allow(clippy::unwrap_used, clippy::panic)]
use super::*;
use crate::testing::Logs;
use rustix::process::dumpable_behavior;

#[test]
fn a_servers_memory_stays_its_own() {
    let logs = Logs::default();
    let before = std::panic::take_hook();
    let unwound = logs.during(|| {
        keep_memory_private();
        std::panic::catch_unwind(|| panic!("my secret prompt"))
    });
    std::panic::set_hook(before);
    assert!(unwound.is_err());
    let text = logs.text();
    assert!(
        text.contains("process/tests.rs:") && text.contains("panicked"),
        "{text}"
    );
    assert!(!text.contains("secret"), "{text}");

    let core = getrlimit(Resource::Core);
    assert_eq!((core.current, core.maximum), (Some(0), Some(0)));
    assert_eq!(dumpable_behavior().unwrap(), DumpableBehavior::NotDumpable);
}
