"""Reads what forms of an answer a client takes, from `Accept` and `Accept-Encoding`."""


def takes(header: str, name: str) -> bool:
    """Return whether a header names this media type or coding, in lower case, with a weight above
    0. Wildcards name nothing: who sends only those gets the plain form."""
    for part in header.lower().split(","):
        named, *parameters = (each.strip() for each in part.split(";"))
        if named == name and not any(map(_is_weight_of_none, parameters)):
            return True
    return False


def _is_weight_of_none(parameter: str) -> bool:
    key, _, weight = parameter.partition("=")
    return key.strip() == "q" and bool(weight.strip()) and not weight.strip(" 0.")
