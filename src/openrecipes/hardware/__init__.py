"""GPUs, cloud instances and dated prices.

Pure: reads only its own package data and catalogue files that a user names.
"""
