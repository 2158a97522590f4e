//! Where weights come from: the trait every consumer reads through.

use std::borrow::Cow;

use serde::{Deserialize, Serialize};

use crate::{DummyFill, Scheme, WeightsError};

/// Shape and storage scheme of a logical tensor.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct TensorInfo {
    /// Dimensions, outermost first (row-major). Empty for a scalar.
    pub shape: Vec<usize>,
    /// How the elements are stored; blocks run along the last dimension.
    pub scheme: Scheme,
}

impl TensorInfo {
    /// A tensor of this shape and scheme.
    pub fn new(shape: impl Into<Vec<usize>>, scheme: impl Into<Scheme>) -> Self {
        Self {
            shape: shape.into(),
            scheme: scheme.into(),
        }
    }

    /// Number of elements; `None` on overflow.
    #[must_use]
    pub fn elements(&self) -> Option<usize> {
        self.shape
            .iter()
            .try_fold(1usize, |n, &dim| n.checked_mul(dim))
    }

    /// Elements in one row: the last dimension, 1 for a scalar.
    #[must_use]
    pub fn cols(&self) -> usize {
        self.shape.last().copied().unwrap_or(1)
    }

    /// Product of all dimensions but the last; `None` on overflow.
    #[must_use]
    pub fn rows(&self) -> Option<usize> {
        let outer = self.shape.split_last().map_or(&[][..], |(_, outer)| outer);
        outer.iter().try_fold(1usize, |n, &dim| n.checked_mul(dim))
    }

    /// Bytes of one row; `None` when a row is not a whole number of blocks.
    #[must_use]
    pub fn row_bytes(&self) -> Option<usize> {
        self.scheme.row_bytes(self.cols())
    }

    /// Bytes of the whole tensor; `None` when a row is not a whole number of blocks, or on overflow.
    #[must_use]
    pub fn byte_len(&self) -> Option<usize> {
        self.rows()?.checked_mul(self.row_bytes()?)
    }
}

/// A set of named logical tensors.
///
/// Names are those of Hugging Face checkpoints, whatever the file format. Bytes are row-major in the scheme's storage
/// layout, and their number is always [`TensorInfo::byte_len`] of [`WeightSource::info`]. They have no alignment.
pub trait WeightSource: Send + Sync {
    /// Shape and scheme of a tensor; `None` when the source has no such tensor.
    fn info(&self, name: &str) -> Option<TensorInfo>;

    /// Names of all tensors, each once, in a stable order.
    fn names(&self) -> Vec<String>;

    /// The name in [`WeightSource::names`] of the tensor that `name` means, where a source knows one tensor under
    /// several names. What [`WeightSource::info`] finds, this finds.
    fn resolve(&self, name: &str) -> Option<String> {
        self.info(name).map(|_| name.to_owned())
    }

    /// The tensor's bytes, from its file every time: they take memory until the caller drops them. A file that shrank is an
    /// error.
    ///
    /// # Errors
    /// When the tensor does not exist or its bytes can no longer be read.
    fn read(&self, name: &str) -> Result<Cow<'_, [u8]>, WeightsError>;

    /// How to make the tensor's values without reading it, where a source makes them up: a device fills its own memory
    /// instead of receiving bytes. The tensor is plain, and [`WeightSource::read`] gives the same values.
    fn dummy(&self, _name: &str) -> Option<DummyFill> {
        None
    }
}
