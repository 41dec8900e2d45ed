"""Files: written whole or not at all, whatever happens; those of a report come back equal, or are refused by the field.

Only regular files are read.
"""

from __future__ import annotations

import hashlib
import json
import os
import signal
import stat
import zlib
from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import msgspec
import numpy as np
import pytest
from hand_written import op, tensor
from hypothesis import given
from report_support import ADVICE, PROFILES, inference_profile, pipeline_profile

from ipu_model.batching import Batching
from ipu_model.errors import Error
from ipu_model.optimiser import Hyper, OptimiserSpec
from ipu_model.predict import profile_program
from ipu_model.predict.calibration import calibrated
from ipu_model.predict.device import CostSettings, Device
from ipu_model.predict.hardware import system_named
from ipu_model.predict.profile import FORMAT
from ipu_model.predict.program import Execution, Location, Locations, Program, Recomputation
from ipu_model.report import files, program_file
from ipu_model.report.files import from_json, read, read_report, to_json, write_report
from ipu_model.report.program_file import from_bytes, to_bytes
from ipu_model.step import FLOAT32, Hints, Op, Phase, Placement, Ref, Source, Step, Variable, step_of_ops
from ipu_model.whole_files import check_writable, read_whole, write_text, write_whole

Edit = Callable[[Any], object]


def changed(edit: Edit) -> str:
    data = json.loads(to_json(inference_profile()))
    edit(data)
    return json.dumps(data)


class TestProfile:
    @given(PROFILES)
    def test_every_profile_comes_back_equal(self, profile) -> None:
        assert from_json(to_json(profile)) == profile

    def test_numbers_keep_their_types(self) -> None:
        profile = replace(inference_profile(), options={"a": 1, "b": 1.0, "c": True, "d": "1"}, name="half\ud800")
        assert [type(value) for value in from_json(to_json(profile)).options.values()] == [int, float, bool, str]
        assert from_json(to_json(profile)).name == profile.name
        of_numpy = replace(inference_profile(), samples_per_call=np.int64(3), call_seconds=np.float64(0.1))
        assert from_json(to_json(of_numpy)) == of_numpy

    @pytest.mark.parametrize(
        ("change", "message"),
        [
            ({"compilation_seconds": float("inf")}, "holds Infinity: numbers must be finite"),
            ({"options": {"rate": float("nan")}}, "holds NaN: numbers must be finite"),
            ({"call_seconds": 0.0}, r"profile\.call_seconds cannot be 0\.0: it must be above 0"),
            ({"notes": (3,)}, r"profile\.notes\[0\]: expected `str`, got `int`"),
        ],
    )
    def test_a_mistake_is_found_when_it_is_written(self, change: dict[str, Any], message: str, tmp_path) -> None:
        with pytest.raises(Error, match=message):
            write_report(replace(inference_profile(), **change), tmp_path / "new")
        assert list(tmp_path.iterdir()) == []

    @pytest.mark.parametrize(
        ("edit", "message"),
        [
            (lambda d: d.pop("updates"), "profile: object missing required field `updates`"),
            (lambda d: d.update(speed=1), "profile: object contains unknown field `speed`"),
            (lambda d: d.update(samples_per_call=True), r"profile\.samples_per_call: expected `int`, got `bool`"),
            (lambda d: d.update(training="x" * 10_000), r"^'poptorch_py_error': profile\.training: .{,60}$"),
            (lambda d: d["timeline"][1].update(seconds=-1), r"profile\.timeline\[1\] has -1\.0 seconds and 1 repeats"),
            (lambda d: d["timeline"][0].update(repeats=0), r"profile\.timeline\[0\] has .* seconds and 0 repeats"),
            (lambda d: d["ops"][0].update(node=1), r"profile\.ops\[0\]\.node: expected `str`, got `int`"),
            (lambda d: d["memory"]["ipus"].clear(), r"profile\.memory\.ipus is empty"),
            (lambda d: d["cycles"].clear(), r"profile\.cycles is empty"),
            *(
                (lambda d, name=name: d.update({name: 0}), rf"profile\.{name} cannot be 0(\.0)?: it must be above 0")
                for name in ("samples_per_call", "device_seconds_per_call", "call_seconds")
            ),
            *(
                (lambda d, name=name: d["machine"].update({name: 0}), rf"profile\.machine\.{name} cannot be 0")
                for name in ("clock_hz", "ipus", "tiles", "tile_bytes")
            ),
            (lambda d: d["memory"].update(tile_bytes=0), r"profile\.memory\.tile_bytes cannot be 0"),
            (lambda d: d.update(error_band=[0.0, 1.0]), r"profile\.error_band\.low cannot be 0\.0"),
            (lambda d: d.update(error_band=[1.0, -1.0]), r"profile\.error_band\.high cannot be -1\.0"),
            *(
                (lambda d, v=v: d.update(format=v), f"this version reads format {FORMAT} only. {whose} version")
                for whose, versions in (("An earlier", (1, 3)), ("Another", (FORMAT + 1, 0, "1", None, True, [4])))
                for v in versions
            ),
        ],
    )
    def test_a_field_that_is_wrong_is_named(self, edit: Edit, message: str) -> None:
        with pytest.raises(Error, match=message):
            from_json(changed(edit))

    @pytest.mark.parametrize(
        ("text", "message"),
        [
            *((text, "not JSON") for text in ("", "{", '{"format": ' + "9" * 5000 + "}")),
            *((text, "no field 'format'") for text in ("[]", "{}")),
            ('{"format": NaN}', "holds NaN"),
            ('{"format": 1e999}', "holds 1e999: numbers must be finite"),
            ("[" * 100_000 + "]" * 100_000, "nested too deeply"),
        ],
    )
    def test_other_text_is_refused(self, text: str, message: str) -> None:
        with pytest.raises(Error, match=message):
            from_json(text)


