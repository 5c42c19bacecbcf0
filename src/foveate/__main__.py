"""``python -m foveate``, which launchers of many processes need."""

import sys

from foveate_cli.main import main

sys.exit(main())
