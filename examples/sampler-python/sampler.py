"""Top-k with a temperature that follows the entropy of each row: certain rows are cooled, uncertain ones are warmed.

The same sampler as sampler-rust and sampler-javascript, token for token.
"""

from wit_world.exports.stepping import Choices
from wit_world.imports.log import Level, log


def temperature(sampler, h):
    """Temperature at entropy h (nats): `min` where it is 0, halfway to `max` where it is 1, towards `max` above."""
    return sampler.min + (sampler.max - sampler.min) * (h / (1 + h))


def exp(x):
    """e^x for x <= 0, as (1 + x / 2^20)^(2^20). Sums and products round alike in every language; `math.exp` does not."""
    y = max(1 + x / (1 << 20), 0.0)
    for _ in range(20):
        y *= y
    return y


def draw(weights, u):
    """Index of the candidate that the uniform number u picks among the weights."""
    total = 0.0
    for w in weights:  # not sum(), which compensates rounding errors since Python 3.12
        total += w
    reached = 0.0
    for i, w in enumerate(weights):
        reached += w
        if reached > u * total:
            return i
    return 0


class Stepping:
    def step(self, sampler, rows, candidates):
        """Once per step, with all rows of the request: one token for each."""
        n = candidates.n
        choices = Choices(parent=[], token=[], flags=[], score=[])
        for row, (h, u) in enumerate(zip(candidates.entropy, rows.uniform)):
            t = temperature(sampler, h)
            logits = candidates.logits[row * n : (row + 1) * n]
            i = draw([exp((x - logits[0]) / t) for x in logits], u)
            log(Level.DEBUG, f"entropy {h:.3f}, temperature {t:.3f}: candidate {i} of {n}")
            choices.parent.append(row)
            choices.token.append(candidates.tokens[row * n + i])
            choices.flags.append(0)
            choices.score.append(0.0)
        return choices

    def step_logits(self, sampler, rows, logits):
        raise NotImplementedError("this sampler asks for candidates")

    def select(self, sampler, finished):
        raise NotImplementedError("this sampler does not search")
