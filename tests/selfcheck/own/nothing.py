from samebits.selfcheck import Part

PART = Part("nothing", "a part without cases", 1, list)
