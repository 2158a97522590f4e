"""The same golden models written in other ways that guests must read alike, and configs that guests must refuse.

    python tests/golden/variants.py FOLDER_OF_GUESTS     (guesthouse_model_*.wasm)

Needs `pip install wasmtime` beside torch.
"""

import json
import pathlib
import sys

import torch
from safetensors.torch import load_file

import guest

FOLDER = pathlib.Path(sys.argv[1])


class Guests(dict):
    def __missing__(self, name):
        self[name] = guest.Guest(FOLDER / f"guesthouse_model_{name}.wasm")
        return self[name]


GUESTS = Guests()


def load(name):
    folder = guest.HERE / "cases" / name
    read = lambda f: json.loads((folder / f).read_text())
    return read("config.json"), load_file(folder / "model.safetensors"), read("golden.json")


def same(what, by, config, tensors, golden):
    worst = 0.0
    for prompt in golden["prompts"]:
        b = guest.Builder(tensors, prompt["ids"])
        GUESTS[by].build(b, config)
        worst = max(worst, (b.logits[prompt["positions"]] - torch.tensor(prompt["logits"])).abs().max().item())
    assert worst <= golden["tolerance"], (what, worst)
    assert not set(tensors) - b.used, (what, set(tensors) - b.used)
    print(f"same: {what}")


def refused(by, model, says, **changes):
    config, tensors, _ = load(model)
    text = config["text_config"] if "text_config" in config else config
    text.update(changes)
    b = guest.Builder(tensors, [5])
    try:
        GUESTS[by].build(b, config)
    except guest.Refused as e:
        assert str(e).startswith("invalid-config: " + says), str(e)
        print(f"refused: {e}")
    else:
        raise AssertionError(f"{by} took {changes}")


def renamed(config, **names):
    """The config with fields `old="new"`; a name of None takes the field out."""
    config = dict(config)
    for old, new in names.items():
        value = config.pop(old, None)
        if new is not None:
            config[new] = value
    return config


