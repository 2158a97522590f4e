use std::path::Path;
use std::sync::{Arc, LazyLock};

use guesthouse_component::{
    CallContext, CodeSource, ComponentError, ModelFacts, Module, Origin, PoolSizes, Runtime,
    RuntimeConfig,
};

/// One engine for all tests; what they do to it must not matter to each other.
static RUNTIME: LazyLock<Arc<Runtime>> = LazyLock::new(|| {
    let pool = PoolSizes {
        graph: 4,
        chat: 16,
        sampler: 8,
        step: 256,
    };
    Runtime::new(RuntimeConfig {
        pool,
        ..RuntimeConfig::default()
    })
    .unwrap()
});

pub(crate) fn runtime() -> &'static Arc<Runtime> {
    &RUNTIME
}

/// Bytes of a testing guest.
pub(crate) fn bytes(name: &str) -> Vec<u8> {
    let file =
        Path::new(env!("GUESTHOUSE_GUESTS_DIR")).join(format!("guesthouse_testing_{name}.wasm"));
    std::fs::read(&file).unwrap_or_else(|error| panic!("{}: {error}", file.display()))
}

pub(crate) fn load(name: &str) -> Arc<Module> {
    runtime().load(name, &bytes(name), Origin::File).unwrap()
}

pub(crate) fn context() -> CallContext {
    CallContext::new("test", 1_700_000_000)
}

/// The error names the module, and says each of `parts`.
#[track_caller]
pub(crate) fn says(error: &ComponentError, label: &str, parts: &[&str]) {
    let text = error.to_string();
    assert_eq!(error.label(), label, "{text}");
    assert!(text.contains("hostile_"), "names the module: {text}");
    for part in parts {
        assert!(text.contains(part), "says {part:?}: {text}");
    }
}

/// Of a model of 10 tokens.
pub(crate) fn small_facts() -> ModelFacts {
    ModelFacts {
        vocab_size: 10,
        stop_tokens: vec![],
        max_len: 8,
        prompt_len: 4,
        max_tokens: 16,
        choices: 1,
    }
}

/// Lets a loaded `hostile_sampler` plan; where its code came from.
pub(crate) fn works(module: &Arc<Module>) -> Result<CodeSource, ComponentError> {
    let planned = module
        .sampler()?
        .plan("honest", &small_facts(), context())?;
    assert_eq!(planned.seed, Some(7), "what was loaded works");
    Ok(module.code_source())
}
