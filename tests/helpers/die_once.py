"""``splinenets``, except that one rank is killed after a step of its first life: --die RANK STEP ..."""

import os
import signal
import sys

from splinenets.cli import main
from splinenets.training.loop import Loop

if __name__ == "__main__":
    rank, step = map(int, sys.argv[1:3])
    done = Loop.step

    def dying(self, *args):
        result = done(self, *args)
        if (os.environ["TORCHELASTIC_RESTART_COUNT"], self.rank, self.state.step) == ("0", rank, step):
            os.kill(os.getpid(), signal.SIGKILL)
        return result

    Loop.step = dying
    main(sys.argv[3:])
