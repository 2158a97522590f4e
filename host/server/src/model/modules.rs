//! Which guest does what for a model.

use crate::model::LoadError;
use guesthouse_component::{
    ChatModule, GraphModule, Module, Origin, Role, Runtime, SamplerModule, builtin,
};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Largest module file that is read, bytes.
const MAX_MODULE: u64 = 256 << 20;

/// Modules named by the administrator, by the file or as one of the built-in ones; the rest are chosen among those.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GuestChoice {
    /// Component that builds the graph.
    pub graph: Option<PathBuf>,
    /// Component that renders prompts.
    pub chat: Option<PathBuf>,
    /// Component that plans sampling.
    pub sampler: Option<PathBuf>,
}

/// Whether a model brings a chat template of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChatTemplate {
    /// It has one.
    Shipped,
    /// It has none.
    Absent,
}

/// A model's three guests.
#[derive(Clone)]
pub struct Modules {
    /// Builds the graph.
    pub graph: GraphModule,
    /// The same, for its name and digest.
    pub graph_module: Arc<Module>,
    /// Renders prompts.
    pub chat: ChatModule,
    /// Plans sampling.
    pub sampler: SamplerModule,
}

impl Modules {
    /// Loads the guests of a model that names `architectures`. One that ships no chat template gets the chat guest that says it
    /// is for such models, if there is one.
    ///
    /// # Errors
    /// When a module does not load, or none builds any of the architectures.
    pub fn choose(
        runtime: &Arc<Runtime>,
        choice: &GuestChoice,
        architectures: &[&str],
        template: ChatTemplate,
    ) -> Result<Self, LoadError> {
        let graph_module = match &choice.graph {
            Some(path) => named(runtime, Role::Graph, path)?,
            None => for_architecture(runtime, architectures)?,
        };
        let chat = match (&choice.chat, template) {
            (Some(path), _) => named(runtime, Role::Chat, path)?,
            (None, ChatTemplate::Shipped) => built_in(runtime, Role::Chat, TEMPLATES)?,
            (None, ChatTemplate::Absent) => match chat_for(runtime, architectures)? {
                Some(module) => module,
                None => built_in(runtime, Role::Chat, TEMPLATES)?,
            },
        };
        let sampler = match &choice.sampler {
            Some(path) => named(runtime, Role::Sampler, path)?,
            None => built_in(runtime, Role::Sampler, "standard")?,
        };
        Ok(Self {
            graph: graph_module.graph()?,
            graph_module,
            chat: chat.chat()?,
            sampler: sampler.sampler()?,
        })
    }
}

/// The chat guest that renders the templates that models ship.
const TEMPLATES: &str = "jinja";

/// A built-in module of that name, or the file.
fn named(runtime: &Arc<Runtime>, role: Role, path: &Path) -> Result<Arc<Module>, LoadError> {
    match path.to_str() {
        Some(name) if builtin::find(role, name).is_some() => built_in(runtime, role, name),
        _ => from_file(runtime, path),
    }
}

fn built_in(runtime: &Arc<Runtime>, role: Role, name: &str) -> Result<Arc<Module>, LoadError> {
    let guest = builtin::find(role, name).ok_or_else(|| LoadError::MissingBuiltin {
        name: name.to_owned(),
    })?;
    Ok(runtime.load(guest.name, guest.bytes, Origin::Embedded)?)
}

/// The first built-in chat guest that is for one of the architectures.
fn chat_for(runtime: &Arc<Runtime>, wanted: &[&str]) -> Result<Option<Arc<Module>>, LoadError> {
    for guest in builtin::ALL.iter().filter(|g| g.role == Role::Chat) {
        let module = runtime.load(guest.name, guest.bytes, Origin::Embedded)?;
        let served = module.chat()?.architectures()?;
        if served.iter().any(|a| wanted.contains(&a.as_str())) {
            return Ok(Some(module));
        }
    }
    Ok(None)
}

/// Loads a component file.
///
/// # Errors
/// When it cannot be read, is too large, or is not a guest.
pub fn from_file(runtime: &Arc<Runtime>, path: &Path) -> Result<Arc<Module>, LoadError> {
    let fail = |what: &str| LoadError::file(path, what);
    let length = std::fs::metadata(path)
        .map_err(|e| fail(&e.to_string()))?
        .len();
    if length > MAX_MODULE {
        return Err(fail(&format!(
            "has {length} bytes; at most {MAX_MODULE} are read"
        )));
    }
    let bytes = std::fs::read(path).map_err(|e| fail(&e.to_string()))?;
    let name = path
        .file_stem()
        .map_or_else(|| "module".into(), |s| s.to_string_lossy().into_owned());
    Ok(runtime.load(&name, &bytes, Origin::File)?)
}

/// The first built-in graph guest that builds one of the architectures.
fn for_architecture(runtime: &Arc<Runtime>, wanted: &[&str]) -> Result<Arc<Module>, LoadError> {
    let mut known = Vec::new();
    for guest in builtin::ALL.iter().filter(|g| g.role == Role::Graph) {
        let module = runtime.load(guest.name, guest.bytes, Origin::Embedded)?;
        let built = module.graph()?.architectures()?;
        if built.iter().any(|a| wanted.contains(&a.as_str())) {
            return Ok(module);
        }
        known.extend(built);
    }
    known.sort();
    let found = match wanted {
        [] => "this model, as its config.json names no `architectures`".to_owned(),
        names => format!("the architecture '{}'", names.join(", ")),
    };
    Err(LoadError::UnknownArchitecture {
        found,
        known: known.join(", "),
    })
}
