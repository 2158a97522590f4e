#![allow(clippy::unwrap_used)]
use super::*;

fn summary(text: &str) -> Result<Summary, ComponentError> {
    check("m", &wat::parse_str(text).unwrap(), Origin::File)
}

#[test]
fn a_sampler_may_step() {
    let steps = summary(
        r#"(component
            (import "guesthouse:common/log@0.1.3" (instance))
            (import "wasi:io/streams@0.2.6" (instance))
            (instance $i)
            (export "guesthouse:sampling/plan@0.1.0" (instance $i))
            (export "guesthouse:sampling/stepping@0.1.1" (instance $i)))"#,
    )
    .unwrap();
    assert_eq!(
        (steps.role, steps.steps, steps.wasi),
        (Role::Sampler, true, true)
    );
    assert_eq!(
        steps.imports,
        ["guesthouse:common/log@0.1.3", "wasi:io/streams@0.2.6"]
    );
}

#[test]
fn stepping_belongs_to_samplers() {
    let error = summary(
        r#"(component
            (instance $i)
            (export "guesthouse:graph/model@0.1.0" (instance $i))
            (export "guesthouse:sampling/stepping@0.1.0" (instance $i)))"#,
    )
    .unwrap_err();
    assert_eq!(error.label(), "roles");
}

#[test]
fn exports_inside_do_not_count() {
    let error = summary(
        r#"(component
            (component
                (instance $i)
                (export "guesthouse:sampling/plan@0.1.0" (instance $i))))"#,
    )
    .unwrap_err();
    assert_eq!(error.label(), "roles");
}

#[test]
fn nesting_is_bounded() {
    let deep = format!("{}{}", "(component ".repeat(10), ")".repeat(10));
    let error = summary(&deep).unwrap_err();
    assert_eq!(error.label(), "too_large");
    assert!(
        error
            .to_string()
            .contains("its nesting is 9, the limit is 8"),
        "{error}"
    );
}

#[test]
fn tenants_may_bring_less() {
    let mut big = wat::parse_str("(component)").unwrap();
    // A custom section of 33 MiB.
    let payload = 33_u32 << 20;
    let leb =
        |n: u32| (0..5).map(move |i| ((n >> (7 * i)) & 0x7f) as u8 | if i < 4 { 0x80 } else { 0 });
    big.push(0);
    big.extend(leb(payload));
    big.extend(std::iter::repeat_n(0, payload as usize));
    assert_eq!(
        check("m", &big, Origin::Tenant).unwrap_err().label(),
        "too_large"
    );
    assert_eq!(check("m", &big, Origin::File).unwrap_err().label(), "roles");
}

/// A sampler's component with a core module of this text.
fn with_core(core: &str) -> Vec<u8> {
    wat::parse_str(format!(
        r#"(component
            (core module {core})
            (instance $i)
            (export "guesthouse:sampling/plan@0.1.0" (instance $i)))"#
    ))
    .unwrap()
}

#[track_caller]
fn too_large(core: &str, what: &str) {
    let bytes = with_core(core);
    let checked = check("m", &bytes, Origin::File)
        .map(drop)
        .and_then(|()| validate("m", &bytes, crate::engine::FEATURES));
    let error = checked.unwrap_err();
    assert_eq!(error.label(), "too_large", "{error}");
    assert!(error.to_string().contains(what), "{error}");
}

#[test]
fn what_makes_compilers_slow_is_bounded() {
    let many = |item: &str, n: usize| item.repeat(n);
    too_large(&many("(type (func))", 200_001), "number of types");
    too_large(
        &many("(global i32 (i32.const 0))", 200_001),
        "number of globals",
    );
    too_large(&many("(data \"\")", 100_001), "number of data segments");
    too_large(&many("(elem func)", 100_001), "number of element segments");
    too_large(&many("(table 0 funcref)", 1_001), "number of tables");
    let long = format!("(func) (export \"{}\" (func 0))", "x".repeat(5000));
    too_large(&long, "length of one of its names");
    too_large(
        &format!("(func (local {}))", many("i32 ", 20_001)),
        "the locals",
    );
    let deep = format!("(func {} {})", many("block ", 5_000), many("end ", 5_000));
    too_large(&deep, "depth of its blocks");
    let table = format!("(func i32.const 0 br_table {})", many("0 ", 20_002));
    too_large(&table, "targets");
}

#[test]
fn validation_finds_what_the_outline_does_not() {
    let bytes = with_core("(func (result i32) i64.const 0)");
    assert!(check("m", &bytes, Origin::Tenant).is_ok());
    let error = validate("m", &bytes, crate::engine::FEATURES).unwrap_err();
    assert_eq!(error.label(), "malformed");
    assert!(error.to_string().contains("type mismatch"), "{error}");
    let mut more = with_core("");
    more.extend(b"more");
    let error = validate("m", &more, crate::engine::FEATURES).unwrap_err();
    assert!(error.to_string().contains("malformed at byte"), "{error}");
}

#[test]
fn built_in_guests_are_within_the_bounds() {
    for guest in crate::builtin::ALL {
        validate(guest.name, guest.bytes, crate::engine::FEATURES).unwrap();
    }
}
