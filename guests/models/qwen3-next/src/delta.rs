//! The gated delta rule with its convolutions, gates and norm.

use guesthouse_sdk::graph::{
    Activation, Cache, CacheKind, CacheSpec, Dims, Gate, Scope, Sharding, Value, ValueType,
    builder, merge_heads, split_heads,
};
use guesthouse_sdk::{Config, Error};

/// Under the root of the length of queries and keys, as in the kernels that the model was trained with.
const UNIT_EPS: f32 = 1e-6;

/// Sizes of a recurrent layer.
pub(crate) struct Delta {
    k_heads: u32,
    /// Value heads per key head.
    times: u32,
    k: u32,
    v: u32,
    /// Positions that a convolution sees.
    width: u32,
    act: Activation,
}

impl Delta {
    pub(crate) fn from_config(config: &Config, act: Activation) -> Result<Self, Error> {
        let k_heads = config.size("linear_num_key_heads")?;
        let v_heads = config.size("linear_num_value_heads")?;
        if !v_heads.is_multiple_of(k_heads) {
            let want = format!("a multiple of linear_num_key_heads, {k_heads}");
            return Err(config.wrong("linear_num_value_heads", &want));
        }
        let delta = Self {
            k_heads,
            times: v_heads / k_heads,
            k: config.size("linear_key_head_dim")?,
            v: config.size("linear_value_head_dim")?,
            width: config.size("linear_conv_kernel_dim")?,
            act,
        };
        let state = [v_heads, delta.k, delta.v, 4];
        let convolved = [v_heads.max(k_heads), delta.k.max(delta.v), delta.width, 8];
        let fits = |of: [u32; 4]| of.iter().try_fold(1u32, |n, &d| n.checked_mul(d)).is_some();
        if delta.width < 2 {
            return Err(config.wrong("linear_conv_kernel_dim", "2 or more"));
        }
        if !fits(state) || !fits(convolved) {
            let want = "a number of heads whose state is below 4 GiB";
            return Err(config.wrong("linear_num_value_heads", want));
        }
        Ok(delta)
    }

    /// `x [hidden]` → same
    pub(crate) fn build(&self, at: &Scope, x: Value, d: &Dims) -> Value {
        let Self {
            k_heads,
            times,
            k,
            v,
            ..
        } = *self;
        let v_heads = k_heads * times;
        let project = |name, sizes: &[u32]| self.project(at, name, x, d.hidden, sizes);
        // Of each key head: its query, itself, then values and gates of the value heads that share it.
        let mixed = project("in_proj_qkvz", &[k, k, times * v, times * v]);
        let gates = project("in_proj_ba", &[times, times]);
        let (q, key, value) = self.convolve(at, [mixed[0], mixed[1], mixed[2]]);
        let unit = |x| builder::repeat_heads(builder::l2_norm(x, UNIT_EPS), times);

        let beta = builder::activate(gates[0], Activation::Sigmoid);
        let f32_weight = |name| float32(builder::weight_value(at.param(name, &[v_heads])));
        let step = builder::add(float32(gates[1]), f32_weight("dt_bias"));
        let step = builder::activate(step, Activation::Softplus);
        let rate = builder::activate(f32_weight("A_log"), Activation::Exp);
        let decay = builder::mul(step, builder::scale(rate, -1.0));

        let scale = f64::from(k).sqrt().recip() as f32;
        let state = state(v_heads * k * v);
        let o = builder::delta_rule(
            unit(q),
            unit(key),
            value,
            decay,
            float32(beta),
            state,
            scale,
        );
        let o = at.rms_norm("norm", builder::cast(o, ValueType::Model), v, d.eps);
        let z = split_heads(mixed[3], v_heads, v);
        let o = builder::gated(z, o, Gate::Plain(Activation::Silu));
        at.linear("out_proj", d.hidden, v_heads * v, Sharding::Row)
            .apply(merge_heads(o, v_heads * v))
    }

    /// A linear whose rows stand by key head, `sizes` of each; all rows of one kind together as one value each.
    fn project(&self, at: &Scope, name: &str, x: Value, hidden: u32, sizes: &[u32]) -> Vec<Value> {
        let group: u32 = sizes.iter().sum();
        let all = at.linear(name, self.k_heads * group, hidden, Sharding::Column);
        let mut start = 0;
        let part = |&size: &u32| {
            let rows = |head| head * group + start..head * group + start + size;
            let index: Vec<u32> = (0..self.k_heads).flat_map(rows).collect();
            start += size;
            all.select_rows(&index).apply(x)
        };
        sizes.iter().map(part).collect()
    }

    /// Queries, keys and values, each over the last `width` positions of itself: `[heads, dim]`, f32.
    ///
    /// The convolution is depthwise, so the three may keep their inputs apart, which lets ranks split heads.
    fn convolve(&self, at: &Scope, inputs: [Value; 3]) -> (Value, Value, Value) {
        let (keys, values) = ((self.k_heads, self.k), (self.k_heads * self.times, self.v));
        let channels = |(heads, dim): (u32, u32)| heads * dim;
        let all = 2 * channels(keys) + channels(values);
        let kernel = at.param("conv1d.weight", &[all, 1, self.width]);
        let kernel = builder::reshape_weight(kernel, &[all, self.width]);
        let mut start = 0;
        let [q, k, v] =
            [(inputs[0], keys), (inputs[1], keys), (inputs[2], values)].map(|(x, of)| {
                let w = builder::rows(kernel, start, channels(of));
                start += channels(of);
                let state = state((self.width - 1) * channels(of));
                let y = builder::causal_conv(x, w, None, state, Some(self.act));
                float32(split_heads(y, of.0, of.1))
            });
        (q, k, v)
    }
}

fn float32(x: Value) -> Value {
    builder::cast(x, ValueType::Float32)
}

/// A state of so many 32-bit floats.
fn state(floats: u32) -> Cache {
    builder::declare_cache(&CacheSpec {
        kind: CacheKind::Recurrent(4 * floats),
        kv_heads: 0,
        k_dim: 0,
        v_dim: 0,
        v_in_k: false,
        replicated: false,
        ext: vec![],
    })
}
