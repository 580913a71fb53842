"""From a Hugging Face config to layers, parameters, FLOPs and activation bytes.

Pure: reads only its own package data and the config it is given.
"""
