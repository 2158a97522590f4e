"""GLM-4 as transformers has it; `chatglm.py` has the earlier form."""

import transformers as t

from case import Case, older_rope, small
from mutations import CAUSAL, GQA, ROPE, each, halves, scores, whole_heads_rotate
from families.phi import relu


def sizes():
    return dict(**small(), head_dim=16, rope_parameters=dict(rope_type="default", rope_theta=10000.0, partial_rotary_factor=0.5))


FEATURES = {
    **{k: v for k, v in ROPE.items() if "pairs" not in k},
    "rope pairs": halves,
    "half rope": whole_heads_rotate,
    **GQA,
    "activation (ReLU)": each("MLP", relu),
    "score scale × 1.1": scores(lambda s, a, i: 1.1 * s),
    **CAUSAL,
}

CASES = {
    "glm": Case(config=lambda: t.GlmConfig(**sizes()), features=FEATURES),
    "glm4": Case(config=lambda: t.Glm4Config(**sizes()), features=FEATURES, publish=older_rope),
}
