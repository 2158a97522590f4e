#![allow(clippy::unwrap_used)]
use super::*;
use crate::cache::compatibility;
use crate::precheck::validate;

#[test]
fn the_compiler_makes_code_for_the_engine_that_runs_it() {
    let pool = crate::PoolSizes {
        graph: 1,
        chat: 1,
        sampler: 1,
        step: 1,
    };
    for clock in [Clock::Time, Clock::Fuel] {
        let config = RuntimeConfig {
            pool: pool.clone(),
            clock,
            ..RuntimeConfig::default()
        };
        let running = compatibility(&engine(&config).unwrap());
        assert_eq!(running, compatibility(&compiler(clock).unwrap()));
    }
}

/// A component of one core module with this text.
fn around(core: &str) -> Vec<u8> {
    wat::parse_str(format!("(component (core module {core}))")).unwrap()
}

#[test]
fn validation_takes_what_the_engine_takes() {
    let engine = compiler(Clock::Time).unwrap();
    for (core, taken) in [
        ("(memory i64 1)", true),
        ("(memory 1) (memory 1)", true),
        ("(func (result v128) v128.const i64x2 0 0)", true),
        ("(func $f return_call $f)", true),
        ("(func (param (ref func)))", true),
        ("(memory 1 1 shared)", false),
        ("(tag)", false),
        ("(type (struct))", false),
        ("(memory 1 (pagesize 1))", false),
        ("(func (result i32) i64.const 0)", false),
    ] {
        let bytes = around(core);
        let ours = validate("m", &bytes, FEATURES);
        let theirs = engine.precompile_component(&bytes);
        assert_eq!(ours.is_ok(), taken, "{core}: {ours:?}");
        assert_eq!(theirs.is_ok(), taken, "{core}: {:?}", theirs.err());
    }
}
