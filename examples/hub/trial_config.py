"""Try jupyterhub_config.py on your own machine: without systemd and without accounts, for nobody but you.

Anyone who can reach the address logs in with any name and the one password, and limits are not enforced.
"""

import os
from pathlib import Path

c = get_config()  # type: ignore[name-defined]  # noqa: F821  # JupyterHub provides it
HERE = Path(__file__).resolve().parent
# By its whole path: a file that is not found is left out without a word.
load_subconfig(str(HERE / "jupyterhub_config.py"))  # type: ignore[name-defined]  # noqa: F821  # also JupyterHub's
COURSE = Path(os.environ["IPU_COURSE_ENVIRONMENT"])

c.JupyterHub.bind_url = "http://127.0.0.1:8000"
c.JupyterHub.authenticator_class = "dummy"
c.DummyAuthenticator.password = os.environ["IPU_COURSE_TRIAL_PASSWORD"]
c.DummyAuthenticator.allow_all = True
c.JupyterHub.spawner_class = "simple"
c.SimpleLocalProcessSpawner.home_dir_template = str(Path.cwd() / "homes" / "{username}")
c.Spawner.cmd = ["/bin/sh", str(HERE / "start_server.sh"), str(COURSE / "bin")]
if os.geteuid() == 0:
    # A server refuses to run as root unless it is told to. The spawner above starts it as whoever starts the hub.
    c.Spawner.args = [*c.Spawner.args, "--allow-root"]
