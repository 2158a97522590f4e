//! The crate's error type.

/// Why a graph was refused.
///
/// `at` names the op and the scope it stands in, for instance "linear in layers.0.mlp".
#[non_exhaustive]
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum GraphError {
    /// Operands do not fit each other or the op.
    #[error("{at}: {found}; expected {expected}")]
    Shape {
        /// Op and scope.
        at: String,
        /// Operands with shapes and weight names.
        found: String,
        /// What the op takes.
        expected: String,
    },
    /// An operand has the wrong element type.
    #[error("{at}: {found}; expected {expected}; insert a cast")]
    Type {
        /// Op and scope.
        at: String,
        /// Operands with their types.
        found: String,
        /// What the op takes.
        expected: String,
    },
    /// Operands count different rows.
    #[error("{at}: {found}; expected {expected}")]
    Rows {
        /// Op and scope.
        at: String,
        /// Operands with their rows.
        found: String,
        /// What the op takes, and what to do.
        expected: String,
    },
    /// A parameter is out of range.
    #[error("{at}: {name} is {found}; expected {expected}")]
    Parameter {
        /// Op and scope.
        at: String,
        /// The parameter.
        name: &'static str,
        /// Its value.
        found: String,
        /// The values allowed.
        expected: String,
    },
    /// An op and its cache do not fit.
    #[error("{at}: {found}; expected {expected}")]
    Cache {
        /// Op and scope.
        at: String,
        /// The cache and the operands.
        found: String,
        /// What the op takes.
        expected: String,
    },
    /// The checkpoint has no such tensor.
    #[error(
        "{at}: the checkpoint has no tensor '{name}'{hint}; check that config.json belongs to these weights"
    )]
    MissingTensor {
        /// "param" and scope.
        at: String,
        /// The name asked for.
        name: String,
        /// Similar names that exist, or nothing.
        hint: String,
    },
    /// A weight's storage does not allow the operation.
    #[error("{at}: {weight} is stored as {scheme}; expected {expected}")]
    Scheme {
        /// Expression or op, and scope.
        at: String,
        /// The weight.
        weight: String,
        /// Its scheme.
        scheme: String,
        /// The schemes allowed, and what to do.
        expected: String,
    },
    /// An id that this build did not hand out.
    #[error(
        "{at}: there is no {kind} {id}; {known} exist so far, use only ids that this builder returned"
    )]
    UnknownId {
        /// Op and scope.
        at: String,
        /// "value", "weight", "cache" or "scope".
        kind: &'static str,
        /// The id.
        id: u32,
        /// Size of the table.
        known: usize,
    },
    /// A graph grew past a limit.
    #[error("{at}: {what} exceeds the limit of {max}")]
    Limit {
        /// Op and scope.
        at: String,
        /// What was counted, with its count where known.
        what: String,
        /// The limit.
        max: u64,
    },
    /// An op that this host does not know.
    #[error("{at}: this host knows no op '{op}'; ask has-custom first, or use a newer host")]
    UnknownOp {
        /// "custom" and scope.
        at: String,
        /// The name.
        op: String,
    },
    /// The graph has no output, or two.
    #[error("{at}: {found}; expected exactly one call of output-logits or output-embedding")]
    Output {
        /// "finish", or op and scope.
        at: String,
        /// What was found.
        found: String,
    },
    /// A finished graph contradicts itself; only a faulty pass or a foreign file can cause this.
    #[error("malformed graph at {at}: {found}; expected {expected}")]
    Malformed {
        /// Node, weight, cache or scope.
        at: String,
        /// What was found.
        found: String,
        /// The invariant.
        expected: String,
    },
}

impl GraphError {
    /// A short stable name of the variant, for metrics and logs.
    #[must_use]
    pub const fn label(&self) -> &'static str {
        match self {
            Self::Shape { .. } => "graph_shape",
            Self::Type { .. } => "graph_type",
            Self::Rows { .. } => "graph_rows",
            Self::Parameter { .. } => "graph_parameter",
            Self::Cache { .. } => "graph_cache",
            Self::MissingTensor { .. } => "graph_missing_tensor",
            Self::Scheme { .. } => "graph_scheme",
            Self::UnknownId { .. } => "graph_unknown_id",
            Self::Limit { .. } => "graph_limit",
            Self::UnknownOp { .. } => "graph_unknown_op",
            Self::Output { .. } => "graph_output",
            Self::Malformed { .. } => "graph_malformed",
        }
    }
}
