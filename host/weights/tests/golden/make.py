"""Makes the files in this folder: python make.py (needs gguf, numpy, safetensors, torch, transformers).

quants.safetensors  random blocks of every quantized type ("<type>.bytes") and what gguf-py makes of them ("<type>.values")
<architecture>.gguf tiny checkpoints, changed the way llama.cpp's convert_hf_to_gguf.py changes real ones; transformers
                    loads each with gguf_file= and must find the Hugging Face weights again, else this script fails
                    (transformers reads llama, qwen2, qwen3, gemma3, gpt2 and bloom so)
configs.json        the fields of each checkpoint's Hugging Face config

The weights follow a formula over Hugging Face name and flat index, so that the tests can tell what to expect.
"""

import json
import pathlib

import gguf
import numpy as np
import torch
import transformers
from gguf import GGMLQuantizationType as T
from safetensors.numpy import save_file

HERE = pathlib.Path(__file__).parent


def value(name, shape):
    """Multiples of 1/1024 in [-1, 1): exact in f16, f32 and, after adding 1, in f32."""
    h = 0
    for byte in name.encode():
        h = (h * 31 + byte) % 2**32
    i = np.arange(int(np.prod(shape)), dtype=np.int64)
    return (((h + 37 * i) % 2048 - 1024) / 1024).astype(np.float32).reshape(shape)


