r"""LaTeX as docutils reads it.

TeX takes one character for an argument without braces: ``\frac12 p`` is p / 2. docutils takes a
whole number, 12 / p, and says nothing.
"""

import re

# Commands that docutils doesn't know, by those that it does.
SYNONYMS = {r"\dots": r"\ldots", r"\lvert": "|", r"\rvert": "|", r"\lVert": r"\|", r"\rVert": r"\|"}
# Commands by their number of arguments.
WITH_ARGUMENTS = re.compile(r"\\(?P<two>[dt]?frac)(?![A-Za-z])|\\sqrt(?![A-Za-z\[])|[\^_]")
TOKEN = re.compile(r"\\(?:[A-Za-z]+|.)|.", re.DOTALL)


def readable(latex):
    """Return LaTeX with commands that docutils knows, and braces around their arguments."""
    known = re.sub(r"\\[A-Za-z]+", lambda found: SYNONYMS.get(found[0], found[0]), latex.strip())
    return with_braces(known)


def with_braces(latex):
    """Put braces around the arguments of fractions, roots, powers and indices."""
    found = WITH_ARGUMENTS.search(latex)
    if not found:
        return latex
    rest, arguments = latex[found.end() :], []
    for _ in range(2 if found["two"] else 1):
        argument, rest = first_argument(rest)
        arguments.append("{" + with_braces(argument) + "}")
    return latex[: found.end()] + "".join(arguments) + with_braces(rest)


def first_argument(latex):
    """Return the first argument of a command without its braces, and what follows it."""
    latex = latex.lstrip()
    if not latex.startswith("{"):
        token = TOKEN.match(latex)
        end = token.end() if token else 0
        return latex[:end], latex[end:]
    depth = 0
    for end, character in enumerate(latex):
        depth += (character == "{") - (character == "}")
        if depth == 0:
            return latex[1:end], latex[end + 1 :]
    raise ValueError(f"A brace isn't closed: {latex}")
