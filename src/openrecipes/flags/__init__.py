"""Megatron's arguments: names, types, defaults, classes, and what each engine does with them.

Pure: reads only its own package data.
"""
