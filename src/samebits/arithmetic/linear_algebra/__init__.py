"""Triangular systems and factorisations. The definition of their bits is in `definition`."""
