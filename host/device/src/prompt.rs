//! What a plan derives from a sequence's prompt: the prefix that sees itself whole, and GLM's two-dimensional positions.

use guesthouse_engine::TokenId;
use guesthouse_graph::{Attention, Graph, Mask, Op, PositionScheme};

use crate::error::{DeviceError, Result};

#[cfg(test)]
mod tests;

/// How a plan reads prompts; made once when a model is loaded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PromptRules {
    prefix: Option<Prefix>,
    glm: Option<GlmIds>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Prefix {
    /// All of the prompt.
    Whole,
    /// What precedes the first such token.
    Before(TokenId),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct GlmIds {
    mask: TokenId,
    gmask: TokenId,
    bos: TokenId,
}

/// What the rules find in one prompt.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PromptMarks {
    /// Positions below it see each other; 0 where attention is causal.
    pub prefix_len: u32,
    /// GLM's first position of tokens from `block_start` on.
    pub mask_at: u32,
    /// Position at which GLM's block positions begin, with 1.
    pub block_start: u32,
}

impl PromptRules {
    /// The rules of a graph.
    ///
    /// # Errors
    /// When layers disagree: a sequence has one prefix and one kind of two-dimensional positions.
    pub(crate) fn of(graph: &Graph) -> Result<Self> {
        let mut rules = Self::default();
        for node in &graph.nodes {
            match &node.op {
                Op::Positions(PositionScheme::Glm2d { mask, gmask, bos }) => {
                    let (mask, gmask, bos) = (*mask, *gmask, *bos);
                    agree(
                        "two-dimensional positions",
                        &mut rules.glm,
                        GlmIds { mask, gmask, bos },
                    )?;
                }
                Op::Attention(a) | Op::PagedAttention(a) => {
                    if let Some(prefix) = prefix(a) {
                        agree("prefixes", &mut rules.prefix, prefix)?;
                    }
                }
                _ => {}
            }
        }
        Ok(rules)
    }

    /// Whether a prompt must run in one step, since its tokens see those after them.
    #[must_use]
    pub fn whole_prompt(&self) -> bool {
        self.prefix.is_some()
    }

    /// Applies them to a prompt, which is not empty.
    #[must_use]
    pub fn marks(&self, prompt: &[TokenId]) -> PromptMarks {
        let find = |token: TokenId| prompt.iter().position(|&t| t == token).map(|at| at as u32);
        let len = prompt.len() as u32;
        let prefix_len = match self.prefix {
            None => 0,
            Some(Prefix::Whole) => len,
            Some(Prefix::Before(marker)) => find(marker).unwrap_or(len),
        };
        let Some(GlmIds { mask, gmask, bos }) = self.glm else {
            return PromptMarks {
                prefix_len,
                ..PromptMarks::default()
            };
        };
        PromptMarks {
            prefix_len,
            mask_at: find(gmask)
                .or_else(|| find(mask))
                .unwrap_or(len.saturating_sub(1)),
            block_start: find(bos).unwrap_or(len),
        }
    }
}

impl PromptMarks {
    /// Positions that a query at `position` sees end before this one; at most `kv_len` are written.
    #[must_use]
    pub fn visible_to(&self, position: u32, kv_len: u32) -> u32 {
        (position + 1).max(self.prefix_len.min(kv_len))
    }

    /// GLM's position and block position.
    #[must_use]
    pub fn glm(&self, position: u32) -> [u32; 2] {
        if position < self.block_start {
            [position, 0]
        } else {
            [self.mask_at, position - self.block_start + 1]
        }
    }
}

fn prefix(attention: &Attention) -> Option<Prefix> {
    match attention.mask {
        Mask::Causal => None,
        Mask::PrefixLm => Some(Prefix::Whole),
        Mask::PrefixBefore { marker } => Some(Prefix::Before(marker)),
    }
}

fn agree<T: PartialEq>(what: &str, known: &mut Option<T>, new: T) -> Result<()> {
    if known.as_ref().is_some_and(|known| *known != new) {
        return Err(DeviceError::plan(format!("layers have different {what}")));
    }
    *known = Some(new);
    Ok(())
}
