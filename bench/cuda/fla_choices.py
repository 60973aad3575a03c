"""How the kernels of flash-linear-attention are tuned: for every shape, since their own keys leave
the length out."""

import json
import os
import sys

import triton
from triton.runtime.autotuner import Autotuner

HALF = ", float16"  # what the names of shapes in float16 end with; they take bfloat16's choices


def tuners():
    """Every kernel of fla that chooses its configuration by timing."""
    for name, module in list(sys.modules.items()):
        if name.startswith("fla."):
            for value in list(vars(module).values()):
                while value is not None and not isinstance(value, Autotuner):
                    value = getattr(value, "fn", None) if hasattr(value, "run") else None
                if value is not None:
                    yield value


def short_timing(call, quantiles):
    return triton.testing.do_bench(call, warmup=1, rep=1, quantiles=quantiles)


class Choices:
    """Configurations by shape and kernel; those that are not known yet are chosen by timing."""

    def __init__(self, path):
        self.path = path
        self.known = {}
        if os.path.exists(path):
            with open(path) as file:
                self.known = json.load(file)
        self.all = [(tuner, tuner.configs) for tuner in {id(t): t for t in tuners()}.values()]

    def knows(self, shape):
        return shape.removesuffix(HALF) in self.known

    def apply(self, shape, part=0, parts=1):
        """Of what is not known every so-manieth configuration."""
        known = self.known.get(shape.removesuffix(HALF), {})
        for tuner, configs in self.all:
            tuner.cache.clear()
            tuner.do_bench = short_timing
            tuner.cache_results = False  # on disk, without the length
            tuner.configs = configs[part % len(configs) :: parts]
            if found := known.get(tuner.base_fn.__name__):
                tuner.configs = [triton.Config(**found)]

    def keep(self, shape):
        self.known[shape.removesuffix(HALF)] = {
            tuner.base_fn.__name__: {
                "kwargs": config.kwargs,
                "num_warps": config.num_warps,
                "num_stages": config.num_stages,
            }
            for tuner, _ in self.all
            for config in tuner.cache.values()
        }
        with open(self.path, "w") as file:
            json.dump(self.known, file, indent=1)
