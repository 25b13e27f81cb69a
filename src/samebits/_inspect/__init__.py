"""The ground floor for looking at programs: whose code it is, what it holds, and where its generators are."""
