"""InternLM 2, which transformers has not."""

from case import Case
from mutations import set_attr
from reference import internlm2

CASES = {
    "internlm2": Case(
        config=internlm2.config,
        model=internlm2.Model,
        read=internlm2.read,
        write=internlm2.write,
        features={
            "rope": set_attr("rotates", False),
            "rope base ÷ 4": set_attr("config.rope_theta", 250000),
            "rows by key head": set_attr("stacked", True),
            "w1 and w3": set_attr("swapped", True),
            "causal mask": set_attr("causal", False),
        },
        embeddings=("tok_embeddings.weight",),
    ),
}