def older_families():
    """GPT-J to Falcon under the names of their first repositories, and what their guests refuse."""
    bare = lambda tensors, prefix="transformer.": {k.removeprefix(prefix): v for k, v in tensors.items()}
    general = dict(n_embd="hidden_size", n_layer="num_hidden_layers", n_head="num_attention_heads", n_positions="max_position_embeddings")

    config, tensors, golden = load("gptbigcode")
    same("StarCoder without a prefix", "gptbigcode", config, bare(tensors), golden)
    same("StarCoder with general names", "gptbigcode", renamed(config, **general), tensors, golden)
    custom = {}
    for k, v in tensors.items():
        if ".c_attn." in k:
            custom[k.replace("c_attn", "q_attn")], custom[k.replace("c_attn", "kv_attn")] = v[:64], v[64:]
        else:
            custom[k] = v
    linear = ("attn.weight", "c_proj.weight", "c_fc.weight")
    custom = {k: v.T.contiguous() if k.endswith(linear) else v for k, v in custom.items()}
    first = {**renamed(config, multi_query=None), "architectures": ["GPT2LMHeadCustomModel"], "attention_head_type": "multiquery"}
    same("SantaCoder's first form", "gptbigcode", first, custom, golden)
    refused("gptbigcode", "gptbigcode", "add_cross_attention is true", add_cross_attention=True)
    refused("gptbigcode", "gptbigcode", "n_head is missing", n_head=None)

    config, tensors, golden = load("gptj")
    same("GPT-J without a prefix", "gptj", config, bare(tensors), golden)
    same("GPT-J with general names", "gptj", renamed(config, **general), tensors, golden)
    refused("gptj", "gptj", "rotary_dim is 18", rotary_dim=18)
    refused("gptj", "gptj", "rotary_dim is 7", rotary_dim=7)

    config, tensors, golden = load("gptneox")
    newer = renamed(config, rotary_emb_base=None, rotary_pct=None)
    newer["rope_parameters"] = dict(rope_type="default", rope_theta=10000.0, partial_rotary_factor=0.25)
    head = {k.replace("embed_out", "lm_head"): v for k, v in tensors.items()}
    same("NeoX with transformers 5's names", "gptneox", newer, head, golden)
    same("NeoX without a prefix", "gptneox", config, bare(tensors, "gpt_neox."), golden)
    refused("gptneox", "gptneox", "hidden_size is 65", hidden_size=65)
    refused("gptneox", "gptneox", "rotary_pct is 1.5", rotary_pct=1.5)

    config, tensors, golden = load("opt-350m")
    same("OPT 350m without a prefix", "opt", config, bare(tensors, "model."), golden)
    refused("opt", "opt", "activation_function is \"maxout\"", activation_function="maxout")

    config, tensors, golden = load("bloom")
    same("BLOOM without a prefix", "bloom", config, bare(tensors), golden)
    newer = renamed(config, n_embed="hidden_size", num_attention_heads="n_head", seq_length=None, n_inner=None)
    same("BLOOM with transformers 5's names", "bloom", newer, tensors, golden)
    refused("bloom", "bloom", "apply_residual_connection_post_layernorm is true", apply_residual_connection_post_layernorm=True)

    first = dict(num_attention_heads="n_head", num_hidden_layers="n_layer", max_position_embeddings=None)
    rw = lambda config, **names: {**renamed(config, **first, **names), "architectures": ["RWForCausalLM"]}
    config, tensors, golden = load("falcon-7b")
    small = rw(config, num_kv_heads=None, new_decoder_architecture=None, num_ln_in_parallel_attn=None)
    same("RW 7B", "falcon", small, bare(tensors), golden)
    config, tensors, golden = load("falcon-40b")
    large = rw(config, num_kv_heads="n_head_kv", new_decoder_architecture=None, multi_query=None, num_ln_in_parallel_attn=None)
    same("RW 40B", "falcon", large, tensors, golden)
    config, tensors, golden = load("falcon-rw")
    newer = {**renamed(config, n_head="num_attention_heads", n_layer="num_hidden_layers"), "architectures": ["FalconForCausalLM"]}
    same("Falcon RW with transformers' names", "falcon", newer, tensors, golden)
    refused("falcon", "falcon-40b", "num_kv_heads is 3", num_kv_heads=3)
    refused("falcon", "falcon-7b", "num_ln_in_parallel_attn is 2", num_ln_in_parallel_attn=2)
    refused("falcon", "falcon-7b", 'rope_scaling.type is "ntk"', rope_parameters=None, rope_scaling=dict(type="ntk", factor=2))

    config, tensors, golden = load("mpt-clip")
    same("MPT without a prefix", "mpt", config, bare(tensors), golden)
    same("MPT under llm-foundry's name", "mpt", {**config, "architectures": ["MPTForCausalLM"]}, tensors, golden)
    general = dict(d_model="hidden_size", n_layers="num_hidden_layers", n_heads="num_attention_heads")
    same("MPT with general names", "mpt", renamed(config, **general), tensors, golden)
    attn = config["attn_config"]
    refused("mpt", "mpt", "attn_config.prefix_lm is true", attn_config={**attn, "prefix_lm": True})
    refused("mpt", "mpt", "attn_config.qk_gn is true", attn_config={**attn, "qk_gn": True})
    refused("mpt", "mpt", 'norm_type is "rmsnorm"', norm_type="rmsnorm")
    refused("mpt", "mpt", "attn_config.kv_n_heads is 3", attn_config={**attn, "attn_type": "grouped_query_attention", "kv_n_heads": 3})
    refused("mpt", "mpt", "expansion_ratio is -1", expansion_ratio=-1)
    refused("mpt", "mpt", 'logit_scale is "big"', logit_scale="big")


