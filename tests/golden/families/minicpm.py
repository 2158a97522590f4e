"""MiniCPM, which transformers has not."""

from case import Case
from mutations import set_attr
from reference import minicpm

CASES = {
    "minicpm": Case(
        config=minicpm.config,
        model=minicpm.Model,
        read=minicpm.read,
        write=minicpm.write,
        features={
            "rope": set_attr("rotates", False),
            "heads of K and V": set_attr("tiled", True),
            "scale_emb": set_attr("config.scale_emb", 1.0),
            "scale_depth": set_attr("config.scale_depth", 3**0.5),
            "dim_model_base": set_attr("config.dim_model_base", 48),
            "causal mask": set_attr("causal", False),
        },
    ),
}
