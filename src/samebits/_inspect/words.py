"""Lists of names, written as a text."""


def words(text: str) -> frozenset[str]:
    """Returns the words of a text.

    >>> sorted(words("sum mean"))
    ['mean', 'sum']
    """
    return frozenset(text.split())
