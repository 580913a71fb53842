"""Parallelism, applied to the one-process model from outside; one file per kind.

`mesh` names the axes that ranks lie on, `collectives` talks along one axis, `data_parallel` shards
the optimizer, `expert_parallel` spreads experts, `pipeline` passes micro-batches from stage to
stage. On an axis of size 1 nothing is sent.
"""
