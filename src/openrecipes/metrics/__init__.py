"""Pure figures: tokens/s, step-time spread, MFU, price, measured window, convergence.

No I/O at all. Every function states its formula, its units and where the formula comes from.
"""
