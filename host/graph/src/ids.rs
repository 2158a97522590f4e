//! Index newtypes of the IR. Each is an index into the table of the same name in [`crate::Graph`].

use serde::{Deserialize, Serialize};

macro_rules! id {
    ($(#[$doc:meta])* $name:ident, $prefix:literal) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        pub struct $name(pub u32);

        impl $name {
            /// Position in its table.
            #[must_use]
            pub fn index(self) -> usize {
                self.0 as usize
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                write!(f, concat!($prefix, "{}"), self.0)
            }
        }
    };
}

id!(
    /// An SSA value: one tensor over the ragged token batch.
    ValueId,
    "%"
);
id!(
    /// A load-time weight expression.
    WeightId,
    "w"
);
id!(
    /// A declared cache (KV or recurrent state).
    CacheId,
    "cache"
);
id!(
    /// A name given by the guest to what follows, "layers.3.mlp".
    ScopeId,
    "scope"
);
