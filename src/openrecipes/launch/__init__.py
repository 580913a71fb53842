"""Starts an engine somewhere: on this machine, on Ray, under Slurm, or as rendered files.

Starts processes, creates the run directory and closes it.
"""
