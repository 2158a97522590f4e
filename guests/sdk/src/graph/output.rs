//! What leaves a decoder.

use super::builder::{self, Pooling, Value, Weight};
use super::{Dims, Scope};
use crate::{Config, Error};

/// How an embedding model makes one vector of a prompt, as the model's files say beside `config.json`. The host passes it on
/// in the object `guesthouse.embedding`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Embedding {
    /// Which rows count.
    pub pooling: Pooling,
    /// Whether the vector is divided by its length.
    pub normalize: bool,
}

impl Embedding {
    /// None for a model that generates.
    pub fn from_config(config: &Config) -> Result<Option<Self>, Error> {
        let host = config.object("guesthouse")?;
        let Some(of) = host
            .map(|host| host.object("embedding"))
            .transpose()?
            .flatten()
        else {
            return Ok(None);
        };
        let pooling = match of.str("pooling")? {
            "last" => Pooling::Last,
            "mean" => Pooling::Mean,
            _ => return Err(of.wrong("pooling", "last or mean")),
        };
        Ok(Some(Self {
            pooling,
            normalize: of.flag("normalize", false)?,
        }))
    }
}

/// What a decoder ends with.
#[derive(Clone, Copy)]
pub struct Head<'a> {
    /// Place of `lm_head`.
    pub at: &'a Scope,
    /// The embedding table, where the config ties the two.
    pub tied: Option<Weight>,
    /// What [`Embedding::from_config`] found.
    pub embedding: Option<Embedding>,
}

impl Dims {
    /// The graph's output from the last layer's `x [hidden]`: through `norm`, then scores of the next token, or one vector
    /// of an embedding model.
    pub fn output(&self, x: Value, norm: impl Fn(Value) -> Value, head: &Head<'_>) {
        match head.embedding {
            Some(Embedding { pooling, normalize }) => {
                builder::output_embedding(norm(x), pooling, normalize);
            }
            None => {
                let x = norm(builder::gather_outputs(x));
                builder::output_logits(self.logits(x, head.tied, head.at));
            }
        }
    }
}