def current_families():
    """Rope as transformers 4 and as transformers 5 spell it, and defaults that published configs rely on."""
    config, tensors, golden = load("gemma")
    del config["hidden_act"]
    same("Gemma with hidden_activation", "gemma", {**config, "hidden_activation": "gelu_pytorch_tanh"}, tensors, golden)
    same("Gemma with the first configs' gelu", "gemma", {**config, "hidden_act": "gelu"}, tensors, golden)
    config, tensors, golden = load("gemma2")
    same("Gemma 2 without layer types", "gemma", {k: v for k, v in config.items() if k != "layer_types"}, tensors, golden)

    for name, by in (("phi", "phi"), ("phi3", "phi3"), ("stablelm", "stablelm"), ("glm4", "glm4"), ("llama-linear", "llama")):
        config, tensors, golden = load(name)
        rope = dict(config.pop("rope_scaling") or dict(rope_type="default"), rope_theta=config.pop("rope_theta"))
        if "partial_rotary_factor" in config:
            rope["partial_rotary_factor"] = config.pop("partial_rotary_factor")
        same(f"{name} with newer rope", by, {**config, "rope_parameters": rope}, tensors, golden)
    config, tensors, golden = load("phi3")
    first = {**config, "rope_scaling": {**config["rope_scaling"], "type": "su"}}
    same("Phi 3 with longrope's first name", "phi3", first, tensors, golden)
    config, tensors, golden = load("cohere2")
    types = config.pop("layer_types")
    assert types == ["sliding_attention", "full_attention", "sliding_attention"]
    same("Command R7B with a pattern", "cohere", {**config, "sliding_window_pattern": 2}, tensors, golden)
    config, tensors, golden = load("glm4")
    assert (config.pop("partial_rotary_factor"), config.pop("attention_bias")) == (0.5, True)
    same("GLM-4 with defaults", "glm4", config, tensors, golden)

    refused("gemma", "gemma2", "use_bidirectional_attention is true", use_bidirectional_attention=True)
    refused("phi", "phi", "partial_rotary_factor is 1.5", partial_rotary_factor=1.5)
    refused("phi3", "phi3", "rope_scaling.long_factor is missing", rope_scaling=dict(type="longrope", short_factor=[1.0] * 6))
    refused("stablelm", "stablelm", 'hidden_act is "swiglu"', hidden_act="swiglu")
    refused("cohere", "cohere2", 'layer_types has "chunked_attention"', layer_types=["chunked_attention"] * 3)
    refused("granite", "granite", "logits_scaling is 0", logits_scaling=0)
    refused("granite", "minicpm", "num_experts is 8", num_experts=8)
    refused("granite", "minicpm", "sparse_config is", sparse_config=dict(kernel_size=32))
    refused("smollm3", "smollm3-window", "no_rope_layers is [1,1]", no_rope_layers=[1, 1])
    refused("glm4", "glm4", "num_key_value_heads is 3", num_key_value_heads=3)


def deepseek():
    """Experts as transformers 5 holds them, rope as the published configs spell it."""
    for name in ("deepseek-v2", "deepseek-v3"):
        config, tensors, golden = load(name)
        stacked = {k: v for k, v in tensors.items() if ".experts." not in k}
        at = "model.layers.1.mlp.experts"
        each = lambda e, part: tensors[f"{at}.{e}.{part}_proj.weight"]
        experts = range(config["n_routed_experts"])
        stacked[f"{at}.gate_up_proj"] = torch.stack([torch.cat([each(e, "gate"), each(e, "up")]) for e in experts])
        stacked[f"{at}.down_proj"] = torch.stack([each(e, "down") for e in experts])
        same(f"{name} with stacked experts", "deepseek", config, stacked, golden)
        rope = dict(config.pop("rope_parameters"))
        first = dict(rope_theta=rope.pop("rope_theta"), rope_scaling={**rope, "type": rope.pop("rope_type")})
        first |= dict(scoring_func="softmax", moe_layer_freq=1) if name == "deepseek-v2" else dict(scoring_func="sigmoid", topk_method="noaux_tc")
        same(f"{name} with older rope", "deepseek", {**config, **first}, tensors, golden)
    refused("deepseek", "deepseek-v2", 'topk_method is "noaux_tc"', topk_method="noaux_tc")
    refused("deepseek", "deepseek-v2", "moe_layer_freq is 2", moe_layer_freq=2)
    refused("deepseek", "deepseek-v2", "n_group is missing", n_group=None)
    refused("deepseek", "deepseek-v3", 'scoring_func is "softmax"', scoring_func="softmax")
    refused("deepseek", "deepseek-v3", "num_key_value_heads is 2", num_key_value_heads=2)
    refused("deepseek", "deepseek-v3", "kv_lora_rank is missing", kv_lora_rank=None)


