//! Checks of a module's bytes before the compiler sees them.

mod validate;

use wasmparser::{Chunk, Encoding, Parser, Payload};

use crate::{ComponentError, Origin, Role};

pub(crate) use validate::validate;

/// The version of the role packages that this host has.
const VERSION: (u64, u64) = (0, 1);

/// Largest module of each origin, bytes.
const BYTES_OWN: u64 = 128 << 20;
const BYTES_TENANT: u64 = 32 << 20;
/// Core functions with a body.
const FUNCTIONS: u64 = 200_000;
/// Bytes of one body: CPython's interpreter loop has 0.3 MB. Compile time grows faster than the body.
const BODY: u64 = 4 << 20;
/// Components and core modules inside each other.
const NESTING: usize = 8;
/// Core modules and inner components.
const PARTS: u64 = 256;
/// Imports of the component.
const IMPORTS: usize = 200;
/// Types, of core modules and components together.
const TYPES: u64 = 200_000;
/// Imports and exports of core modules: shared libraries have tens of thousands.
const CORE_NAMES: u64 = 200_000;
/// Globals, of all core modules.
const GLOBALS: u64 = 200_000;
/// Memories and tables, each, of all core modules.
const MEMORIES: u64 = 1_000;
/// Element and data segments, each, of all core modules.
const SEGMENTS: u64 = 100_000;
/// Aliases, instances and canonical functions of components.
const COMPONENT_ITEMS: u64 = 200_000;
/// Custom sections.
const CUSTOM: u64 = 10_000;
/// Bytes of one name of an import, an export or a section.
const NAME_BYTES: u64 = 4 << 10;

/// What a module is, as its own imports and exports say.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Summary {
    pub(crate) role: Role,
    /// Has the interface for stepping (samplers only).
    pub(crate) steps: bool,
    pub(crate) imports: Vec<String>,
    /// Imports WASI interfaces.
    pub(crate) wasi: bool,
}

/// Parses the outline of `bytes` and checks it. Types are checked later, by the compiler.
pub(crate) fn check(module: &str, bytes: &[u8], origin: Origin) -> Result<Summary, ComponentError> {
    let limit = match origin {
        Origin::Embedded | Origin::File => BYTES_OWN,
        Origin::Tenant => BYTES_TENANT,
    };
    at_most(module, "its size in bytes", bytes.len() as u64, limit)?;
    if !bytes.starts_with(b"\0asm") {
        let found = if bytes.is_empty() {
            "nothing"
        } else {
            "something that is not WebAssembly"
        };
        return Err(ComponentError::NotAComponent {
            module: module.into(),
            found: found.into(),
        });
    }
    let outline = outline(module, bytes)?;
    let (role, steps) = role(module, &outline.exports)?;
    let wasi = imports(module, role, &outline.imports)?;
    Ok(Summary {
        role,
        steps,
        imports: outline.imports,
        wasi,
    })
}

#[derive(Default)]
struct Outline {
    imports: Vec<String>,
    exports: Vec<String>,
}

fn outline(module: &str, bytes: &[u8]) -> Result<Outline, ComponentError> {
    let malformed = |error: &wasmparser::BinaryReaderError| malformed(module, error);
    let mut outline = Outline::default();
    let mut counts = Counts::default();
    let mut at = 0;
    // Enclosing parsers, outermost first; empty at the top level.
    let mut outer = Vec::new();
    let mut parser = Parser::new(0);
    loop {
        let Chunk::Parsed { consumed, payload } = parser
            .parse(&bytes[at..], true)
            .map_err(|e| malformed(&e))?
        else {
            let reason = "cut off".into();
            return Err(ComponentError::Malformed {
                module: module.into(),
                offset: at as u64,
                reason,
            });
        };
        at += consumed;
        counts.add(module, &payload)?;
        match payload {
            Payload::Version {
                encoding: Encoding::Module,
                ..
            } if outer.is_empty() => {
                let found = "a core module".into();
                return Err(ComponentError::NotAComponent {
                    module: module.into(),
                    found,
                });
            }
            Payload::ComponentImportSection(section) if outer.is_empty() => {
                for import in section {
                    let name = import.map_err(|e| malformed(&e))?.name.name;
                    short(module, name)?;
                    outline.imports.push(name.to_owned());
                    let imports = outline.imports.len() as u64;
                    at_most(module, "its number of imports", imports, IMPORTS as u64)?;
                }
            }
            Payload::ComponentExportSection(section) if outer.is_empty() => {
                for export in section {
                    let name = export.map_err(|e| malformed(&e))?.name.name;
                    short(module, name)?;
                    outline.exports.push(name.to_owned());
                    let exports = outline.exports.len() as u64;
                    at_most(module, "its number of exports", exports, IMPORTS as u64)?;
                }
            }
            Payload::ImportSection(section) => {
                for import in section.into_imports() {
                    let import = import.map_err(|e| malformed(&e))?;
                    short(module, import.module)?;
                    short(module, import.name)?;
                }
            }
            Payload::ExportSection(section) => {
                for export in section {
                    short(module, export.map_err(|e| malformed(&e))?.name)?;
                }
            }
            Payload::CustomSection(section) => short(module, section.name())?,
            Payload::CodeSectionEntry(body) => {
                at_most(
                    module,
                    "the size of one of its functions",
                    body.as_bytes().len() as u64,
                    BODY,
                )?;
            }
            Payload::ModuleSection { parser: inner, .. }
            | Payload::ComponentSection { parser: inner, .. } => {
                outer.push(std::mem::replace(&mut parser, inner));
                at_most(module, "its nesting", outer.len() as u64, NESTING as u64)?;
            }
            Payload::End(_) => match outer.pop() {
                Some(enclosing) => parser = enclosing,
                None => return Ok(outline),
            },
            _ => {}
        }
    }
}

