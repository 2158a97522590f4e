#![allow(clippy::unwrap_used, clippy::panic)]

use super::*;

fn project(name: &str, path: &Path, sdk: &str) -> Project {
    Project {
        name: name.to_owned(),
        path: Some(path.to_owned()),
        sdk: sdk.to_owned(),
    }
}

fn new(name: &str, path: &Path, sdk: &str) -> NewModel {
    NewModel {
        project: project(name, path, sdk),
        architecture: None,
    }
}

#[test]
fn a_project_is_complete_and_names_its_sdk() {
    let folder = tempfile::tempdir().unwrap();
    let project = folder.path().join("x");
    new("my-model2", &project, "0.1.0").run().unwrap();
    for (path, _) in MODEL {
        let text = fs::read_to_string(project.join(path)).unwrap();
        assert!(!text.contains("{{"), "{path} has an unfilled place");
    }
    let manifest = fs::read_to_string(project.join("Cargo.toml")).unwrap();
    assert!(manifest.contains(r#"guesthouse-sdk = { version = "0.1.0", features = ["graph"] }"#));
    let code = fs::read_to_string(project.join("src/lib.rs")).unwrap();
    assert!(code.contains(r#"&["MyModel2ForCausalLM"]"#));
    assert!(
        code.lines().count() < 100,
        "the template is an example of brevity"
    );
    let again = new("my-model2", &project, "0.1.0").run().unwrap_err();
    assert!(again.to_string().contains("not empty"), "{again}");
}

#[test]
fn a_sampler_project_is_complete() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("x");
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let sdk = here.join("../../guests/sdk");
    let project = project("my-sampler", &path, sdk.to_str().unwrap());
    NewSampler { project }.run().unwrap();
    for (file, _) in SAMPLER {
        let text = fs::read_to_string(path.join(file)).unwrap();
        assert!(!text.contains("{{"), "{file} has an unfilled place");
    }
    let manifest = fs::read_to_string(path.join("Cargo.toml")).unwrap();
    let full = sdk.canonicalize().unwrap();
    let step = format!("guesthouse-sdk-step = {{ path = {:?} }}", full.join("step"));
    assert!(manifest.contains(&step), "{manifest}");
}

#[test]
fn the_sdk_of_a_checkout_is_named_by_its_full_path() {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let found = sdk(here.join("../../guests/sdk").to_str().unwrap(), "").unwrap();
    let full = here.join("../../guests/sdk").canonicalize().unwrap();
    assert_eq!(found, format!("path = {:?}", full.to_str().unwrap()));
    for wrong in ["../no/such/folder", "latest", "1.0\"", ""] {
        assert!(sdk(wrong, "").is_err(), "{wrong:?}");
    }
}

#[test]
fn names_are_those_of_modules_and_classes() {
    for wrong in ["", "-a", "a-", "A", "a_b", "a/b", "1a"] {
        assert!(project_name(wrong).is_err(), "{wrong:?}");
    }
    assert!(architecture_name("1Model").is_err() && architecture_name("My Model").is_err());
    assert_eq!(camel_case("nope-relu2"), "NopeRelu2");
}
