from own import cases
from samebits.selfcheck import Part

PART = Part("good", "a part of the tests", 1, cases.good)