/// Items so far, of all core modules and components together.
#[derive(Default)]
struct Counts {
    functions: u64,
    parts: u64,
    types: u64,
    names: u64,
    globals: u64,
    memories: u64,
    tables: u64,
    elements: u64,
    data: u64,
    items: u64,
    custom: u64,
}

impl Counts {
    /// Counts what a section says it holds, before any of it is read.
    fn add(&mut self, module: &str, payload: &Payload<'_>) -> Result<(), ComponentError> {
        let (total, more, what, limit) = match payload {
            Payload::CodeSectionStart { count, .. } => (
                &mut self.functions,
                *count,
                "its number of functions",
                FUNCTIONS,
            ),
            Payload::ModuleSection { .. } | Payload::ComponentSection { .. } => {
                (&mut self.parts, 1, "its number of inner modules", PARTS)
            }
            Payload::TypeSection(s) => (&mut self.types, s.count(), "its number of types", TYPES),
            Payload::CoreTypeSection(s) => {
                (&mut self.types, s.count(), "its number of types", TYPES)
            }
            Payload::ComponentTypeSection(s) => {
                (&mut self.types, s.count(), "its number of types", TYPES)
            }
            Payload::ImportSection(s) => (
                &mut self.names,
                s.count(),
                "its number of core imports and exports",
                CORE_NAMES,
            ),
            Payload::ExportSection(s) => (
                &mut self.names,
                s.count(),
                "its number of core imports and exports",
                CORE_NAMES,
            ),
            Payload::GlobalSection(s) => (
                &mut self.globals,
                s.count(),
                "its number of globals",
                GLOBALS,
            ),
            Payload::MemorySection(s) => (
                &mut self.memories,
                s.count(),
                "its number of memories",
                MEMORIES,
            ),
            Payload::TableSection(s) => (
                &mut self.tables,
                s.count(),
                "its number of tables",
                MEMORIES,
            ),
            Payload::ElementSection(s) => (
                &mut self.elements,
                s.count(),
                "its number of element segments",
                SEGMENTS,
            ),
            Payload::DataSection(s) => (
                &mut self.data,
                s.count(),
                "its number of data segments",
                SEGMENTS,
            ),
            Payload::InstanceSection(s) => (&mut self.items, s.count(), ITEMS, COMPONENT_ITEMS),
            Payload::ComponentInstanceSection(s) => {
                (&mut self.items, s.count(), ITEMS, COMPONENT_ITEMS)
            }
            Payload::ComponentAliasSection(s) => {
                (&mut self.items, s.count(), ITEMS, COMPONENT_ITEMS)
            }
            Payload::ComponentCanonicalSection(s) => {
                (&mut self.items, s.count(), ITEMS, COMPONENT_ITEMS)
            }
            Payload::CustomSection(_) => {
                (&mut self.custom, 1, "its number of custom sections", CUSTOM)
            }
            _ => return Ok(()),
        };
        *total += u64::from(more);
        at_most(module, what, *total, limit)
    }
}

const ITEMS: &str = "its number of aliases, instances and canonical functions";

