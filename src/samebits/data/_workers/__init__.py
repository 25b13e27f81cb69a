"""How a bound pipeline is read: in this process, or by workers ahead of it. The elements are the same."""