def quants():
    rng = np.random.default_rng(7)
    scales = {  # offsets of the f16 scales in a block
        T.Q4_0: [0], T.Q4_1: [0, 2], T.Q5_0: [0], T.Q5_1: [0, 2], T.Q8_0: [0],
        T.Q2_K: [80, 82], T.Q3_K: [108], T.Q4_K: [0, 2], T.Q5_K: [0, 2], T.Q6_K: [208],
    }
    out = {}
    for kind, offsets in scales.items():
        length, size = gguf.GGML_QUANT_SIZES[kind]
        blocks = rng.integers(0, 256, (512 // length * 2 if length == 32 else 3, size), dtype=np.uint8)
        for at in offsets:
            d = rng.normal(0, 0.03, len(blocks)).astype(np.float16)
            d[0] = np.float16(6e-8)  # a subnormal scale
            blocks[:, at : at + 2] = d.view(np.uint8).reshape(-1, 2)
        out[f"{kind.name}.bytes"] = blocks.reshape(-1)
        out[f"{kind.name}.values"] = gguf.quants.dequantize(blocks, kind).reshape(-1)
    save_file(out, HERE / "quants.safetensors", metadata={"made_by": "make.py"})


def permute(w, heads):
    """llama.cpp: the two halves of each head become interleaved pairs."""
    return w.reshape(heads, 2, w.shape[0] // heads // 2, *w.shape[1:]).swapaxes(1, 2).reshape(w.shape)


def convert(arch, config, tensors):
    """(GGUF name, values) as convert_hf_to_gguf.py writes them."""
    layers = config.num_hidden_layers
    kind = {name: k for k, name in gguf.MODEL_ARCH_NAMES.items()}[arch]
    names = gguf.get_tensor_name_map(kind, layers)
    for name, w in tensors.items():
        if arch == "llama" and ".q_proj." in name:
            w = permute(w, config.num_attention_heads)
        if arch == "llama" and ".k_proj." in name:
            w = permute(w, config.num_key_value_heads)
        if arch == "gemma3" and name.endswith("norm.weight"):
            w = w + 1
        if arch == "gpt2" and name.endswith((".c_attn.weight", ".c_proj.weight", ".c_fc.weight")):
            w = w.T
        new = names.get_name(name, try_suffixes=(".weight", ".bias"))
        assert new, name
        yield new, np.ascontiguousarray(w)


def stacked(w, heads, kv_heads):
    """llama.cpp: all queries, all keys, all values, of a projection that goes key head by key head."""
    group = heads // kv_heads
    by_head = w.reshape(kv_heads, group + 2, -1, *w.shape[1:])
    parts = by_head[:, :group], by_head[:, group : group + 1], by_head[:, group + 1 :]
    return np.concatenate([p.reshape(-1, *w.shape[1:]) for p in parts])


def convert_older(arch, config, tensors):
    """The same for StarCoder, GPT-NeoX, BLOOM, Falcon and MPT."""
    kind = {name: k for k, name in gguf.MODEL_ARCH_NAMES.items()}[arch]
    names = gguf.get_tensor_name_map(kind, config.num_hidden_layers)
    heads = config.num_attention_heads
    kv_heads = heads
    if arch == "falcon":
        kv_heads = config.num_kv_heads if config.new_decoder_architecture else 1
    for name, w in tensors.items():
        if ".query_key_value." in name:
            w = stacked(w, heads, kv_heads)
        if arch == "bloom":
            name = name.removeprefix("transformer.")
        new = names.get_name(name, try_suffixes=(".weight", ".bias"))
        assert new, name
        yield new, np.ascontiguousarray(w)


def write_older(arch, stem, config, extra=()):
    torch.manual_seed(0)
    state = transformers.AutoModelForCausalLM.from_config(config).state_dict()
    if config.tie_word_embeddings:
        state.pop("lm_head.weight", None)
    published = lambda name: name.replace("lm_head", "embed_out") if arch == "gptneox" else name
    tensors = {published(name): value(published(name), tuple(w.shape)) for name, w in state.items()}

    w = gguf.GGUFWriter(HERE / f"{stem}.gguf", arch)
    w.add_embedding_length(config.hidden_size)
    w.add_block_count(config.num_hidden_layers)
    w.add_head_count(config.num_attention_heads)
    for method, argument in extra:
        getattr(w, method)(argument)
    tokenizer(w, config)
    for name, data in convert_older(arch, config, tensors):
        w.add_tensor(name, data if data.ndim < 2 else data.astype(np.float16))
    finish(w)
    if arch == "bloom":  # transformers loads none of the others, or leaves their rows as they are
        loaded = transformers.AutoModelForCausalLM.from_pretrained(HERE, gguf_file=f"{stem}.gguf", dtype=torch.float32)
        for name, got in loaded.state_dict().items():
            assert np.abs(got.numpy() - tensors[name]).max() == 0, (stem, name)


def tokenizer(w, config):
    """Enough of a tokenizer to read: a control token that ends a turn beside eos."""
    texts = ["<s>", "</s>", "<|im_end|>"] + [chr(97 + i) for i in range(config.vocab_size - 3)]
    w.add_tokenizer_model("gpt2")
    w.add_tokenizer_pre("default")
    w.add_token_list(texts)
    w.add_token_types([3, 3, 3] + [1] * (len(texts) - 3))
    w.add_token_merges(["a b", "c d"])
    w.add_bos_token_id(0)
    w.add_eos_token_id(1)
    w.add_add_bos_token(True)
    w.add_chat_template("{{ messages[0].content }}")


def finish(w):
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()


def llama3_factors(base, dim, scaling):
    old = scaling["original_max_position_embeddings"]
    low, high = scaling["low_freq_factor"], scaling["high_freq_factor"]
    out = []
    for freq in 1.0 / base ** (np.arange(0, dim, 2, dtype=np.float32) / dim):
        wavelen = 2 * np.pi / freq
        if wavelen < old / high:
            out.append(1)
        elif wavelen > old / low:
            out.append(scaling["factor"])
        else:
            smooth = (old / wavelen - low) / (high - low)
            out.append(1 / ((1 - smooth) / scaling["factor"] + smooth))
    return np.array(out, dtype=np.float32)


def write(arch, stem, config, quantize=None, rope_factors=None, base=None, extra=()):
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(config)
    state = model.state_dict()
    if config.tie_word_embeddings:
        state.pop("lm_head.weight", None)
    tensors = {name: value(name, tuple(w.shape)) for name, w in state.items()}

    w = gguf.GGUFWriter(HERE / f"{stem}.gguf", arch)
    gpt2 = arch == "gpt2"
    w.add_context_length(config.max_position_embeddings)
    w.add_embedding_length(config.hidden_size)
    w.add_block_count(config.num_hidden_layers)
    w.add_feed_forward_length(4 * config.hidden_size if gpt2 else config.intermediate_size)
    w.add_head_count(config.num_attention_heads)
    if gpt2:
        w.add_layer_norm_eps(config.layer_norm_epsilon)
    else:
        w.add_head_count_kv(config.num_key_value_heads)
        w.add_layer_norm_rms_eps(config.rms_norm_eps)
        w.add_rope_freq_base(base)
        w.add_vocab_size(config.vocab_size)
    for method, argument in extra:
        getattr(w, method)(argument)
    tokenizer(w, config)
    if rope_factors is not None:
        w.add_tensor("rope_freqs.weight", rope_factors)
    for name, data in convert(arch, config, tensors):
        if data.ndim < 2:
            w.add_tensor(name, data)
        elif quantize and data.shape[-1] % 32 == 0 and "position" not in name:
            w.add_tensor(name, gguf.quants.quantize(data, quantize), raw_dtype=quantize)
        else:
            w.add_tensor(name, data.astype(np.float16))
    finish(w)

    loaded = transformers.AutoModelForCausalLM.from_pretrained(HERE, gguf_file=f"{stem}.gguf", dtype=torch.float32)
    for name, got in loaded.state_dict().items():
        if name in tensors:
            tolerance = 0.02 if quantize else 0
            assert np.abs(got.numpy() - tensors[name]).max() <= tolerance, (stem, name)
    return tensors


FIELDS = """vocab_size hidden_size num_hidden_layers num_attention_heads num_key_value_heads head_dim intermediate_size
max_position_embeddings rms_norm_eps layer_norm_epsilon tie_word_embeddings hidden_act hidden_activation attention_bias mlp_bias
query_pre_attn_scalar sliding_window layer_types activation_function n_embd n_layer n_head n_positions use_sliding_window
final_logit_softcapping attn_logit_softcapping bos_token_id eos_token_id""".split()


OLDER_FIELDS = """layer_norm_eps use_parallel_residual multi_query n_inner num_kv_heads new_decoder_architecture parallel_attn alibi bias
num_ln_in_parallel_attn ffn_hidden_size activation d_model n_layers n_heads max_seq_len no_bias norm_type""".split()


def older():
    """{stem: config} of families that llama.cpp does not call by their own names, or whose fused projections it reorders."""
    t = transformers
    sizes = dict(vocab_size=24, bos_token_id=0, eos_token_id=1)
    gpt = dict(**sizes, n_embd=16, n_layer=2, n_head=4, n_positions=64)
    wide = dict(**sizes, hidden_size=16, num_hidden_layers=2, num_attention_heads=4)
    configs = {
        "starcoder": t.GPTBigCodeConfig(**gpt, n_inner=24),
        "gptneox": t.GPTNeoXConfig(**wide, intermediate_size=24, max_position_embeddings=64, use_parallel_residual=False,
                                   rope_parameters=dict(rope_type="default", rope_theta=10000.0, partial_rotary_factor=0.5)),
        "bloom": t.BloomConfig(**sizes, hidden_size=16, n_layer=2, n_head=4, tie_word_embeddings=False),
        "falcon-7b": t.FalconConfig(**wide, num_kv_heads=1),
        "falcon-40b": t.FalconConfig(**wide, new_decoder_architecture=True, num_kv_heads=2, tie_word_embeddings=False),
        "mpt": t.MptConfig(**sizes, d_model=16, n_layers=2, n_heads=4, max_seq_len=64, attn_config=dict(clip_qkv=6.0, alibi_bias_max=16)),
    }
    eps, context = ("add_layer_norm_eps", 1e-5), ("add_context_length", 64)
    four = ("add_feed_forward_length", 64)
    kv = lambda n: ("add_head_count_kv", n)
    falcon = [("add_context_length", 2048), ("add_tensor_data_layout", "jploski"), four, eps]
    write_older("starcoder", "starcoder", configs["starcoder"], [context, four, kv(1), eps])
    neox = [("add_rope_dimension_count", 2), ("add_parallel_residual", False)]
    write_older("gptneox", "gptneox", configs["gptneox"], [context, ("add_feed_forward_length", 24), *neox, eps])
    write_older("bloom", "bloom", configs["bloom"], [context, four, kv(4), eps])
    write_older("falcon", "falcon-7b", configs["falcon-7b"], [*falcon, kv(1)])
    write_older("falcon", "falcon-40b", configs["falcon-40b"], [*falcon, kv(2)])
    write_older("mpt", "mpt", configs["mpt"], [context, four, eps, ("add_clamp_kqv", 6.0), ("add_max_alibi_bias", 16.0)])
    return configs


def published(tensors):
    """Experts one by one, as checkpoints have them."""
    for name, shape in tensors:
        if not name.endswith(("experts.gate_up_proj", "experts.down_proj")):
            yield name, shape
            continue
        at, part = name.rsplit(".", 1)
        for e in range(shape[0]):
            if part == "down_proj":
                yield f"{at}.{e}.down_proj.weight", shape[1:]
            else:
                for half in ("gate_proj", "up_proj"):
                    yield f"{at}.{e}.{half}.weight", (shape[1] // 2, shape[2])


def convert_deepseek(config, tensors, latent):
    """As convert_hf_to_gguf.py does: experts stacked, and for attention over latents keys and values apart."""
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.DEEPSEEK2, config.num_hidden_layers)
    stacks = {}
    for name, w in tensors.items():
        if ".mlp.experts." in name:
            at, e, part = name.removesuffix(".weight").rsplit(".", 2)
            stacks.setdefault(f"{at}.{part}.weight", []).append(w)
            continue
        if latent and name.endswith("kv_b_proj.weight"):
            nope, v = config.qk_nope_head_dim, config.v_head_dim
            by_head = w.reshape(config.num_attention_heads, nope + v, -1)
            pairs = [("k_b_proj", by_head[:, :nope].swapaxes(1, 2)), ("v_b_proj", by_head[:, nope:])]
        else:
            pairs = [("kv_b_proj", w)]
        for part, w in pairs:
            new = name.replace("kv_b_proj", part).replace("e_score_correction_bias", "e_score_correction.bias")
            yield names.get_name(new, try_suffixes=(".weight", ".bias")), np.ascontiguousarray(w)
    for name, w in stacks.items():
        yield names.get_name(name, try_suffixes=(".weight", ".bias")), np.stack(w)


def write_deepseek(stem, config, latent):
    state = transformers.AutoModelForCausalLM.from_config(config).state_dict()
    tensors = {name: value(name, shape) for name, shape in published((n, tuple(w.shape)) for n, w in state.items())}
    rope, rank = config.qk_rope_head_dim, config.kv_lora_rank
    v3 = config.model_type == "deepseek_v3"
    w = gguf.GGUFWriter(HERE / f"{stem}.gguf", "deepseek2")
    w.add_context_length(config.max_position_embeddings)
    w.add_embedding_length(config.hidden_size)
    w.add_block_count(config.num_hidden_layers)
    w.add_feed_forward_length(config.intermediate_size)
    w.add_head_count(config.num_attention_heads)
    w.add_head_count_kv(1 if latent else config.num_attention_heads)
    w.add_rope_freq_base(config.rope_parameters["rope_theta"])
    w.add_layer_norm_rms_eps(config.rms_norm_eps)
    w.add_vocab_size(config.vocab_size)
    w.add_leading_dense_block_count(config.first_k_dense_replace)
    if config.q_lora_rank:
        w.add_q_lora_rank(config.q_lora_rank)
    w.add_kv_lora_rank(rank)
    key, v = config.qk_nope_head_dim + rope, config.v_head_dim
    w.add_key_length(rank + rope if latent else key)
    w.add_value_length(rank if latent else v)
    if latent:
        w.add_key_length_mla(key)
        w.add_value_length_mla(v)
    w.add_rope_dimension_count(rope)
    w.add_expert_feed_forward_length(config.moe_intermediate_size)
    w.add_expert_count(config.n_routed_experts)
    w.add_expert_used_count(config.num_experts_per_tok)
    w.add_expert_shared_count(config.n_shared_experts)
    w.add_expert_weights_scale(config.routed_scaling_factor)
    w.add_expert_weights_norm(config.norm_topk_prob)
    w.add_expert_gating_func(gguf.ExpertGatingFuncType.SIGMOID if v3 else gguf.ExpertGatingFuncType.SOFTMAX)
    if config.n_group:
        w.add_uint32("deepseek2.expert_group_count", config.n_group)
        w.add_uint32("deepseek2.expert_group_used_count", config.topk_group)
    if config.rope_parameters["rope_type"] == "yarn":
        w.add_rope_scaling_type(gguf.RopeScalingType.YARN)
        w.add_rope_scaling_factor(config.rope_parameters["factor"])
        w.add_rope_scaling_orig_ctx_len(config.rope_parameters["original_max_position_embeddings"])
        w.add_rope_scaling_yarn_log_mul(0.1 * config.rope_parameters["mscale_all_dim"])
    tokenizer(w, config)
    for name, data in convert_deepseek(config, tensors, latent):
        w.add_tensor(name, data if data.ndim < 2 else data.astype(np.float16))
    finish(w)


DEEPSEEK_FIELDS = """q_lora_rank kv_lora_rank qk_nope_head_dim qk_rope_head_dim v_head_dim moe_intermediate_size n_routed_experts
num_experts_per_tok n_shared_experts first_k_dense_replace routed_scaling_factor norm_topk_prob""".split()


def deepseek():
    """{stem: config}: V2-Lite before llama.cpp attended over latents, and V3 after."""
    t = transformers
    sizes = dict(vocab_size=24, hidden_size=16, intermediate_size=20, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=4,
                 max_position_embeddings=64, bos_token_id=0, eos_token_id=1, pad_token_id=None, moe_intermediate_size=8, kv_lora_rank=12,
                 qk_nope_head_dim=6, qk_rope_head_dim=4, v_head_dim=5, first_k_dense_replace=1, tie_word_embeddings=False)
    yarn = dict(rope_type="yarn", rope_theta=1e4, factor=4.0, original_max_position_embeddings=16, mscale=0.75, mscale_all_dim=0.75)
    configs = {
        "deepseek-v2-lite": t.DeepseekV2Config(**sizes, q_lora_rank=None, n_routed_experts=3, num_experts_per_tok=2, n_shared_experts=2,
                                               routed_scaling_factor=1.5, topk_method="greedy", rope_parameters=yarn),
        "deepseek-v3": t.DeepseekV3Config(**sizes, q_lora_rank=10, n_routed_experts=4, num_experts_per_tok=2, n_shared_experts=1, n_group=2,
                                          topk_group=1, routed_scaling_factor=2.5, rope_parameters=dict(rope_type="default", rope_theta=1e4)),
    }
    write_deepseek("deepseek-v2-lite", configs["deepseek-v2-lite"], latent=False)
    write_deepseek("deepseek-v3", configs["deepseek-v3"], latent=True)
    return configs


def main():
    quants()
    small = dict(vocab_size=24, hidden_size=16, intermediate_size=20, num_hidden_layers=2, num_attention_heads=4,
                 num_key_value_heads=2, max_position_embeddings=64, bos_token_id=0, eos_token_id=1, pad_token_id=None)
    llama3 = dict(rope_type="llama3", factor=32.0, low_freq_factor=1.0, high_freq_factor=4.0,
                  original_max_position_embeddings=8192)
    t = transformers
    llama = t.LlamaConfig(**small, head_dim=8, rms_norm_eps=1e-5, tie_word_embeddings=True,
                          rope_parameters=dict(rope_theta=5e5, **llama3))
    wide = t.LlamaConfig(**{**small, "hidden_size": 32, "intermediate_size": 32}, tie_word_embeddings=False,
                         attention_bias=True)
    qwen2 = t.Qwen2Config(**small, tie_word_embeddings=True)
    qwen3 = t.Qwen3Config(**small, head_dim=8, tie_word_embeddings=False)
    gemma3 = t.Gemma3TextConfig(**{**small, "num_hidden_layers": 7}, head_dim=8, query_pre_attn_scalar=8,
                                sliding_window=16, tie_word_embeddings=True)
    sizes = dict(vocab_size=24, n_embd=16, n_layer=2, n_head=4, n_positions=64, n_ctx=64, bos_token_id=0, eos_token_id=1)
    gpt2 = t.GPT2Config(**sizes)
    gpt2_wide = t.GPT2Config(**{**sizes, "n_embd": 32, "n_layer": 1})
    key = [("add_key_length", 8), ("add_value_length", 8)]

    write("llama", "llama", llama, base=5e5, rope_factors=llama3_factors(5e5, 8, llama3),
          extra=[("add_rope_dimension_count", 8), *key])
    write("llama", "llama-q8_0", wide, base=1e4, quantize=T.Q8_0, extra=[("add_rope_dimension_count", 8)])
    write("qwen2", "qwen2", qwen2, base=1e4)
    write("qwen3", "qwen3", qwen3, base=1e4, extra=key)
    write("gemma3", "gemma3", gemma3, base=1e6, extra=[*key, ("add_sliding_window", 16)])
    write("gpt2", "gpt2", gpt2)
    write("gpt2", "gpt2-q8_0", gpt2_wide, quantize=T.Q8_0)

    configs = dict(llama=llama, qwen2=qwen2, qwen3=qwen3, gemma3=gemma3, gpt2=gpt2)
    configs["llama-q8_0"] = wide
    configs["gpt2-q8_0"] = gpt2_wide
    fields = {}
    for stem, config in sorted(configs.items()):
        fields[stem] = {f: getattr(config, f) for f in FIELDS if hasattr(config, f)}
        fields[stem]["model_type"] = config.model_type
    for stem, config in older().items():
        fields[stem] = {f: getattr(config, f) for f in FIELDS + OLDER_FIELDS if hasattr(config, f)}
        fields[stem]["model_type"] = config.model_type
    for stem, config in deepseek().items():
        fields[stem] = {f: getattr(config, f) for f in FIELDS + DEEPSEEK_FIELDS if hasattr(config, f)}
        fields[stem] = {f: x for f, x in fields[stem].items() if x is not None}
        fields[stem]["model_type"] = config.model_type
    text = json.dumps(fields, indent=1, sort_keys=True)
    (HERE / "configs.json").write_text(text + "\n")


if __name__ == "__main__":
    main()
    import current  # which needs what stands above

    current.current()
