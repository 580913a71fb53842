"""Static pages from recipes and runs.

Reads recipes and run records; writes HTML, JSON and SVG.
"""
