//! Newtypes for everything that is counted.

use serde::{Deserialize, Serialize};

/// A vocabulary index.
pub type TokenId = u32;

macro_rules! id {
    ($(#[$doc:meta])* $name:ident($inner:ty)) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        pub struct $name(pub $inner);
    };
}

id!(
    /// One launched step. Increases by one per launch.
    Ticket(u64)
);
id!(
    /// A place in the executor that holds one running sequence's state: token history, block tables, sampling plan.
    Slot(u32)
);
id!(
    /// A block of KV memory within one cache group.
    BlockId(u32)
);
id!(
    /// A request, unique over the life of an engine.
    RequestId(u64)
);
id!(
    /// One choice of a request while it is generated.
    SequenceId(u64)
);
id!(
    /// A set of caches with equal specs, sharing block tables; indexes [`crate::ExecutorInfo::groups`].
    GroupId(u32)
);
