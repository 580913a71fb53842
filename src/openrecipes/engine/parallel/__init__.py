"""Parallelism, applied to the one-process model from outside; one file per kind.

`mesh` names the axes that ranks lie on, `placement` says which part of each parameter a rank holds,
`parts` builds that part, `whole` lays the parts together again. `collectives` talks along one axis.

`tensor_parallel` and `vocabulary` share matrices, `context_parallel` a row's tokens,
`expert_parallel` experts, `data_parallel` the optimizer's state; `pipeline` passes micro-batches
from stage to stage; `recompute` trades time for memory. On an axis of size 1 nothing is sent.
"""
