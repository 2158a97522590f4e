"""The files of Gemma 1 and 2, Phi, StableLM, InternLM 2, Command R, OLMo 2, Granite, SmolLM 3, GLM-4 and MiniCPM, which `make.py`
makes with the others, and current.json: what config.json must say of each."""

import json
import math
import types

import gguf
import numpy as np
import torch
import transformers as t

from make import HERE, finish, permute, tokenizer, value

SMALL = dict(vocab_size=24, hidden_size=16, intermediate_size=20, num_hidden_layers=2, num_attention_heads=4,
             num_key_value_heads=2, max_position_embeddings=64, bos_token_id=0, eos_token_id=1, pad_token_id=None)
LONGROPE = dict(rope_type="longrope", rope_theta=10000.0, short_factor=[1.0, 1.25], long_factor=[1.5, 4.0],
                original_max_position_embeddings=16)
PERMUTED = ("internlm2", "granite", "smollm3", "minicpm")


def share(by):
    return dict(rope_parameters=dict(rope_type="default", rope_theta=10000.0, partial_rotary_factor=by))


def own(architecture, **more):
    """A config that transformers has no class for."""
    return types.SimpleNamespace(**SMALL, architectures=[architecture], hidden_act="silu", **more)


CONFIGS = {
    "gemma": t.GemmaConfig(**SMALL, head_dim=8),
    "gemma2": t.Gemma2Config(**SMALL, head_dim=8, query_pre_attn_scalar=8, sliding_window=16),
    "phi2": t.PhiConfig(**SMALL, **share(0.5)),
    "phi3": t.Phi3Config(**SMALL, original_max_position_embeddings=16, rope_parameters=LONGROPE, sliding_window=8),
    "stablelm": t.StableLmConfig(**SMALL, **share(0.5), use_qkv_bias=True, qk_layernorm=True, use_parallel_residual=True),
    "internlm2": own("InternLM2ForCausalLM", rms_norm_eps=1e-5, bias=False, tie_word_embeddings=False),
    "command-r": t.CohereConfig(**SMALL, use_qk_norm=True, logit_scale=0.25),
    "cohere2": t.Cohere2Config(**SMALL, sliding_window=16, logit_scale=0.25),
    "olmo2": t.Olmo2Config(**SMALL),
    "granite": t.GraniteConfig(**SMALL, embedding_multiplier=12.0, residual_multiplier=0.22, attention_multiplier=0.0078125,
                               logits_scaling=16.0, tie_word_embeddings=True),
    "smollm3": t.SmolLM3Config(**SMALL),
    "glm4": t.Glm4Config(**SMALL, head_dim=4),
    "minicpm": own("MiniCPMForCausalLM", rms_norm_eps=1e-5, scale_emb=12.0, scale_depth=1.4, dim_model_base=8, tie_word_embeddings=True),
}
CONFIGS["minicpm"].num_hidden_layers = 1

SIZES = """vocab_size hidden_size intermediate_size num_hidden_layers num_attention_heads num_key_value_heads
max_position_embeddings tie_word_embeddings hidden_act""".split()
FIELDS = {
    "gemma": ["rms_norm_eps", "head_dim"],
    "gemma2": ["rms_norm_eps", "head_dim", "query_pre_attn_scalar", "sliding_window", "attn_logit_softcapping",
               "final_logit_softcapping"],
    "phi2": ["layer_norm_eps"],
    "phi3": ["rms_norm_eps", "sliding_window", "original_max_position_embeddings"],
    "stablelm": ["layer_norm_eps", "use_qkv_bias", "qk_layernorm", "use_parallel_residual"],
    "internlm2": ["rms_norm_eps", "bias"],
    "command-r": ["layer_norm_eps", "use_qk_norm", "logit_scale", "attention_bias"],
    "cohere2": ["layer_norm_eps", "sliding_window", "logit_scale", "attention_bias"],
    "olmo2": ["rms_norm_eps", "attention_bias"],
    "granite": ["rms_norm_eps", "embedding_multiplier", "residual_multiplier", "attention_multiplier", "logits_scaling",
                "attention_bias", "mlp_bias"],
    "smollm3": ["rms_norm_eps", "attention_bias", "mlp_bias"],
    "glm4": ["rms_norm_eps", "head_dim", "attention_bias"],
    "minicpm": ["rms_norm_eps", "scale_emb", "scale_depth", "dim_model_base"],
}


def llama_like(c):
    """Names and shapes of MiniCPM."""
    h, kv, f = c.hidden_size, c.hidden_size // 2, c.intermediate_size
    yield "model.embed_tokens.weight", (c.vocab_size, h)
    yield "model.norm.weight", (h,)
    for i in range(c.num_hidden_layers):
        at = f"model.layers.{i}"
        for name, out in (("q_proj", h), ("k_proj", kv), ("v_proj", kv), ("o_proj", h)):
            yield f"{at}.self_attn.{name}.weight", (out, h)
        yield f"{at}.mlp.gate_proj.weight", (f, h)
        yield f"{at}.mlp.up_proj.weight", (f, h)
        yield f"{at}.mlp.down_proj.weight", (h, f)
        yield f"{at}.input_layernorm.weight", (h,)
        yield f"{at}.post_attention_layernorm.weight", (h,)


