//! Checkpoint tensors and expressions over them.

use guesthouse_weights::{DType, Scheme};

use super::GraphBuilder;
use crate::{GraphError, Lookup, ValueId, Weight, WeightExpr, WeightId, rules};

impl GraphBuilder {
    /// Whether the checkpoint has a tensor of this name.
    #[must_use]
    pub fn has_param(&self, name: &str) -> bool {
        matches!(
            self.catalog.lookup(name),
            Lookup::Present(_) | Lookup::Assumed(_)
        )
    }

    /// Its shape, where there is a checkpoint to ask.
    #[must_use]
    pub fn param_shape(&self, name: &str) -> Option<Vec<u32>> {
        match self.catalog.lookup(name) {
            Lookup::Present(info) => info.shape.iter().map(|&d| u32::try_from(d).ok()).collect(),
            Lookup::Assumed(_) | Lookup::OnDemand(_) | Lookup::Absent => None,
        }
    }

    /// A checkpoint tensor of the shape stated.
    ///
    /// # Errors
    /// [`GraphError::MissingTensor`], or [`GraphError::Shape`] when the checkpoint's tensor has another shape.
    pub fn param(&mut self, name: &str, shape: &[u32]) -> Result<WeightId, GraphError> {
        self.name_fits("param", name)?;
        let scheme = match self.catalog.lookup(name) {
            Lookup::Present(info) => {
                let same = info.shape.len() == shape.len()
                    && info.shape.iter().zip(shape).all(|(&a, &b)| a == b as usize);
                if !same {
                    return Err(GraphError::Shape {
                        at: self.at("param"),
                        found: format!("the checkpoint's '{name}' is {:?}", info.shape),
                        expected: format!("{shape:?} as config.json implies"),
                    });
                }
                info.scheme
            }
            Lookup::Assumed(dtype) | Lookup::OnDemand(dtype) => Scheme::Plain(dtype),
            Lookup::Absent => {
                return Err(GraphError::MissingTensor {
                    at: self.at("param"),
                    name: name.to_owned(),
                    hint: crate::catalog::hint(name, &self.catalog.names()),
                });
            }
        };
        let expr = WeightExpr::Param {
            name: name.to_owned(),
        };
        self.push_weight("param", expr, shape.to_vec(), scheme)
    }

    /// f32 numbers that the guest computed, row-major.
    ///
    /// # Errors
    /// When their number does not fit `shape`.
    pub fn constant(&mut self, shape: &[u32], data: Vec<f32>) -> Result<WeightId, GraphError> {
        self.charge_constants("constant", data.len())?;
        let scheme = Scheme::Plain(DType::F32);
        self.push_weight(
            "constant",
            WeightExpr::Constant { data },
            shape.to_vec(),
            scheme,
        )
    }

    /// Rows `start..start + len` of the first dimension.
    ///
    /// # Errors
    /// When out of range.
    pub fn rows(&mut self, of: WeightId, start: u32, len: u32) -> Result<WeightId, GraphError> {
        self.derive("rows", WeightExpr::Rows { of, start, len }, None)
    }

    /// Row `index[i]` of the source becomes row `i`.
    ///
    /// # Errors
    /// When an index is out of range.
    pub fn select_rows(&mut self, of: WeightId, index: Vec<u32>) -> Result<WeightId, GraphError> {
        self.charge_constants("select-rows", index.len())?;
        self.derive("select-rows", WeightExpr::SelectRows { of, index }, None)
    }

    /// Sources stacked along the first dimension.
    ///
    /// # Errors
    /// When other dimensions or schemes differ.
    pub fn concat_rows(&mut self, of: &[WeightId]) -> Result<WeightId, GraphError> {
        self.charge_constants("concat-rows", of.len())?;
        self.derive(
            "concat-rows",
            WeightExpr::ConcatRows { of: of.to_vec() },
            None,
        )
    }

