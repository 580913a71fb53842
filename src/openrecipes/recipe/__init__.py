"""The recipe document: schema, loading and writing, lint, registry.

Reads and writes recipe files. A recipe is data: nothing in it is ever executed here.
"""
