"""OPT and Galactica."""

import transformers as t
from torch import nn

from case import Case
from mutations import NO_MASK, attentions


def config(**more):
    return t.OPTConfig(
        vocab_size=131, hidden_size=64, ffn_dim=80, num_hidden_layers=2, num_attention_heads=4, max_position_embeddings=128,
        pad_token_id=None, bos_token_id=1, eos_token_id=2, attn_implementation="eager", dtype="float32", **more,
    )


def no_offset(model):
    model.model.decoder.embed_positions.offset = 0


def unscaled(model):
    for a in attentions(model):
        a.scaling = 1.0


def act(f):
    def mutate(model):
        for layer in model.model.decoder.layers:
            layer.activation_fn = f

    return mutate


def flip_norms(model):
    for layer in model.model.decoder.layers:
        layer.do_layer_norm_before = not layer.do_layer_norm_before


FEATURES = {
    "learned positions": lambda m: m.model.decoder.embed_positions.weight.zero_(),
    "position offset": no_offset,
    "score scale": unscaled,
    "activation (GELU)": act(nn.GELU()),
    "place of norms": flip_norms,
    **NO_MASK,
}
SHARED = dict(
    embeddings=("embed_tokens.weight", "embed_positions.weight"),
    # q · b_k is the same for every key where nothing rotates, so softmax does not see it.
    inert=("k_proj.bias",),
)


def decoder(model):
    return model.model.decoder


CASES = {
    "opt": Case(config=config, features=FEATURES, final_norm=lambda m: decoder(m).final_layer_norm, **SHARED),
    "opt-post-norm": Case(
        config=lambda: config(do_layer_norm_before=False),
        features=FEATURES,
        final_norm=lambda m: decoder(m).layers[-1].final_layer_norm,
        **SHARED,
    ),
    "opt-350m": Case(
        config=lambda: config(do_layer_norm_before=False, word_embed_proj_dim=32),
        features=FEATURES,
        final_norm=lambda m: decoder(m).project_out,
        **SHARED,
    ),
    "opt-early": Case(
        config=lambda: config(_remove_final_layer_norm=True, tie_word_embeddings=False),
        features={
            **FEATURES,
            "final norm": lambda m: setattr(decoder(m), "final_layer_norm", nn.LayerNorm(64)),
        },
        final_norm=lambda m: m.lm_head,
        **SHARED,
    ),
    "opt-galactica": Case(
        config=lambda: config(
            enable_bias=False, layer_norm_elementwise_affine=False, activation_function="gelu", tie_word_embeddings=False
        ),
        features={
            **{k: v for k, v in FEATURES.items() if "activation" not in k},
            "activation (ReLU)": act(nn.ReLU()),
            "final norm": lambda m: setattr(decoder(m), "final_layer_norm", None),
        },
        final_norm=lambda m: m.lm_head,
        **SHARED,
    ),
}
