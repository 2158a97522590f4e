//! What llama.cpp's converter does to each architecture: names, and changes to values.

use super::super::Gguf;
use super::super::cursor::malformed;
use crate::WeightsError;

mod current;

/// One architecture of GGUF and its Hugging Face counterpart.
#[derive(Debug)]
pub(super) struct Family {
    /// `general.architecture`, also the prefix of its metadata keys.
    pub(super) gguf: &'static str,
    /// The entry of `architectures` in config.json.
    pub(super) class: &'static str,
    /// `model_type` in config.json.
    pub(super) model_type: &'static str,
    pub(super) kind: Kind,
    /// Tensors outside the layers: GGUF stem → Hugging Face stem.
    globals: &'static [(&'static str, &'static str)],
    /// Prefix of Hugging Face layer names, before `.{layer}.`.
    layers: &'static str,
    /// Tensors of a layer: GGUF stem after `blk.{layer}.` → Hugging Face stem after the layer's prefix.
    layer: &'static [(&'static str, &'static str)],
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Llama,
    Qwen2,
    Qwen3,
    Gemma3,
    Gpt2,
    GptBigCode,
    GptNeoX,
    Bloom,
    Falcon,
    Mpt,
    DeepSeek,
    Current(Current),
}

/// The dense families of later years.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Current {
    Gemma,
    Gemma2,
    Phi2,
    Phi3,
    StableLm,
    InternLm2,
    Cohere,
    Cohere2,
    Olmo2,
    Granite,
    SmolLm3,
    Glm4,
    MiniCpm,
}

impl Current {
    /// Whether rows of Q and K are reordered as Llama's are.
    const fn is_permuted(self) -> bool {
        matches!(
            self,
            Self::InternLm2 | Self::Granite | Self::SmolLm3 | Self::MiniCpm
        )
    }
}

/// What the converter did to a tensor's values and what therefore is to be undone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Change {
    None,
    /// Rows of each head were reordered from two halves to interleaved pairs. (Query or key projection.)
    HalvesInterleaved(Heads),
    /// 1 was added to every element.
    OneAdded,
    /// A Conv1D weight `[in, out]` was transposed.
    Transposed,
    /// Rows of a fused projection were reordered from key head by key head, each with its query heads, its key and its
    /// value, to all queries, all keys, all values.
    Stacked,
    /// One matrix of each expert, which Hugging Face calls so, was put below those of the others.
    Experts(&'static str),
    /// The rows of keys of a latent's expansion were taken out and transposed, head by head: `[heads, rank, nope]`.
    LatentKeys,
    /// The rows of values of a latent's expansion were taken out: `[heads, v, rank]`.
    LatentValues,
}

/// Which heads the rows of a projection belong to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Heads {
    Query,
    KeyValue,
}

const GLOBALS: &[(&str, &str)] = &[
    ("token_embd", "model.embed_tokens"),
    ("output_norm", "model.norm"),
    ("output", "lm_head"),
];

const LAYER: &[(&str, &str)] = &[
    ("attn_norm", "input_layernorm"),
    ("attn_q", "self_attn.q_proj"),
    ("attn_k", "self_attn.k_proj"),
    ("attn_v", "self_attn.v_proj"),
    ("attn_output", "self_attn.o_proj"),
    ("attn_q_norm", "self_attn.q_norm"),
    ("attn_k_norm", "self_attn.k_norm"),
    ("ffn_norm", "post_attention_layernorm"),
    ("ffn_gate", "mlp.gate_proj"),
    ("ffn_up", "mlp.up_proj"),
    ("ffn_down", "mlp.down_proj"),
];

const GEMMA3_LAYER: &[(&str, &str)] = &[
    ("attn_norm", "input_layernorm"),
    ("attn_q", "self_attn.q_proj"),
    ("attn_k", "self_attn.k_proj"),
    ("attn_v", "self_attn.v_proj"),
    ("attn_output", "self_attn.o_proj"),
    ("attn_q_norm", "self_attn.q_norm"),
    ("attn_k_norm", "self_attn.k_norm"),
    ("post_attention_norm", "post_attention_layernorm"),
    ("ffn_norm", "pre_feedforward_layernorm"),
    ("ffn_gate", "mlp.gate_proj"),
    ("ffn_up", "mlp.up_proj"),
    ("ffn_down", "mlp.down_proj"),
    ("post_ffw_norm", "post_feedforward_layernorm"),
];

