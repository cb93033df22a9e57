"""The engine as the server's front sees it: in a separate process, or several of them."""
