"""From runs to a recipe, and back: every number derived again from the evidence."""
