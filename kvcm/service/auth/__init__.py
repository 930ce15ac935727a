"""Who may call: bearer tokens, accounts, and the guard in front of both transports."""
