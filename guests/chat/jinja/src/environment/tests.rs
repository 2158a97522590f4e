//! Expected values are Jinja2 3.1.6's with transformers' settings, and C's `strftime`.
#![allow(clippy::unwrap_used)]

use super::*;

fn render(source: &str) -> String {
    environment(1_753_693_445)
        .unwrap()
        .render_str(source, ())
        .unwrap()
}

#[test]
fn filters_are_jinjas() {
    for (source, want) in [
        ("{{ 'a\\nb'|indent }}", "a\n    b"),
        ("{{ 'a\\n'|indent(2, first=true) }}|", "  a\n|"),
        ("{{ 'a\\n\\nb'|indent('> ', true, true) }}", "> a\n> \n> b"),
        ("{{ ''|indent(2, first=true) }}|", "  |"),
        (
            "{{ [1.0, none, true, 'x']|string }}",
            "[1.0, None, True, 'x']",
        ),
        ("{{ {'a': 'é<'}|tojson }}", "{\"a\": \"é<\"}"),
        ("{{ [1]|tojson(indent=2) }}", "[\n  1\n]"),
        (
            "{{ [1, {'a': 2}]|tojson(separators=(',', ':')) }}",
            "[1,{\"a\":2}]",
        ),
        ("{{ none }} {{ true }} {{ x }} {{ 1.0 }}", "None True  1.0"),
        (
            "{{ 'x' is sequence }} {{ {} is sequence }} {{ 1 is sequence }} {{ none is iterable }}",
            "True True False False",
        ),
        ("{{ [1, 2, 3][::-1] }} {{ 'abc'[1:] }}", "[3, 2, 1] bc"),
        ("  {% if true %}\n  x\n  {% endif %}\n", "  x\n"),
    ] {
        assert_eq!(render(source), want, "{source}");
    }
}

#[test]
fn the_clock_is_what_it_is_given() {
    assert_eq!(
        render(
            "{{ strftime_now('%Y-%m-%d %H:%M:%S %A %a %B %b %j %p %I %y %-d %e %F %T %Z %z %%') }}"
        ),
        "2025-07-28 09:04:05 Monday Mon July Jul 209 AM 09 25 28 28 2025-07-28 09:04:05 UTC +0000 %"
    );
    for (now, want) in [
        (0, "1970-01-01 Thu 001"),
        (951_782_400, "2000-02-29 Tue 060"),
        (1_704_067_199, "2023-12-31 Sun 365"),
        (1_735_603_200, "2024-12-31 Tue 366"),
        (4_107_542_400, "2100-03-01 Mon 060"),
    ] {
        assert_eq!(strftime(now, "%Y-%m-%d %a %j"), want);
    }
    assert_eq!(strftime(0, "%Q %"), "%Q %");
    strftime(u64::MAX / 1_000_000, "%Y");
}

#[test]
fn exceptions_carry_their_text() {
    let error = environment(0)
        .unwrap()
        .render_str("\n{{ raise_exception('no system role') }}", ())
        .unwrap_err();
    assert_eq!(
        crate::error::describe(&error),
        "no system role (line 2 of the chat template)"
    );
}

#[test]
fn recursion_ends_in_an_error() {
    let endless = "{% macro f(n) %}{{ f(n + 1) }}{% endmacro %}{{ f(0) }}";
    assert!(environment(0).unwrap().render_str(endless, ()).is_err());
}
