"""The run record: the only truth of a run, its stack, and the figures derived from it.

Reads and writes run directories.
"""
