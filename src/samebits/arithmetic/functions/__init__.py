"""Elementary functions as fixed sequences of IEEE operations: no libm, no vendor's table, no contraction."""
