"""Elementary functions as fixed sequences of IEEE operations: no libm, no table of the vendor, no contraction."""
