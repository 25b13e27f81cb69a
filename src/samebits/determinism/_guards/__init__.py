"""Guards of the switch: they refuse, watch or check calls."""
