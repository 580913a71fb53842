"""How a model is split over GPUs: the Layout value, the rank grid, the named rules.

Pure: nothing is read, started or written here.
"""
