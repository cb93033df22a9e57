"""`python -m parlay.entrypoints.openai.api_server FLAGS`, which is `parlay serve FLAGS`."""

import sys

from parlay.cli.main import main

if __name__ == "__main__":
    sys.exit(main(["serve", *sys.argv[1:]]))
