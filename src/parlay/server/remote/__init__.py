"""The engine as the server's front sees it: in a process of its own, or several of them."""
