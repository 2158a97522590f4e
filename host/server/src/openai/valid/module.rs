//! Which sampler module a request is for.

use super::super::{ApiError, SamplingFields};
use super::ModelFacts;
use super::range::count;
use crate::model::store::ModuleName;
use serde_json::{Map, Value, json};

/// Beam search's module.
const BEAM: &str = "beam";
/// Chooses the likeliest of several answers.
const BEST_OF: &str = "best-of";

/// A module by name, and how many candidates it makes.
pub(super) struct ModuleChoice {
    /// `None`: the model's own.
    pub(super) module: Option<String>,
    best_of: Option<u32>,
}

impl ModuleChoice {
    pub(super) fn new(
        fields: &SamplingFields,
        n: u32,
        facts: &ModelFacts,
    ) -> Result<Self, ApiError> {
        let best_of = count("best_of", fields.best_of, 1, facts.max_n)?;
        if let Some(best_of) = best_of.filter(|best_of| *best_of < n) {
            return Err(ApiError::invalid(
                "best_of",
                format!("`best_of` is {best_of}, below `n` of {n}; at least as many must be made"),
            ));
        }
        let implied = match (fields.use_beam_search, best_of) {
            (Some(true), _) => Some((BEAM, "use_beam_search")),
            (_, Some(best_of)) if best_of > n => Some((BEST_OF, "best_of")),
            _ => None,
        };
        let named = fields.sampler.as_deref();
        if let Some(name) = named
            && let Err(error) = ModuleName::parse(name)
        {
            return Err(ApiError::invalid("sampler", format!("`sampler`: {error}")));
        }
        // Whoever names a module gives `best_of` its meaning.
        if let (Some(name), Some((module, "use_beam_search"))) = (named, implied)
            && name != module
        {
            return Err(ApiError::invalid(
                "sampler",
                format!(
                    "`use_beam_search` needs the sampler \"{module}\", but `sampler` is \"{name}\"; leave one of them out"
                ),
            ));
        }
        Ok(Self {
            module: named
                .or(implied.map(|(module, _)| module))
                .map(str::to_owned),
            best_of,
        })
    }

    /// Tells a module what the standard one does not need.
    pub(super) fn describe(
        &self,
        fields: &SamplingFields,
        n: u32,
        request: &mut Map<String, Value>,
    ) {
        if self.module.is_none() && fields.sampler_args.is_none() {
            return;
        }
        request.insert("n".to_owned(), json!(n));
        if let Some(best_of) = self.best_of {
            request.insert("best_of".to_owned(), json!(best_of));
        }
        if let Some(penalty) = fields.length_penalty {
            request.insert("length_penalty".to_owned(), json!(penalty));
        }
        if let Some(stopping) = &fields.early_stopping {
            request.insert("early_stopping".to_owned(), stopping.clone());
        }
        if let Some(args) = &fields.sampler_args {
            request.insert("sampler_args".to_owned(), Value::Object(args.clone()));
        }
    }
}
