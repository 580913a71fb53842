"""Component tests: each of the engine's kernels against its formula, written out in fp64.

A difference of class kernel says that another implementation computes the same function. Whether it
does is tested here, on the machine that the candidate ran on: the same inputs, forward and
backward, in fp32 and in the run's precision.
"""
