"""Every end of a run leaves no process and no file behind, and says in its last line what happened."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import pytest
from poprun_support import HERE, poprun

LAST_WORDS = "All instances have been stopped."
TWO_HOSTS = ("-H", "127.0.0.2,127.0.0.3", "--num-instances", "2", "--num-replicas", "2")


def test_an_instance_that_is_killed_ends_the_run() -> None:
    """Loaders have processes of their own meanwhile, and the instances are on two hosts.

    poprun stops instance 0 at once, perhaps before it can say what it waited for; what it would say is tested in
    engine/test_instances.py, where nothing stops it.
    """
    run = poprun(*TWO_HOSTS, "python", str(HERE / "instance_program.py"), "killed")
    result = run.finish()
    assert result.returncode == 128 + signal.SIGKILL
    assert result.stdout == "[1,1]<stdout>:now\n"
    last = result.stderr.splitlines()[-1]
    assert last.startswith("poprun: instance 1 (host 127.0.0.3, replica 1) was ended by SIGKILL")
    run.assert_nothing_left()


def test_an_instance_that_ends_before_it_joins_is_not_waited_for() -> None:
    """It ends well, so that nothing stops the others, which would wait for half an hour."""
    program = '[ "$OMPI_COMM_WORLD_RANK" = 1 ] || exec python -c "import popdist; popdist.init()"'
    run = poprun(*TWO_HOSTS, "sh", "-c", program)
    result = run.finish()
    assert result.returncode == 1
    assert "was about to wait for all instances to join, but another instance has ended" in result.stderr
    assert "(instance 1 has ended without joining)" in result.stderr
    assert result.stderr.splitlines()[-1].startswith("poprun: instance 0 (host 127.0.0.2, replica 0) ended with exit")
    run.assert_nothing_left()


def test_signals_to_poprun_end_everything() -> None:
    """Also SIGKILL, which gives poprun no time to say or do anything."""
    signals = signal.SIGINT, signal.SIGTERM, signal.SIGKILL
    runs = {number: poprun("sh", "-c", "echo started; sleep 1000") for number in signals}
    for number, run in runs.items():
        assert run.first_line() == "[1,0]<stdout>:started\n"
        run.process.send_signal(number)
    for number, run in runs.items():
        result = run.finish()
        run.assert_nothing_left()
        if number is signal.SIGKILL:
            assert result.returncode == -signal.SIGKILL
        else:
            assert result.returncode == 128 + number
            assert result.stderr == f"poprun: ended by {number.name}. {LAST_WORDS}\n"


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux lets a process follow its parent into death")
def test_an_agent_that_is_killed_ends_its_instances() -> None:
    run = poprun("sh", "-c", "echo $PPID; exec sleep 1000")
    os.kill(int(run.first_line().partition(":")[2]), signal.SIGKILL)
    result = run.finish()
    assert result.returncode == 1
    assert "the process that runs the instances of host localhost ended with exit code -9" in result.stderr
    run.wait_until_gone()


class TestOtherHosts:
    """A host of another machine, whose remote shell is a script that runs what it is given here."""

    def test_are_reached_through_the_remote_shell(self, tmp_path: Path) -> None:
        shell = tmp_path / "shell.sh"
        shell.write_text(
            "#!/bin/sh\n# As a remote shell: a new environment, and the command as one line.\nhost=$2; shift 2\n"
            'exec env -i POPRUN_TEST_MARK="$POPRUN_TEST_MARK" TMPDIR="$TMPDIR" REACHED="$host" sh -c "$*"\n'
        )
        shell.chmod(0o755)
        run = poprun(
            "--host=192.0.2.1", f"--mpi-global-args=--mca plm_rsh_agent '{shell} -q'", "--mpi-local-args",
            "-x GIVEN -x SAID='a value'", "--num-replicas", "3", "-v",
            "sh", "-c", 'echo "$REACHED, $GIVEN, $SAID, ${KEPT:-nothing}, $POPDIST_NUM_LOCAL_REPLICAS"; exit 7',
            GIVEN="given", KEPT="kept",
        )  # fmt: skip
        result = run.finish()
        assert result.stdout == "[1,0]<stdout>:192.0.2.1, given, a value, nothing, 3\n"
        assert result.returncode == 7
        assert result.stderr.splitlines() == [
            "poprun: host 192.0.2.1 (192.0.2.1, through the remote shell): instances 0 to 0",
            "poprun: instance 0 (host 192.0.2.1, replicas 0 to 2) ended with exit code 7; its last output is above. "
            f"{LAST_WORDS}",
        ]
        run.assert_nothing_left()


@pytest.mark.parametrize(("arguments", "said"), [
    # What the shell said is shown, too.
    (["--host=192.0.2.1", "--mpi-global-args=--mca plm_rsh_agent {shell}", "true"],
     ["poprun: host 192.0.2.1 cannot be reached", "no route to 192.0.2.1"]),
    (["--host=192.0.2.1", "--mpi-global-args=--mca plm_rsh_agent /no/shell", "true"], ["/no/shell cannot be run"]),
    (["--num-instances", "2", "--num-replicas", "2", "train.py", "--fast"],
     ["program 'train.py' was not found on host localhost", "python train.py --fast"]),
])  # fmt: skip
def test_what_cannot_begin_is_named(tmp_path: Path, arguments: list[str], said: list[str]) -> None:
    shell = tmp_path / "shell.sh"
    shell.write_text("#!/bin/sh\necho no route to $1 >&2\nexit 255\n")
    shell.chmod(0o755)
    result = poprun(*(argument.format(shell=shell) for argument in arguments)).finish()
    assert result.returncode == 1
    for words in said:
        assert words in result.stderr
