"""The embedded PyTorch engine: trains NemotronH models on torch.distributed's own parts.

This room imports torch; above it only the gate's component tests do.
"""
