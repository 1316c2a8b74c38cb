"""A driver in a process of its own, to be killed: `killed_driver.py FOLDER STARTS STATE`; it is slow in that state."""

from __future__ import annotations

import sys
import threading
import time
from pathlib import Path

from crosszone.run import engine as driving
from crosszone.run import service as serving
from crosszone.run.runners.supervised import SupervisedRunner
from crosszone.run.service import Service
from crosszone.store import open_store
from run.test_engine import work as scripts

WAIT_S = 600


def main(folder: str, starts: str, slow: str) -> None:
    """Drive every task of the folder's store."""
    driving.LEASE_S, driving.RENEW_S = 2.0, 0.4

    def work(checked, *_):
        if slow == "initializing":
            time.sleep(WAIT_S)
        doing = scripts(Path(starts), nodes=len(checked.environments), pause=1.0)
        return doing.replace(environments=checked.environments)

    def check(*_, **__):
        if slow == "preflight":
            time.sleep(WAIT_S)
        return []

    serving.plan_work, serving.run_preflight = work, check
    if slow == "stopping":
        ends = SupervisedRunner.stop

        def stop(self, token):
            ends(self, token)
            time.sleep(WAIT_S)

        SupervisedRunner.stop = stop
    with open_store(f"sqlite:///{folder}/saved.db") as store:
        Service(store).get_engine().run_until(threading.Event())


if __name__ == "__main__":
    main(*sys.argv[1:])
