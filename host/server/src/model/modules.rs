//! Which guest does what for a model.

use crate::model::LoadError;
use crate::model::store::{Chosen, ModuleError, ModuleName, ModuleStore};
use guesthouse_component::{GraphModule, Module, Origin, Role, Runtime};
use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;

/// Largest module file that is read, bytes.
const MAX_MODULE: u64 = 256 << 20;

/// A module as the administrator names it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ModuleRef {
    /// A component file.
    File(PathBuf),
    /// One of the store: live or built in.
    Name(ModuleName),
}

impl FromStr for ModuleRef {
    type Err = ModuleError;

    /// What has a slash or ends in `.wasm` is a file.
    fn from_str(text: &str) -> Result<Self, ModuleError> {
        if text.starts_with(crate::oci::SCHEME) {
            return Err(ModuleError::Remote {
                found: text.to_owned(),
            });
        }
        let is_file = text.contains('/')
            || Path::new(text)
                .extension()
                .is_some_and(|e| e.eq_ignore_ascii_case("wasm"));
        if is_file {
            return Ok(Self::File(text.into()));
        }
        ModuleName::parse(text).map(Self::Name)
    }
}

impl fmt::Display for ModuleRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File(path) => path.display().fmt(f),
            Self::Name(name) => name.fmt(f),
        }
    }
}

/// Modules named by the administrator; the rest are chosen among those of the store.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GuestChoice {
    /// Component that builds the graph.
    pub graph: Option<ModuleRef>,
    /// Component that renders prompts.
    pub chat: Option<ModuleRef>,
    /// Component that plans sampling.
    pub sampler: Option<ModuleRef>,
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
    pub chat: Arc<Chosen>,
    /// Plans sampling.
    pub sampler: Arc<Chosen>,
}

impl Modules {
    /// Loads the guests of a model that names `architectures`. One that ships no chat template gets the chat guest that says it
    /// is for such models, if there is one.
    ///
    /// # Errors
    /// When a module does not load, or none builds any of the architectures.
    pub fn choose(
        store: &Arc<ModuleStore>,
        choice: &GuestChoice,
        architectures: &[&str],
        template: ChatTemplate,
    ) -> Result<Self, LoadError> {
        let graph_module = match &choice.graph {
            Some(ModuleRef::File(path)) => from_file(store.runtime(), path)?,
            Some(ModuleRef::Name(name)) => named(store, Role::Graph, name.as_str())?,
            None => for_architecture(store, architectures)?,
        };
        let chat = match (&choice.chat, template) {
            (Some(chat), _) => referred(store, Role::Chat, chat)?,
            (None, ChatTemplate::Shipped) => following(store, Role::Chat, TEMPLATES)?,
            (None, ChatTemplate::Absent) => match store.serving(Role::Chat, architectures)? {
                Ok(module) => following(store, Role::Chat, module.name())?,
                Err(_) => following(store, Role::Chat, TEMPLATES)?,
            },
        };
        let sampler = match &choice.sampler {
            Some(sampler) => referred(store, Role::Sampler, sampler)?,
            None => following(store, Role::Sampler, "standard")?,
        };
        Ok(Self {
            graph: graph_module.graph()?,
            graph_module,
            chat,
            sampler,
        })
    }
}

/// The chat guest that renders the templates that models ship.
const TEMPLATES: &str = "jinja";

/// The module that the administrator named for a role.
fn referred(
    store: &Arc<ModuleStore>,
    role: Role,
    module: &ModuleRef,
) -> Result<Arc<Chosen>, LoadError> {
    match module {
        ModuleRef::File(path) => {
            let module = from_file(store.runtime(), path)?;
            if module.role() != role {
                return Err(wrong_role(&module, role).into());
            }
            Ok(Chosen::fixed(module))
        }
        ModuleRef::Name(name) => following(store, role, name.as_str()),
    }
}

/// Whatever has the name.
fn following(store: &Arc<ModuleStore>, role: Role, name: &str) -> Result<Arc<Chosen>, LoadError> {
    let module = named(store, role, name)?;
    Ok(Chosen::following(store, name, module))
}

fn wrong_role(module: &Module, expected: Role) -> guesthouse_component::ComponentError {
    guesthouse_component::ComponentError::WrongRole {
        module: module.name().to_owned(),
        expected,
        found: module.role(),
    }
}

fn named(store: &ModuleStore, role: Role, name: &str) -> Result<Arc<Module>, LoadError> {
    store.named(role, name)?.ok_or_else(|| LoadError::NoModule {
        role,
        name: name.to_owned(),
    })
}

/// Reads a module's file.
///
/// # Errors
/// When it cannot be read or is too large.
pub fn read_module(path: &Path) -> Result<Vec<u8>, LoadError> {
    let fail = |what: &str| LoadError::file(path, what);
    let length = std::fs::metadata(path)
        .map_err(|e| fail(&e.to_string()))?
        .len();
    if length > MAX_MODULE {
        return Err(fail(&format!(
            "has {length} bytes; at most {MAX_MODULE} are read"
        )));
    }
    std::fs::read(path).map_err(|e| fail(&e.to_string()))
}

/// Loads a component file.
///
/// # Errors
/// When it cannot be read, is too large, or is not a guest.
pub fn from_file(runtime: &Arc<Runtime>, path: &Path) -> Result<Arc<Module>, LoadError> {
    let bytes = read_module(path)?;
    let name = path
        .file_stem()
        .map_or_else(|| "module".into(), |s| s.to_string_lossy().into_owned());
    Ok(runtime.load(&name, &bytes, Origin::File)?)
}

fn for_architecture(store: &ModuleStore, wanted: &[&str]) -> Result<Arc<Module>, LoadError> {
    store.serving(Role::Graph, wanted)?.map_err(|known| {
        let found = match wanted {
            [] => "this model, as its config.json names no `architectures`".to_owned(),
            names => format!("the architecture '{}'", names.join(", ")),
        };
        LoadError::UnknownArchitecture {
            found,
            known: known.join(", "),
        }
    })
}
