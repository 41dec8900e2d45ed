"""A JupyterHub for the course on one Linux server: one installation for all, and a limit for each learner.

docs/jupyterhub.md says how to use this file and what was measured with it. Change the values below to your own.
"""

import math
from pathlib import Path

c = get_config()  # type: ignore[name-defined]  # noqa: F821  # JupyterHub provides it

# The environment with the course and the package jupyterhub. It belongs to root, and learners only read it.
COURSE = Path("/opt/ipu-course")
# For each learner. The page has the memory that each lesson was measured to need.
CORES = 1.0
MEMORY = "4G"
# A notebook that stays open keeps its kernel, which takes about 1 GB. After this many seconds without work, it goes.
IDLE_KERNEL_SECONDS = 3600

# Every user of this server may log in with their own password.
c.JupyterHub.authenticator_class = "pam"
c.PAMAuthenticator.allow_all = True

# systemd enforces the two limits. The process spawners that come with JupyterHub ignore them.
c.JupyterHub.spawner_class = "systemd"
c.Spawner.cpu_limit = CORES
c.Spawner.mem_limit = MEMORY
c.SystemdSpawner.isolate_tmp = True

# Before each start, the learner's own copy of the lessons is made in their home, and gets lessons that are new.
c.Spawner.cmd = ["/bin/sh", str(Path(__file__).resolve().parent / "start_server.sh"), str(COURSE / "bin")]
c.Spawner.default_url = "/lab/tree/my_course/00_start_here.ipynb"
c.Spawner.args = [
    f"--MappingKernelManager.cull_idle_timeout={IDLE_KERNEL_SECONDS}",
    "--MappingKernelManager.cull_connected=True",
]
c.Spawner.environment = {
    # Without this, plain PyTorch starts a thread for every core of the server in each kernel.
    "OMP_NUM_THREADS": str(max(1, math.floor(CORES))),
    # A kernel that a learner registered in their home must not take the place of the course's.
    "JUPYTER_PREFER_ENV_PATH": "1",
}
# Seconds for the copy, and until the server answers; JupyterHub's own values are short for a server with many logins.
c.Spawner.start_timeout = 120
c.Spawner.http_timeout = 120