def remote_families():
    """Those whose code stood in the model repository."""
    refused("baichuan", "baichuan-13b", "hidden_size is 48", num_attention_heads=7)
    refused("baichuan", "baichuan-7b", "tie_word_embeddings is true", tie_word_embeddings=True)
    refused("qwen1", "qwen1-plain", "rotary_pct is 1.5", rotary_pct=1.5)
    refused("qwen1", "qwen1-plain", "scale_attn_weights is false", scale_attn_weights=False)
    refused("qwen1", "qwen1-plain", "intermediate_size is 161", intermediate_size=161)
    config, tensors, golden = load("chatglm-6b")
    buffers = {k: v for k, v in config.items() if k not in ("pre_seq_len", "prefix_projection", "quantization_bit")}
    general = {**buffers, "architectures": ["ChatGLMForConditionalGeneration"]}
    same("ChatGLM-6B under its other name", "chatglm", general, tensors, golden)
    refused("chatglm", "chatglm-6b", "position_encoding_2d is false", position_encoding_2d=False)
    refused("chatglm", "chatglm-6b", "pre_seq_len is 128", pre_seq_len=128)
    refused("chatglm", "chatglm-6b", "quantization_bit is 4", quantization_bit=4)
    refused("chatglm", "chatglm-6b", "gmask_token_id is missing", gmask_token_id=None)
    refused("chatglm", "chatglm2-6b", "original_rope is false", original_rope=False)
    refused("chatglm", "chatglm2-6b", "multi_query_group_num is 3", multi_query_group_num=3)


def main():
    remote_families()
    older_families()
    current_families()
    deepseek()
    config, tensors, golden = load("gpt2")
    strip = {k.removeprefix("transformer."): v for k, v in tensors.items()}
    same("GPT-2 without a prefix", "gpt2", config, strip, golden)
    linear = lambda k: k.endswith(("c_attn.weight", "c_proj.weight", "c_fc.weight"))
    turned = {k: v.T.contiguous() if linear(k) else v for k, v in tensors.items()}
    same("GPT-2 transposed by the host", "gpt2", {**config, "guesthouse": {"conv1d_transposed": True}}, turned, golden)
    names = dict(n_embd="hidden_size", n_layer="num_hidden_layers", n_head="num_attention_heads", n_positions="max_position_embeddings")
    same("GPT-2 with general names", "gpt2", {names.get(k, k): v for k, v in config.items()}, tensors, golden)

    config, tensors, golden = load("gemma3")
    older = {k: v for k, v in config.items() if k != "rope_parameters"}
    older |= dict(rope_theta=1000000.0, rope_local_base_freq=10000.0, rope_scaling=dict(rope_type="linear", factor=8.0))
    same("Gemma 3 with older rope", "gemma", older, tensors, golden)
    for prefix in ("language_model.model.", "model.language_model."):
        nested = dict(architectures=["Gemma3ForConditionalGeneration"], text_config=older)
        renamed = {k.replace("model.", prefix, 1): v for k, v in tensors.items()}
        same(f"Gemma 3 inside a multimodal model, {prefix}", "gemma", nested, renamed, golden)

    config, tensors, golden = load("llama-rope3")
    s, d = config["rope_scaling"], config["head_dim"]
    inv = 1.0 / config["rope_theta"] ** (torch.arange(0, d, 2).double() / d)
    wave = 2 * torch.pi / inv
    smooth = (s["original_max_position_embeddings"] / wave - s["low_freq_factor"]) / (s["high_freq_factor"] - s["low_freq_factor"])
    scaled = (inv * (1 - smooth.clamp(0, 1)) / s["factor"] + inv * smooth.clamp(0, 1))
    factors = {**tensors, "rope_freqs.weight": (inv / scaled).float()}
    same("Llama 3 with rope factors", "llama", {**config, "rope_scaling": None}, factors, golden)
    newer = {k: v for k, v in config.items() if k not in ("rope_theta", "rope_scaling")}
    newer["rope_parameters"] = {**s, "rope_theta": config["rope_theta"]}
    same("Llama 3 with newer rope", "llama", newer, tensors, golden)

    refused("llama", "llama", 'hidden_act is "swiglu"', hidden_act="swiglu")
    refused("llama", "llama", 'rope_scaling.type is "ntk-mixed"', rope_parameters=None, rope_scaling=dict(type="ntk-mixed", factor=2))
    refused("llama", "llama", 'layer_types has "chunked_attention"', layer_types=["chunked_attention"] * 3)
    refused("llama", "llama", "residual_multiplier is 0.2", residual_multiplier=0.2)
    refused("llama", "llama", "num_key_value_heads is 3", num_key_value_heads=3)
    refused("llama", "llama", "hidden_size is missing", hidden_size=None)
    refused("qwen", "qwen2", "use_mrope is true", use_mrope=True)
    refused("gpt2", "gpt2", "add_cross_attention is true", add_cross_attention=True)
    refused("gpt2", "gpt2", "n_embd is 63", n_embd=63)
    refused("gemma", "gemma3", "use_bidirectional_attention is true", use_bidirectional_attention=True)
    refused("qwen", "llama", 'architectures is ["LlamaForCausalLM"]')


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
