#![allow(clippy::unwrap_used)]

use super::*;

#[test]
fn headers_name_gpus_and_definitions() {
    let text = "// arch: sm_80+\n// variants: MODEL_BF16 HEAD_DIM=128; MODEL_F16\n// variants: MODEL_F32\n#include \"x\"\n// arch: sm_90a\n";
    let header = Header::parse(text).unwrap();
    assert_eq!(header.arch, Arch::From(80));
    assert_eq!(
        header.variants,
        [
            vec!["MODEL_BF16", "HEAD_DIM=128"],
            vec!["MODEL_F16"],
            vec!["MODEL_F32"]
        ]
    );
    let only = Header::parse("// arch: sm_90a\n// variants: X\n").unwrap();
    assert_eq!(only.arch, Arch::Only(90));
    assert!(only.arch.covers(90) && !only.arch.covers(100));
    assert!(Arch::From(80).covers(89) && !Arch::From(80).covers(75));
}

#[test]
fn a_file_without_definitions_compiles_once() {
    let header = Header::parse("// arch: sm_80+\n// variants:\n").unwrap();
    assert_eq!(header.variants, [Vec::<&str>::new()]);
}

#[test]
fn incomplete_headers_are_refused() {
    for text in [
        "",
        "#include",
        "// variants: X\n",
        "// arch: sm_80+\n",
        "// arch: 80\n// variants: X\n",
        "// arch: sm_80\n// variants: X\n",
        "\n// arch: sm_80+\n// variants: X\n",
    ] {
        assert_eq!(Header::parse(text), None, "{text:?}");
    }
}

#[test]
fn sources_are_sorted_and_found() {
    assert!(crate::SOURCES.is_sorted_by(|a, b| a.0 < b.0));
    for (path, text) in crate::SOURCES {
        assert_eq!(crate::source(path), Some(*text));
    }
    assert_eq!(crate::source("include/none.cuh"), None);
}
