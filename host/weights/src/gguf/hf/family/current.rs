//! Gemma 1 and 2, Phi, StableLM, InternLM 2, Command R, OLMo 2, Granite, SmolLM 3, GLM-4 and MiniCPM.

use super::{Current, Family, GEMMA3_LAYER, GLOBALS, Kind, LAYER};

const PHI2_GLOBALS: &[(&str, &str)] = &[
    ("token_embd", "model.embed_tokens"),
    ("output_norm", "model.final_layernorm"),
    ("output", "lm_head"),
];

const PHI2_LAYER: &[(&str, &str)] = &[
    ("attn_norm", "input_layernorm"),
    ("attn_q", "self_attn.q_proj"),
    ("attn_k", "self_attn.k_proj"),
    ("attn_v", "self_attn.v_proj"),
    ("attn_output", "self_attn.dense"),
    ("ffn_up", "mlp.fc1"),
    ("ffn_down", "mlp.fc2"),
];

const PHI3_LAYER: &[(&str, &str)] = &[
    ("attn_norm", "input_layernorm"),
    ("attn_qkv", "self_attn.qkv_proj"),
    ("attn_output", "self_attn.o_proj"),
    ("ffn_norm", "post_attention_layernorm"),
    ("ffn_up", "mlp.gate_up_proj"),
    ("ffn_down", "mlp.down_proj"),
];

/// Norms of Q and K come as one tensor `[heads, d]`, those of Hugging Face as one per head.
const STABLELM_LAYER: &[(&str, &str)] = &[
    ("attn_norm", "input_layernorm"),
    ("attn_q", "self_attn.q_proj"),
    ("attn_k", "self_attn.k_proj"),
    ("attn_v", "self_attn.v_proj"),
    ("attn_output", "self_attn.o_proj"),
    ("attn_q_norm", "self_attn.q_layernorm"),
    ("attn_k_norm", "self_attn.k_layernorm"),
    ("ffn_norm", "post_attention_layernorm"),
    ("ffn_gate", "mlp.gate_proj"),
    ("ffn_up", "mlp.up_proj"),
    ("ffn_down", "mlp.down_proj"),
];

const INTERNLM2_GLOBALS: &[(&str, &str)] = &[
    ("token_embd", "model.tok_embeddings"),
    ("output_norm", "model.norm"),
    ("output", "output"),
];

/// Q, K and V come apart, and may be of different schemes; in Hugging Face's files they are one `wqkv`.
const INTERNLM2_LAYER: &[(&str, &str)] = &[
    ("attn_norm", "attention_norm"),
    ("attn_q", "attention.wq"),
    ("attn_k", "attention.wk"),
    ("attn_v", "attention.wv"),
    ("attn_output", "attention.wo"),
    ("ffn_norm", "ffn_norm"),
    ("ffn_gate", "feed_forward.w1"),
    ("ffn_up", "feed_forward.w3"),
    ("ffn_down", "feed_forward.w2"),
];

const OLMO2_LAYER: &[(&str, &str)] = &[
    ("attn_q", "self_attn.q_proj"),
    ("attn_k", "self_attn.k_proj"),
    ("attn_v", "self_attn.v_proj"),
    ("attn_output", "self_attn.o_proj"),
    ("attn_q_norm", "self_attn.q_norm"),
    ("attn_k_norm", "self_attn.k_norm"),
    ("post_attention_norm", "post_attention_layernorm"),
    ("ffn_gate", "mlp.gate_proj"),
    ("ffn_up", "mlp.up_proj"),
    ("ffn_down", "mlp.down_proj"),
    ("post_ffw_norm", "post_feedforward_layernorm"),
];

const GLM4_LAYER: &[(&str, &str)] = &[
    ("attn_norm", "input_layernorm"),
    ("attn_q", "self_attn.q_proj"),
    ("attn_k", "self_attn.k_proj"),
    ("attn_v", "self_attn.v_proj"),
    ("attn_output", "self_attn.o_proj"),
    ("post_attention_norm", "post_self_attn_layernorm"),
    ("ffn_norm", "post_attention_layernorm"),
    ("ffn_up", "mlp.gate_up_proj"),
    ("ffn_down", "mlp.down_proj"),
    ("post_ffw_norm", "post_mlp_layernorm"),
];

/// Named like Llama's.
const fn plain(
    gguf: &'static str,
    class: &'static str,
    model_type: &'static str,
    kind: Current,
) -> Family {
    Family {
        gguf,
        class,
        model_type,
        kind: Kind::Current(kind),
        globals: GLOBALS,
        layers: "model.layers",
        layer: LAYER,
    }
}

pub(super) static FAMILIES: [Family; 13] = [
    plain("gemma", "GemmaForCausalLM", "gemma", Current::Gemma),
    Family {
        layer: GEMMA3_LAYER,
        ..plain("gemma2", "Gemma2ForCausalLM", "gemma2", Current::Gemma2)
    },
    Family {
        globals: PHI2_GLOBALS,
        layer: PHI2_LAYER,
        ..plain("phi2", "PhiForCausalLM", "phi", Current::Phi2)
    },
    Family {
        layer: PHI3_LAYER,
        ..plain("phi3", "Phi3ForCausalLM", "phi3", Current::Phi3)
    },
    Family {
        layer: STABLELM_LAYER,
        ..plain(
            "stablelm",
            "StableLmForCausalLM",
            "stablelm",
            Current::StableLm,
        )
    },
    Family {
        globals: INTERNLM2_GLOBALS,
        layer: INTERNLM2_LAYER,
        ..plain(
            "internlm2",
            "InternLM2ForCausalLM",
            "internlm2",
            Current::InternLm2,
        )
    },
    plain("command-r", "CohereForCausalLM", "cohere", Current::Cohere),
    plain("cohere2", "Cohere2ForCausalLM", "cohere2", Current::Cohere2),
    Family {
        layer: OLMO2_LAYER,
        ..plain("olmo2", "Olmo2ForCausalLM", "olmo2", Current::Olmo2)
    },
    plain("granite", "GraniteForCausalLM", "granite", Current::Granite),
    plain("smollm3", "SmolLM3ForCausalLM", "smollm3", Current::SmolLm3),
    Family {
        layer: GLM4_LAYER,
        ..plain("glm4", "Glm4ForCausalLM", "glm4", Current::Glm4)
    },
    plain("minicpm", "MiniCPMForCausalLM", "minicpm", Current::MiniCpm),
];
