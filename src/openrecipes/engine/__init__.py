"""The embedded PyTorch engine: trains NemotronH models on torch.distributed's own parts.

The only room, with the tests, that imports torch.
"""