const GPT2_GLOBALS: &[(&str, &str)] = &[
    ("token_embd", "transformer.wte"),
    ("position_embd", "transformer.wpe"),
    ("output_norm", "transformer.ln_f"),
    ("output", "lm_head"),
];

const GPT2_LAYER: &[(&str, &str)] = &[
    ("attn_norm", "ln_1"),
    ("attn_qkv", "attn.c_attn"),
    ("attn_output", "attn.c_proj"),
    ("ffn_norm", "ln_2"),
    ("ffn_up", "mlp.c_fc"),
    ("ffn_down", "mlp.c_proj"),
];

const NEOX_GLOBALS: &[(&str, &str)] = &[
    ("token_embd", "gpt_neox.embed_in"),
    ("output_norm", "gpt_neox.final_layer_norm"),
    ("output", "embed_out"),
];

const NEOX_LAYER: &[(&str, &str)] = &[
    ("attn_norm", "input_layernorm"),
    ("attn_qkv", "attention.query_key_value"),
    ("attn_output", "attention.dense"),
    ("ffn_norm", "post_attention_layernorm"),
    ("ffn_up", "mlp.dense_h_to_4h"),
    ("ffn_down", "mlp.dense_4h_to_h"),
];

/// BLOOM and Falcon.
const BLOOM_GLOBALS: &[(&str, &str)] = &[
    ("token_embd", "transformer.word_embeddings"),
    ("token_embd_norm", "transformer.word_embeddings_layernorm"),
    ("output_norm", "transformer.ln_f"),
    ("output", "lm_head"),
];

const BLOOM_LAYER: &[(&str, &str)] = &[
    ("attn_norm", "input_layernorm"),
    ("attn_qkv", "self_attention.query_key_value"),
    ("attn_output", "self_attention.dense"),
    ("ffn_norm", "post_attention_layernorm"),
    ("ffn_up", "mlp.dense_h_to_4h"),
    ("ffn_down", "mlp.dense_4h_to_h"),
];

/// Falcon with two norms a layer, whose first in GGUF is the MLP's.
const FALCON_TWO_NORMS: &[(&str, &str)] = &[
    ("attn_norm", "ln_mlp"),
    ("attn_norm_2", "ln_attn"),
    ("attn_qkv", "self_attention.query_key_value"),
    ("attn_output", "self_attention.dense"),
    ("ffn_up", "mlp.dense_h_to_4h"),
    ("ffn_down", "mlp.dense_4h_to_h"),
];

const MPT_GLOBALS: &[(&str, &str)] = &[
    ("token_embd", "transformer.wte"),
    ("position_embd", "transformer.wpe"),
    ("output_norm", "transformer.norm_f"),
    ("output", "lm_head"),
];

const MPT_LAYER: &[(&str, &str)] = &[
    ("attn_norm", "norm_1"),
    ("attn_qkv", "attn.Wqkv"),
    ("attn_q_norm", "attn.q_ln"),
    ("attn_k_norm", "attn.k_ln"),
    ("attn_output", "attn.out_proj"),
    ("ffn_norm", "norm_2"),
    ("ffn_up", "ffn.up_proj"),
    ("ffn_down", "ffn.down_proj"),
];

const DEEPSEEK_LAYER: &[(&str, &str)] = &[
    ("attn_norm", "input_layernorm"),
    ("attn_q", "self_attn.q_proj"),
    ("attn_q_a", "self_attn.q_a_proj"),
    ("attn_q_a_norm", "self_attn.q_a_layernorm"),
    ("attn_q_b", "self_attn.q_b_proj"),
    ("attn_kv_a_mqa", "self_attn.kv_a_proj_with_mqa"),
    ("attn_kv_a_norm", "self_attn.kv_a_layernorm"),
    // Before llama.cpp attended over latents.
    ("attn_kv_b", "self_attn.kv_b_proj"),
    ("attn_k_b", "self_attn.kv_b_proj"),
    ("attn_v_b", "self_attn.kv_b_proj"),
    ("attn_output", "self_attn.o_proj"),
    ("ffn_norm", "post_attention_layernorm"),
    ("ffn_gate", "mlp.gate_proj"),
    ("ffn_up", "mlp.up_proj"),
    ("ffn_down", "mlp.down_proj"),
    ("ffn_gate_inp", "mlp.gate"),
    ("ffn_gate_exps", "mlp.experts"),
    ("ffn_up_exps", "mlp.experts"),
    ("ffn_down_exps", "mlp.experts"),
    ("ffn_gate_shexp", "mlp.shared_experts.gate_proj"),
    ("ffn_up_shexp", "mlp.shared_experts.up_proj"),
    ("ffn_down_shexp", "mlp.shared_experts.down_proj"),
];

