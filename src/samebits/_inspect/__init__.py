"""The ground floor for looking at programs: whose code it is, the user's calls, names in code, patches.

Read `user_code.py` first. Doors: here and in pyproject.toml. Imports: `_context` and below.
"""
