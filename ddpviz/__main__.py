"""`python -m ddpviz` is `ddpviz`."""

import sys

from ddpviz.cli import main

if __name__ == "__main__":
    sys.exit(main())
