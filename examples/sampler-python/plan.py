"""Once per request: reads the arguments and asks for candidates.

componentize-py looks for the class of an exported resource in a module named after the interface: `plan.sampler`.
"""

import json

from componentize_py_types import Err
from wit_world.exports import plan
from wit_world.exports.plan import Asked, Draw_Step, SamplingPlan
from wit_world.imports.types import Error_InvalidRequest


class Sampler(plan.Sampler):
    @classmethod
    def create(cls, request, facts):
        fields = json.loads(request)
        args = fields | (fields.get("sampler_args") or {})

        def number(name, otherwise, low, high):
            x = otherwise if args.get(name) is None else args[name]
            if type(x) not in (int, float) or not low <= x <= high:
                raise wrong(name, f"between {low} and {high}", x)
            return x

        sampler = cls()
        sampler.seed = fields.get("seed")
        sampler.k = 20 if args.get("k") is None else args["k"]
        if type(sampler.k) is not int or not 1 <= sampler.k <= 1024:
            raise wrong("k", "a whole number from 1 to 1024", sampler.k)
        sampler.min = number("min", 0.3, 0.01, 100)
        sampler.max = number("max", max(sampler.min, 1.5), sampler.min, 100)
        return sampler

    def plan(self):
        """No stages on the device, then the best k candidates of each row come to `step`."""
        asked = Asked(candidates=self.k, search=False, hidden=False)
        return SamplingPlan(stages=[], draw=Draw_Step(asked), seed=self.seed, ext=[])


def wrong(name, expected, x):
    """Becomes an HTTP 400 whose `param` is the text before the colon."""
    return Err(Error_InvalidRequest(f"{name}: must be {expected}, got {json.dumps(x)}"))
