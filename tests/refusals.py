"""How the tests ask for an error."""
import re

import pytest


def refuses(error, *words):
    """Exactly this error (not a subclass), whose text holds every one of the words, in this order."""
    return pytest.raises(error, match="(?s)" + ".*".join(map(re.escape, words)),
                         check=lambda e: type(e) is error)
