"""Run the command line with `python -m precast.cli`."""

import sys

from precast.cli.app import main

if __name__ == "__main__":
    sys.exit(main())
