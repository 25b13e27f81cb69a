"""`samebits ops --review`: a battery of ops on the user's own machine, compared byte by byte."""

from samebits.audit.review.report import Review as Review
from samebits.audit.review.review import review as review
