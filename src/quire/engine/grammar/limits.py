"""The limits under which grammars are checked by the server and used by the engine."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from llguidance import LLParserLimits

INITIAL_LEXER_FUEL = 1_000_000
"""Work to build the expressions of a grammar: about 20 ms."""
STEP_LEXER_FUEL = 200_000
"""Work of the lexer for one token: about 14 ms."""
STEP_MAX_ITEMS = 50_000
"""Items of the parser for one token: about 2.5 ms."""
MAX_LEXER_STATES = 50_000
"""States of the lexer of one request, of 1 to 2 kB each."""
MAX_GRAMMAR_SYMBOLS = 100_000


def parser_limits() -> "LLParserLimits":
    """Return the limits of one grammar. Errors do not quote the state of the parser."""
    from llguidance import LLParserLimits  # late: most servers compile no grammar

    return LLParserLimits(
        initial_lexer_fuel=INITIAL_LEXER_FUEL,
        step_lexer_fuel=STEP_LEXER_FUEL,
        step_max_items=STEP_MAX_ITEMS,
        max_lexer_states=MAX_LEXER_STATES,
        max_grammar_size=MAX_GRAMMAR_SYMBOLS,
        verbose_errors=False,
    )
