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