    /// The last two dimensions swapped.
    ///
    /// # Errors
    /// When the source is quantized or has fewer than two dimensions.
    pub fn transpose(&mut self, of: WeightId) -> Result<WeightId, GraphError> {
        self.derive("transpose", WeightExpr::Transpose { of }, None)
    }

    /// Same elements, other dimensions.
    ///
    /// # Errors
    /// When the number of elements differs, or the source is quantized and the last dimension changes.
    pub fn reshape_weight(&mut self, of: WeightId, shape: &[u32]) -> Result<WeightId, GraphError> {
        self.derive("reshape-weight", WeightExpr::Reshape { of }, Some(shape))
    }

    /// Every element times `by`.
    ///
    /// # Errors
    /// When the source is quantized or `by` is not finite.
    pub fn scale_weight(&mut self, of: WeightId, by: f32) -> Result<WeightId, GraphError> {
        self.derive("scale-weight", WeightExpr::Scale { of, by }, None)
    }

    /// Each row divided by its L2 norm plus `eps`.
    ///
    /// # Errors
    /// When the source is quantized or `eps` is negative.
    pub fn normalize_rows(&mut self, of: WeightId, eps: f32) -> Result<WeightId, GraphError> {
        self.derive(
            "normalize-rows",
            WeightExpr::NormalizeRows { of, eps },
            None,
        )
    }

    /// To plain f32.
    ///
    /// # Errors
    /// When the source holds integers.
    pub fn dequantize(&mut self, of: WeightId) -> Result<WeightId, GraphError> {
        self.derive("dequantize", WeightExpr::Dequantize { of }, None)
    }

    fn derive(
        &mut self,
        op: &'static str,
        expr: WeightExpr,
        shape: Option<&[u32]>,
    ) -> Result<WeightId, GraphError> {
        let context = self.context(op);
        let (shape, scheme) = rules::infer_weight(&context, &expr, shape)?;
        self.push_weight(op, expr, shape, scheme)
    }

    fn push_weight(
        &mut self,
        op: &'static str,
        expr: WeightExpr,
        shape: Vec<u32>,
        scheme: Scheme,
    ) -> Result<WeightId, GraphError> {
        let limits = self.limits;
        if self.weights.len() >= limits.max_weights {
            let what = "the number of weights".to_owned();
            return Err(self.limit(op, what, limits.max_weights));
        }
        if shape.len() > limits.max_rank {
            let what = format!("a weight of {} dimensions", shape.len());
            return Err(self.limit(op, what, limits.max_rank));
        }
        match rules::elements(&shape) {
            Some(n) if n <= limits.max_weight_elements => {}
            _ => {
                let what = format!("a weight of {shape:?} elements");
                return Err(self.limit(op, what, limits.max_weight_elements));
            }
        }
        let weight = Weight {
            expr,
            shape,
            scheme,
        };
        rules::check_weight(&self.context(op), &weight)?;
        self.weights.push(weight);
        Ok(WeightId(self.weights.len() as u32 - 1))
    }

    pub(super) fn charge_constants(&mut self, op: &str, n: usize) -> Result<(), GraphError> {
        let max = self.limits.max_constant_elements;
        let total = self.constant_elements.saturating_add(n);
        if total > max {
            return Err(self.limit(op, format!("{total} constant numbers"), max));
        }
        self.constant_elements = total;
        Ok(())
    }

    pub(super) fn context(&self, op: &'static str) -> rules::Context<'_> {
        rules::Context {
            op,
            scope: self
                .scopes
                .get(self.scope.index())
                .map_or("", String::as_str),
            weights: &self.weights,
            caches: &self.caches,
        }
    }

    pub(super) fn known_value(&self, op: &str, value: ValueId) -> Result<(), GraphError> {
        if value.index() < self.values.len() {
            return Ok(());
        }
        Err(GraphError::UnknownId {
            at: self.at(op),
            kind: "value",
            id: value.0,
            known: self.values.len(),
        })
    }
}