class TestFolder:
    def test_a_report_is_three_files_in_a_folder_that_is_made(self, tmp_path) -> None:
        folder = tmp_path / "runs" / "first"
        files = write_report(inference_profile(), str(folder), ADVICE)
        assert sorted(file.name for file in folder.iterdir()) == ["profile.json", "report.html", "trace.json"]
        assert read(files.profile) == read(folder) == read(folder.parent) == read_report(folder) == inference_profile()
        assert ADVICE[0].change in files.html.read_text(encoding="utf-8")
        assert json.loads(files.trace.read_text(encoding="utf-8"))["traceEvents"]
        before = [file.read_bytes() for file in sorted(folder.iterdir())]
        write_report(inference_profile(), folder, ADVICE)
        assert before == [file.read_bytes() for file in sorted(folder.iterdir())]

    def test_the_program_is_beside_the_profile_while_the_report_has_one(self, tmp_path) -> None:
        program = programs()["plain"]
        files = write_report(profile_program(program), tmp_path)
        assert files.program == tmp_path / "program.ipu"
        assert same(program_file.read(tmp_path / "program.ipu"), program)
        assert same(read_report(tmp_path).program, program)
        assert write_report(replace(inference_profile(), name="second"), tmp_path).program is None
        assert read_report(tmp_path).program is None
        assert read(tmp_path).name == "second"

    def test_several_models_are_listed(self, tmp_path) -> None:
        for name in ("inference", "training"):
            write_report(pipeline_profile(), tmp_path / name)
        with pytest.raises(Error, match=r"several profiles, choose one: .*inference, .*training"):
            read(tmp_path)

    def test_an_error_names_the_file_and_what_to_do(self, tmp_path, monkeypatch) -> None:
        monkeypatch.setattr(files, "_MOST_BYTES", 1000)
        with pytest.raises(Error, match=r"program\.ipu cannot be read: No such file.*model the program again"):
            program_file.read(tmp_path / "program.ipu")
        for contents, message in (
            (None, r"profile\.json cannot be read: No such file"),
            (b"{", r"profile\.json: This is not JSON.* Run or model the program again"),
            (b'{"format": 1}', r"profile\.json: .*run or model the program again\.$"),
            (b"\xff\xfe", "not a text file in UTF-8"),
            (b" " * 1000, "not JSON"),
            (b" " * 1001, r"profile\.json cannot be read: It is too large"),
        ):
            if contents is not None:
                (tmp_path / "profile.json").write_bytes(contents)
            with pytest.raises(Error, match=message):
                read(tmp_path)


