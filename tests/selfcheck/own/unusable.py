import os

if "SAMEBITS_TEST_WORKER" in os.environ:
    raise ImportError("no such library")

from samebits.selfcheck import Part

PART = Part("unusable", "a part whose file does not load", 1, list, {"SAMEBITS_TEST_WORKER": "1"})
