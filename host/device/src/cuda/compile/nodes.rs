//! One instruction per operation.

use guesthouse_graph::Node;

use super::Compiler;
use crate::error::Result;

/// Ropes that have a table already.
#[derive(Default)]
pub(crate) struct Ropes {}

impl Compiler<'_, '_> {
    pub(super) fn node(&mut self, _index: usize, node: &Node) -> Result<()> {
        Err(self.unsupported(node, "is not wired in yet"))
    }
}