def test_a_program_that_unpacks_to_much_more_than_its_size_is_refused(tmp_path) -> None:
    for content in (bytes(1 << 24), b"\xdc\xff\xff" + b"\x90" * 65535):
        body = zlib.compress(content)
        (tmp_path / "program.ipu").write_bytes(program_file._NAME + hashlib.sha256(body).digest() + body)
        with pytest.raises(Error, match=r"program\.ipu: The file is damaged.*more than 32 times its size"):
            program_file.read(tmp_path / "program.ipu")


def test_a_program_that_compresses_very_well_comes_back() -> None:
    """Its file has it uncompressed, which no reader refuses."""
    repeated = Program(step(), training=True, groups={"a" * 1_000_000: 0})
    assert same(program_file.from_bytes(program_file.to_bytes(repeated)), repeated)


def step() -> Step:
    """Return two stages whose ops have every kind of argument, hint and place."""
    x, w = tensor("x", 4, 4), tensor("w", 4, 4, of_weight=True)

    def made(name: str, kind: str, *arguments: Any, ipu: int = 0, **more: Any) -> Op:
        placement = Placement(str(ipu), ipu, ipu)
        return op(kind, (4, 4), name=name, arguments=arguments, target="aten.mm", placement=placement, **more)

    ops = [
        made("a", "mm", Ref("x"), Ref("w"), scope="layers.0", line="line 3 of forward in model.py", hints=Hints(True)),
        made("b", "strange", Ref("a"), ("name", 1.5, (None, True)), 2j, FLOAT32, float("inf"), ipu=1,
             keywords=(("k", Ref("w")),)),
        made("g", "mm", Ref("x"), Ref("b"), ipu=1, phase=Phase.BACKWARD, name_scopes=((1, "head"),)),
    ]  # fmt: skip
    weight = Variable("layers.0.w", ("layers.0.w", "tied.w"), "w", trainable=True)
    return step_of_ops(
        ops, [(x, Source.INPUT), (w, Source.VARIABLE)], variables=(weight,), gradients={"layers.0.w": "g"}, loss="b",
        layers={"layers.0": "Linear"},
    )  # fmt: skip


def programs() -> dict[str, Program]:
    plain = Program(step(), training=True)
    constants = replace(calibrated(), cost=replace(calibrated().cost, sync_cycles=1.0))
    return {
        "plain": plain,
        "a name that is no text": replace(plain, name="half\ud800 \N{SNOWMAN}"),
        "inference": replace(plain, training=False),
        "another machine": replace(plain, system=system_named("Bow-POD64")),
        "an optimiser": replace(plain, optimiser=OptimiserSpec("Adam", Hyper(lr=0.1), groups=(Hyper(lr=0.2),))),
        "groups": replace(plain, groups={"layers.0.w": 0, "other": None}),
        "accumulation": replace(plain, batching=Batching(2, 8, 2), recomputation=Recomputation.PIPELINE),
        "sharded": replace(plain, execution=Execution.SHARDED, locations=Locations(optimiser=Location(on_chip=False))),
        "a memory proportion": replace(plain, settings=CostSettings(available_memory_proportion={0: 0.1, 1: 0.2})),
        "other constants": replace(plain, settings=CostSettings(Device(calibration=constants))),
    }


def same(one: Program | None, other: Program) -> bool:
    """Whether two programs are equal; steps compare by identity, so their parts are compared."""
    return one is not None and one.choices == other.choices and all(
        getattr(one.step, each.name) == getattr(other.step, each.name) for each in fields(Step)
    )  # fmt: skip