/// Corrections of router scores, whose Hugging Face name has no suffix.
const CORRECTION: (&str, &str) = ("exp_probs_b.bias", "mlp.gate.e_score_correction_bias");

static FALCON_LARGE: Family = Family {
    layer: FALCON_TWO_NORMS,
    ..FALCON
};

const FALCON: Family = Family {
    gguf: "falcon",
    class: "FalconForCausalLM",
    model_type: "falcon",
    kind: Kind::Falcon,
    globals: BLOOM_GLOBALS,
    layers: "transformer.h",
    layer: BLOOM_LAYER,
};

static FAMILIES: [Family; 11] = [
    Family {
        gguf: "deepseek2",
        class: "DeepseekV2ForCausalLM",
        model_type: "deepseek_v2",
        kind: Kind::DeepSeek,
        globals: GLOBALS,
        layers: "model.layers",
        layer: DEEPSEEK_LAYER,
    },
    Family {
        gguf: "llama",
        class: "LlamaForCausalLM",
        model_type: "llama",
        kind: Kind::Llama,
        globals: GLOBALS,
        layers: "model.layers",
        layer: LAYER,
    },
    Family {
        gguf: "qwen2",
        class: "Qwen2ForCausalLM",
        model_type: "qwen2",
        kind: Kind::Qwen2,
        globals: GLOBALS,
        layers: "model.layers",
        layer: LAYER,
    },
    Family {
        gguf: "qwen3",
        class: "Qwen3ForCausalLM",
        model_type: "qwen3",
        kind: Kind::Qwen3,
        globals: GLOBALS,
        layers: "model.layers",
        layer: LAYER,
    },
    Family {
        gguf: "gemma3",
        class: "Gemma3ForCausalLM",
        model_type: "gemma3_text",
        kind: Kind::Gemma3,
        globals: GLOBALS,
        layers: "model.layers",
        layer: GEMMA3_LAYER,
    },
    Family {
        gguf: "gpt2",
        class: "GPT2LMHeadModel",
        model_type: "gpt2",
        kind: Kind::Gpt2,
        globals: GPT2_GLOBALS,
        layers: "transformer.h",
        layer: GPT2_LAYER,
    },
    Family {
        gguf: "starcoder",
        class: "GPTBigCodeForCausalLM",
        model_type: "gpt_bigcode",
        kind: Kind::GptBigCode,
        globals: GPT2_GLOBALS,
        layers: "transformer.h",
        layer: GPT2_LAYER,
    },
    Family {
        gguf: "gptneox",
        class: "GPTNeoXForCausalLM",
        model_type: "gpt_neox",
        kind: Kind::GptNeoX,
        globals: NEOX_GLOBALS,
        layers: "gpt_neox.layers",
        layer: NEOX_LAYER,
    },
    Family {
        gguf: "bloom",
        class: "BloomForCausalLM",
        model_type: "bloom",
        kind: Kind::Bloom,
        globals: BLOOM_GLOBALS,
        layers: "transformer.h",
        layer: BLOOM_LAYER,
    },
    FALCON,
    Family {
        gguf: "mpt",
        class: "MPTForCausalLM",
        model_type: "mpt",
        kind: Kind::Mpt,
        globals: MPT_GLOBALS,
        layers: "transformer.blocks",
        layer: MPT_LAYER,
    },
];

