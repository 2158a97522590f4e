//! How values appear in errors and dumps.

use std::fmt;

use crate::{Rows, ValueInfo, ValueType};

impl fmt::Display for ValueType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Model => "model",
            Self::F32 => "float32",
            Self::I32 => "int32",
        })
    }
}

impl fmt::Display for Rows {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Tokens => "tokens",
            Self::Outputs => "outputs",
            Self::Broadcast => "*",
        })
    }
}

/// "[tokens, 32, 128]"; a broadcast row is "[*, 128]".
impl fmt::Display for ValueInfo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "[{}", self.rows)?;
        for d in &self.shape {
            write!(f, ", {d}")?;
        }
        f.write_str("]")
    }
}