def forged(edit: Callable[..., object]) -> bytes:
    """Return a file with a right digest whose contents `edit` changed."""
    data = to_bytes(programs()["plain"])
    head = data.index(b"\n") + 1
    contents = msgspec.msgpack.decode(zlib.decompress(data[head + 32 :]))
    body = zlib.compress(msgspec.msgpack.encode(edit(*contents)))
    return data[:head] + hashlib.sha256(body).digest() + body


class TestProgram:
    def test_every_program_comes_back_equal(self) -> None:
        for name, program in programs().items():
            assert same(from_bytes(to_bytes(program)), program), name

    def test_names_of_tensors_stay_different_from_texts_and_its_profile_is_the_same(self) -> None:
        program = programs()["accumulation"]
        found = from_bytes(to_bytes(program))
        assert profile_program(found) == profile_program(program)
        (a, b, _) = found.step.ops
        assert type(a.arguments[0]) is Ref
        assert type(b.arguments[1][0]) is str
        assert found.step.tensors["a"] is a.results[0]
        assert found.calibration is calibrated()

    @pytest.mark.parametrize(
        ("damage", "message"),
        [
            *(
                (damage, "The file is damaged or incomplete: .* again")
                for damage in (lambda d: d[:-1], lambda d: d[:60], lambda d: d[:-9] + b"x" + d[-8:])
            ),
            *(
                (damage, "not a program that this .*: run or model it again")
                for damage in (lambda _: b"", lambda d: d.replace(b"format 2", b"format 1"))
            ),
            (lambda _: forged(lambda layout, root: [{**layout, "Op": []}, root]), "Another version .* wrote the file"),
            (lambda _: forged(lambda layout, _: [layout, ["os.system", "true"]]), "do not follow its format"),
            (lambda _: forged(lambda layout, _: [layout, 3]), "it holds no program"),
        ],
    )
    def test_other_files_are_refused_by_name(self, damage: Callable[[bytes], bytes], message: str, tmp_path) -> None:
        file = tmp_path / "program.ipu"
        file.write_bytes(damage(to_bytes(programs()["plain"])))
        with pytest.raises(Error, match=rf"program\.ipu: .*{message}"):
            program_file.read(file)

    def test_a_value_that_is_no_data_is_an_error_when_it_is_written(self) -> None:
        with pytest.raises(Error, match="of type object"):
            to_bytes(replace(programs()["plain"], name=object()))  # type: ignore[arg-type]


# --- any file


def contents(folder: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in folder.iterdir()}


@pytest.mark.parametrize("before", [{}, {"file": b"old"}])
def test_a_full_disk_leaves_what_was_there_and_the_error_names_the_file(tmp_path, full_disk, before) -> None:
    for name, data in before.items():
        (tmp_path / name).write_bytes(data)
    with pytest.raises(OSError, match=f"File too large: '{tmp_path / 'file'}'"):
        write_whole(tmp_path / "file", bytes(1 << 17))
    with pytest.raises(Error, match=f"{tmp_path / 'file'} cannot be written: File too large"):
        write_text(tmp_path / "file", " " * (1 << 17))
    assert contents(tmp_path) == before


@pytest.mark.parametrize("call", ["fsync", "replace"])
@pytest.mark.parametrize("problem", [KeyboardInterrupt("stop"), OSError("no number"), MemoryError("none")], ids=repr)
def test_so_does_whatever_stops_it(tmp_path, monkeypatch, call: str, problem: BaseException) -> None:
    write_whole(tmp_path / "file", b"old")
    monkeypatch.setattr(os, call, Mock(side_effect=problem))
    with pytest.raises(type(problem), match=str(problem)):
        write_whole(tmp_path / "file", b"new")
    assert contents(tmp_path) == {"file": b"old"}


def test_links_and_permissions_stay(tmp_path) -> None:
    (tmp_path / "folder").mkdir()
    file, link = tmp_path / "folder" / "file", tmp_path / "link"
    link.symlink_to(file)
    for mode in (0o600, 0o644):
        write_whole(link, f"{mode}".encode())
        assert (link.is_symlink(), file.read_bytes()) == (True, f"{mode}".encode())
        file.chmod(mode)
        write_whole(link, b"again")
        assert stat.S_IMODE(file.stat().st_mode) == mode
    (tmp_path / "usual").touch()
    write_whole(tmp_path / "new", b"")
    assert (tmp_path / "new").stat().st_mode == (tmp_path / "usual").stat().st_mode


