"""``python -m openrecipes``."""

from openrecipes.cli.main import main

main()
