"""How a chain moves: one file a move, which proposes and learns from its proposals' outcomes."""
