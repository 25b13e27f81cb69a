from own import cases
from samebits.selfcheck import Part

PART = Part("blind", "a part of the tests", 1, cases.blind)
