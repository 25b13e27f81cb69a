"""The ground floor for looking at programs: nested state, user code, generator states, bytecode, patches."""
