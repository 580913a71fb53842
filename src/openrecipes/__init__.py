"""OpenRecipes: makes, runs, checks, improves and publishes verified training recipes."""

__version__ = "0.1.0"
