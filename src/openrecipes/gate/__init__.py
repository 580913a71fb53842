"""Is it still the same training? Configuration differences by class, and convergence.

Reads run records and recipes; writes verdicts into the candidate's run record, nothing else.
"""
