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
GUESTS = {name: guest.Guest(FOLDER / f"guesthouse_model_{name}.wasm") for name in ("llama", "qwen", "gpt2", "gemma")}


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


def main():
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