fn short(module: &str, name: &str) -> Result<(), ComponentError> {
    at_most(
        module,
        "the length of one of its names",
        name.len() as u64,
        NAME_BYTES,
    )
}

fn malformed(module: &str, error: &wasmparser::BinaryReaderError) -> ComponentError {
    ComponentError::Malformed {
        module: module.into(),
        offset: error.offset() as u64,
        reason: error.message().into(),
    }
}

fn at_most(module: &str, what: &'static str, found: u64, limit: u64) -> Result<(), ComponentError> {
    if found > limit {
        return Err(ComponentError::TooLarge {
            module: module.into(),
            what,
            found,
            limit,
        });
    }
    Ok(())
}

/// `package:name/interface@version`, split.
struct Interface<'a> {
    path: &'a str,
    version: Option<(u64, u64)>,
}

fn interface(name: &str) -> Interface<'_> {
    let (path, version) = name.split_once('@').unwrap_or((name, ""));
    let mut numbers = version.split('.').map_while(|n| n.parse().ok());
    Interface {
        path,
        version: numbers.next().zip(numbers.next()),
    }
}

/// Refuses interfaces of ours in a version this host does not have.
fn same_version(module: &str, name: &str) -> Result<(), ComponentError> {
    let found = interface(name);
    if found.version == Some(VERSION) {
        return Ok(());
    }
    let expected = format!("{}@{}.{}.x", found.path, VERSION.0, VERSION.1);
    Err(ComponentError::Version {
        module: module.into(),
        found: name.into(),
        expected,
    })
}

fn role(module: &str, exports: &[String]) -> Result<(Role, bool), ComponentError> {
    let mut roles = Vec::new();
    let (mut parsing, mut steps) = (false, false);
    let ours = exports
        .iter()
        .filter(|name| name.starts_with("guesthouse:"));
    for name in ours.clone() {
        match interface(name).path {
            "guesthouse:graph/model" => roles.push(Role::Graph),
            "guesthouse:chat/template" => roles.push(Role::Chat),
            "guesthouse:sampling/plan" => roles.push(Role::Sampler),
            "guesthouse:chat/parsing" => parsing = true,
            // Optional, and calls for nothing else.
            "guesthouse:chat/matching" => {}
            "guesthouse:sampling/stepping" => steps = true,
            _ => continue,
        }
        same_version(module, name)?;
    }
    let complete = match roles[..] {
        [Role::Graph] => !parsing && !steps,
        [Role::Chat] => parsing && !steps,
        [Role::Sampler] => !parsing,
        _ => false,
    };
    if !complete {
        let names: Vec<_> = ours.map(String::as_str).collect();
        let found = if names.is_empty() {
            "none".to_owned()
        } else {
            names.join(", ")
        };
        return Err(ComponentError::Roles {
            module: module.into(),
            found,
        });
    }
    Ok((roles[0], steps))
}

/// Returns whether WASI is among the imports.
fn imports(module: &str, role: Role, imports: &[String]) -> Result<bool, ComponentError> {
    let mut wasi = false;
    for name in imports {
        let path = interface(name).path;
        match path {
            "guesthouse:common/log" | "guesthouse:common/types" => same_version(module, name)?,
            "guesthouse:graph/builder" if role == Role::Graph => same_version(module, name)?,
            _ if wasi_packages(role)
                .iter()
                .any(|package| path.starts_with(package)) =>
            {
                wasi = true;
            }
            _ => {
                return Err(ComponentError::ForbiddenImport {
                    module: module.into(),
                    import: name.clone(),
                    role,
                    allowed: allowed(role),
                });
            }
        }
    }
    Ok(wasi)
}

/// WASI packages that have an empty form for the role.
fn wasi_packages(role: Role) -> &'static [&'static str] {
    match role {
        Role::Graph | Role::Chat => &[
            "wasi:cli/",
            "wasi:clocks/",
            "wasi:filesystem/",
            "wasi:io/",
            "wasi:random/",
            "wasi:sockets/",
        ],
        Role::Sampler => &["wasi:cli/", "wasi:io/", "wasi:random/"],
    }
}

fn allowed(role: Role) -> &'static str {
    match role {
        Role::Graph => "guesthouse:graph/builder, guesthouse:common/log and WASI 0.2",
        Role::Chat => "guesthouse:common/log and WASI 0.2",
        Role::Sampler => "guesthouse:common/log and the parts of WASI 0.2 that every program links",
    }
}

#[cfg(test)]
mod tests;