impl Family {
    /// The family of a file.
    pub(super) fn of(gguf: &Gguf) -> Result<&'static Self, WeightsError> {
        let name = gguf
            .metadata()
            .str("general.architecture")?
            .ok_or_else(|| malformed(gguf.path(), "its metadata lacks 'general.architecture'"))?;
        if name == FALCON.gguf && gguf.tensor("blk.0.attn_norm_2.weight").is_some() {
            return Ok(&FALCON_LARGE);
        }
        let families = || FAMILIES.iter().chain(&current::FAMILIES);
        families().find(|f| f.gguf == name).ok_or_else(|| {
            let known: Vec<&str> = families().map(|f| f.gguf).collect();
            WeightsError::Unsupported {
                path: gguf.path().to_owned(),
                what: format!(
                    "its general.architecture is {name:?}; GGUF files of {} are supported, others can be served from their \
                     safetensors checkpoint with a guest for the architecture",
                    known.join(", ")
                ),
            }
        })
    }

    /// Hugging Face name of a GGUF tensor and the change to undo; `None` for names that the table lacks.
    pub(super) fn map(&self, name: &str) -> Option<(String, Change)> {
        let (stem, suffix) = name.rsplit_once('.')?;
        if suffix != "weight" && suffix != "bias" {
            return None;
        }
        let find = |table: &[(&str, &'static str)], stem: &str| {
            table
                .iter()
                .find(|(gguf, _)| *gguf == stem)
                .map(|(_, hf)| *hf)
        };
        let (own, hf) = match stem.strip_prefix("blk.") {
            None => (stem, find(self.globals, stem)?.to_owned()),
            Some(rest) => {
                let (layer, own) = rest.split_once('.')?;
                let canonical = layer.parse::<u32>().ok()?.to_string() == layer;
                let whole = name.strip_prefix("blk.")?.split_once('.')?.1;
                if canonical && (self.kind, whole) == (Kind::DeepSeek, CORRECTION.0) {
                    return Some((
                        format!("{}.{layer}.{}", self.layers, CORRECTION.1),
                        Change::None,
                    ));
                }
                let hf = canonical.then(|| find(self.layer, own))??;
                (own, format!("{}.{layer}.{hf}", self.layers))
            }
        };
        Some((format!("{hf}.{suffix}"), self.change(own, suffix)))
    }

    fn change(&self, stem: &str, suffix: &str) -> Change {
        match (self.kind, stem, suffix) {
            (Kind::Current(family), "attn_q", _) if family.is_permuted() => {
                Change::HalvesInterleaved(Heads::Query)
            }
            (Kind::Current(family), "attn_k", _) if family.is_permuted() => {
                Change::HalvesInterleaved(Heads::KeyValue)
            }
            (Kind::Current(Current::Gemma | Current::Gemma2), stem, "weight")
                if stem.ends_with("norm") =>
            {
                Change::OneAdded
            }
            (Kind::Llama, "attn_q", _) => Change::HalvesInterleaved(Heads::Query),
            (Kind::Llama, "attn_k", _) => Change::HalvesInterleaved(Heads::KeyValue),
            (Kind::Gemma3, stem, "weight") if stem.ends_with("norm") => Change::OneAdded,
            (Kind::Gpt2, "attn_qkv" | "attn_output" | "ffn_up" | "ffn_down", "weight") => {
                Change::Transposed
            }
            (Kind::GptNeoX | Kind::Bloom | Kind::Falcon, "attn_qkv", _) => Change::Stacked,
            (Kind::DeepSeek, "ffn_gate_exps", "weight") => Change::Experts("gate_proj"),
            (Kind::DeepSeek, "ffn_up_exps", "weight") => Change::Experts("up_proj"),
            (Kind::DeepSeek, "ffn_down_exps", "weight") => Change::Experts("down_proj"),
            (Kind::DeepSeek, "attn_k_b", "weight") => Change::LatentKeys,
            (Kind::DeepSeek, "attn_v_b", "weight") => Change::LatentValues,
            _ => Change::None,
        }
    }

    /// Whether this file presents its Conv1D weights as `[out, in]`: transposing blocks would lose precision, and one
    /// quantized weight decides for all, so that a guest needs to know one fact per file.
    pub(super) fn keeps_conv1d_transposed(&self, gguf: &Gguf) -> bool {
        gguf.tensors().iter().any(|tensor| {
            tensor.info.scheme.is_row_blocked()
                && matches!(self.map(&tensor.name), Some((_, Change::Transposed)))
        })
    }
}
