from own import cases
from samebits.selfcheck import Part

PART = Part("slow", "a part of the tests", 1, cases.slow)
