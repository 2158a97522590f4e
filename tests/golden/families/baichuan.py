"""Baichuan and Baichuan 2, which transformers has not."""

import torch

from case import Case
from mutations import set_attr
from reference import baichuan

COMMON = {
    "Q, K and V by head": set_attr("by_head", True),
    "activation (ReLU)": set_attr("act", torch.relu),
    "score scale × 1.1": set_attr("sharpness", 1.1),
    "causal mask": set_attr("causal", False),
}
ROPE = {"rope": set_attr("rotates", False), "rope base ÷ 4": set_attr("theta", 2500.0)}


def alibi(by):
    def mutate(model):
        model.slopes = by(model.slopes)

    return mutate


# Slopes of heads that are no power of two: in order, the eight of the next power of two, and no distances at all.
ALIBI = {
    "ALiBi": alibi(lambda s: None),
    "ALiBi's rest": alibi(lambda s: s.sort(descending=True).values),
    "ALiBi of 8 heads": alibi(lambda s: torch.tensor([2.0 ** -(i + 1) for i in range(len(s))])),
    "rope instead of ALiBi": lambda m: (setattr(m, "rotates", True), setattr(m, "slopes", None), None)[-1],
}
NORM_HEAD = {"rows of the head by their length": set_attr("norm_head", False)}


def case(size, generation):
    def liven(name, p, normal):
        """Rows of the head of different lengths, so that dividing by them counts."""
        if name != "lm_head.weight" or generation == 1:
            return False
        normal(p, 1.0)
        p *= torch.linspace(0.3, 3.0, len(p))[:, None]
        return True

    return Case(
        config=lambda: baichuan.config(size, generation),
        model=baichuan.Model,
        read=baichuan.read,
        write=baichuan.write,
        features={**COMMON, **(ROPE if size == 7 else ALIBI), **(NORM_HEAD if generation == 2 else {})},
        liven=liven,
        sharp=(),
    )


CASES = {
    "baichuan-7b": case(7, 1),
    "baichuan-13b": case(13, 1),
    "baichuan2-7b": case(7, 2),
    "baichuan2-13b": case(13, 2),
}