def test_names_as_long_as_the_system_allows(tmp_path) -> None:
    for name in ("a" * 255, "ü" * 127):
        write_whole(tmp_path / name, b"all")
        assert (tmp_path / name).read_bytes() == b"all"


def test_a_device_is_written_to_and_stays_one(tmp_path) -> None:
    if not hasattr(os, "mkfifo"):
        pytest.skip("the system has no pipes with names")
    os.mkfifo(tmp_path / "pipe")
    reader = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    write_whole(tmp_path / "pipe", b"all")
    assert os.read(reader, 9) == b"all"
    os.close(reader)
    assert stat.S_ISFIFO((tmp_path / "pipe").stat().st_mode)
    write_whole(os.devnull, b"all")
    assert not Path(os.devnull).is_file()


MISTAKES: dict[str, tuple[Callable[[Path], Any], str]] = {
    "a folder": (lambda folder: folder, "Is a directory"),
    "a folder that is missing": (lambda folder: folder / "a" / "b", "No such file"),
    "a null byte": (lambda folder: f"{folder}/a\0b", "null byte"),
}


@pytest.mark.parametrize("name", MISTAKES)
@pytest.mark.parametrize("work", [lambda path: write_whole(path, b""), lambda path: read_whole(path, 9)])
def test_a_path_that_cannot_work_is_named(tmp_path, name: str, work: Callable[[Any], Any]) -> None:
    make, words = MISTAKES[name]
    with pytest.raises(OSError, match=words) as refusal:
        work(make(tmp_path))
    assert refusal.value.filename == os.fspath(make(tmp_path))
    assert list(tmp_path.iterdir()) == []


class TestReading:
    @pytest.mark.parametrize("path", ["/dev/zero", "/dev/random", "pipe", "link to /dev/zero", "link to pipe"])
    def test_what_never_ends_is_refused_at_once(self, tmp_path, monkeypatch, path: str) -> None:
        monkeypatch.chdir(tmp_path)
        os.mkfifo("pipe")
        if path.startswith("link to"):
            os.symlink(path.removeprefix("link to "), "link")
            path = "link"
        alarm = signal.signal(signal.SIGALRM, Mock(side_effect=TimeoutError))
        signal.alarm(20)
        try:
            with pytest.raises(OSError, match=f"not a regular file: '{path}'"):
                read_whole(path, 1 << 20)
            with pytest.raises(Error, match=f"^.*{path} cannot be read: It is not a regular file"):
                read(Path(path))
        finally:
            signal.alarm(0)
            signal.signal(signal.SIGALRM, alarm)

    def test_as_many_bytes_are_read_as_are_allowed(self, tmp_path) -> None:
        (tmp_path / "file").write_bytes(b"abc")
        assert read_whole(tmp_path / "file", 3) == b"abc"
        with pytest.raises(OSError, match="at most 2 bytes"):
            read_whole(tmp_path / "file", 2)

    def test_files_that_tell_no_size_are_read_and_bounded(self) -> None:
        """Those of Linux's `/proc` are regular and of size 0."""
        if not os.path.exists("/proc/self/maps"):
            pytest.skip("there is no /proc")
        assert b"python" in read_whole("/proc/self/maps", 1 << 24)
        with pytest.raises(OSError, match="at most 100 bytes"):
            read_whole("/proc/self/maps", 100)


def test_a_page_can_be_written_where_it_is_checked(tmp_path) -> None:
    check_writable(tmp_path / "page.html")
    assert list(tmp_path.iterdir()) == []
    for path, words in ((tmp_path, "is a folder"), (tmp_path / "a" / "b", "there is no folder")):
        with pytest.raises(Error, match=words):
            check_writable(path)