INTERNLM2 = {
    "embed_tokens": "tok_embeddings", "self_attn.q_proj": "attention.wq", "self_attn.k_proj": "attention.wk",
    "self_attn.v_proj": "attention.wv", "self_attn.o_proj": "attention.wo", "mlp.gate_proj": "feed_forward.w1",
    "mlp.up_proj": "feed_forward.w3", "mlp.down_proj": "feed_forward.w2", "input_layernorm": "attention_norm",
    "post_attention_layernorm": "ffn_norm",
}


def shapes(arch, c):
    """{Hugging Face name: shape}; of InternLM 2 with the parts of `wqkv` apart, as the converter has them."""
    if arch == "minicpm":
        return dict(llama_like(c))
    if arch == "internlm2":
        found = {"output.weight": (c.vocab_size, c.hidden_size)}
        for name, shape in llama_like(c):
            for theirs, ours in INTERNLM2.items():
                name = name.replace(theirs, ours)
            found[name] = shape
        return found
    torch.manual_seed(0)
    state = t.AutoModelForCausalLM.from_config(c).state_dict()
    found = {name: tuple(w.shape) for name, w in state.items()}
    if c.tie_word_embeddings:
        found.pop("lm_head.weight", None)
    for name in [n for n in found if ".norms." in n]:  # StableLM's, which the converter stacks
        heads = c.num_attention_heads if ".q_layernorm." in name else c.num_key_value_heads
        found[name.split(".norms.")[0] + ".weight"] = (heads, found.pop(name)[0])
    return found


def settings(arch, c):
    yield "add_context_length", c.max_position_embeddings
    yield "add_embedding_length", c.hidden_size
    yield "add_block_count", c.num_hidden_layers
    yield "add_feed_forward_length", c.intermediate_size
    yield "add_head_count", c.num_attention_heads
    yield "add_head_count_kv", c.num_key_value_heads
    if hasattr(c, "layer_norm_eps"):
        yield "add_layer_norm_eps", c.layer_norm_eps
    else:
        yield "add_layer_norm_rms_eps", c.rms_norm_eps
    if arch.startswith("gemma"):
        yield "add_key_length", 8
        yield "add_value_length", 8
    match arch:
        case "gemma2":
            yield "add_attn_logit_softcapping", c.attn_logit_softcapping
            yield "add_final_logit_softcapping", c.final_logit_softcapping
            yield "add_sliding_window", c.sliding_window
        case "phi2" | "stablelm" | "glm4":
            yield "add_rope_dimension_count", 2
        case "phi3":
            yield "add_rope_dimension_count", 4
            yield "add_rope_freq_base", 10000.0
            yield "add_rope_scaling_orig_ctx_len", 16
            yield "add_rope_scaling_attn_factors", math.sqrt(1 + math.log(4) / math.log(16))
            yield "add_sliding_window", c.sliding_window
        case "command-r" | "cohere2":
            yield "add_logit_scale", c.logit_scale
            yield "add_rope_freq_base", 500000.0
        case "granite":
            yield "add_attention_scale", c.attention_multiplier
            yield "add_embedding_scale", c.embedding_multiplier
            yield "add_residual_scale", c.residual_multiplier
            yield "add_logit_scale", c.logits_scaling
        case "minicpm":
            yield "add_embedding_scale", c.scale_emb
            yield "add_residual_scale", c.scale_depth / c.num_hidden_layers**0.5
            yield "add_logit_scale", c.hidden_size / c.dim_model_base
        case "smollm3":
            yield "add_rope_freq_base", 5000000.0
    if arch == "stablelm":
        yield "add_parallel_residual", c.use_parallel_residual
    if arch == "cohere2":
        yield "add_sliding_window", c.sliding_window


def write(arch, c):
    w = gguf.GGUFWriter(HERE / f"{arch}.gguf", arch)
    for method, argument in settings(arch, c):
        getattr(w, method)(argument)
    tokenizer(w, c)
    if arch == "phi3":
        w.add_tensor("rope_factors_long.weight", np.array(LONGROPE["long_factor"], np.float32))
        w.add_tensor("rope_factors_short.weight", np.array(LONGROPE["short_factor"], np.float32))
    kind = {name: k for k, name in gguf.MODEL_ARCH_NAMES.items()}[arch]
    names = gguf.get_tensor_name_map(kind, c.num_hidden_layers)
    tensors = {name: value(name, shape) for name, shape in shapes(arch, c).items()}
    for name, data in tensors.items():
        if arch in PERMUTED and any(part in name for part in (".q_proj.", ".wq.")):
            data = permute(data, c.num_attention_heads)
        if arch in PERMUTED and any(part in name for part in (".k_proj.", ".wk.")):
            data = permute(data, c.num_key_value_heads)
        if arch.startswith("gemma") and name.endswith("norm.weight"):
            data = data + 1
        new = names.get_name(name, try_suffixes=(".weight", ".bias"))
        assert new, name
        w.add_tensor(new, np.ascontiguousarray(data) if data.ndim < 2 else data.astype(np.float16))
    finish(w)
    if arch == "gemma2":  # which transformers reads
        loaded = t.AutoModelForCausalLM.from_pretrained(HERE, gguf_file="gemma2.gguf", dtype=torch.float32)
        for name, got in loaded.state_dict().items():
            assert name not in tensors or np.abs(got.numpy() - tensors[name]).max() == 0, name


def current():
    found = {}
    for arch, c in CONFIGS.items():
        write(arch, c)
        found[arch] = {field: getattr(c, field) for field in SIZES + FIELDS[arch] if hasattr(c, field)}
    (HERE / "current.json").write_text(json.dumps(found, indent=1, sort_keys=True) + "\n")


if __name__ == "__main__":
    current()
