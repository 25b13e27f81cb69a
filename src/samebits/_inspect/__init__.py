"""The ground floor for looking at programs: whose code it is, the user's calls, names in code, patches."""
