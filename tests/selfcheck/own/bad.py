from own import cases
from samebits.selfcheck import Part

PART = Part("bad", "a part of the tests", 1, cases.bad)
