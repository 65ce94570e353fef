"""A campaign against this package: seven chapters of seeded trials, each of which holds or fails.

``python -m campaign --help`` says how to run it, docs/reliability.md what is promised and what came of it.
"""
