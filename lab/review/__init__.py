"""`python -m lab.review`: runs the cases of the catalogue again and again on this machine, and compares the bytes."""
