"""The file of a program: equal when read back, and refused by name when it is damaged or of another version."""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path

import msgspec
import pytest
from report_support import inference_profile

from ipu_model.batching import Batching
from ipu_model.errors import Error
from ipu_model.optimiser import Hyper, OptimiserSpec
from ipu_model.predict import profile_program
from ipu_model.predict.calibration import calibrated
from ipu_model.predict.device import CostSettings, Device
from ipu_model.predict.hardware import system_named
from ipu_model.predict.program import Execution, Location, Locations, Program, Recomputation
from ipu_model.report import program_file
from ipu_model.report.files import read_report, write_report
from ipu_model.report.program_file import from_bytes, to_bytes
from ipu_model.step import (
    FLOAT16,
    FLOAT32,
    Hints,
    Op,
    Phase,
    Placement,
    Ref,
    Source,
    Step,
    Tensor,
    Variable,
    step_of_ops,
)


def step() -> Step:
    """Return two stages whose ops have every kind of argument, hint and place."""
    x, w = (Tensor(n, (4, 4), FLOAT16, (4, 1), n, of_weight=n == "w") for n in ("x", "w"))

    def op(name: str, *arguments: object, ipu: int = 0, **more: object) -> Op:
        made = Tensor(name, (4, 4), FLOAT16, (4, 1), name, name)
        where = Placement(str(ipu), ipu, ipu)
        return Op(
            name,
            "mm" if len(arguments) == 2 else "strange",
            (made, None),
            arguments,
            target="aten.mm",
            placement=where,
            **more,
        )  # type: ignore[arg-type]

    ops = [
        op("a", Ref("x"), Ref("w"), scope="layers.0", line="line 3 of forward in model.py", hints=Hints(True)),
        op("b", Ref("a"), ("name", 1.5, (None, True)), 2j, FLOAT32, float("inf"), ipu=1, keywords=(("k", Ref("w")),)),
        op("g", Ref("x"), Ref("b"), ipu=1, phase=Phase.BACKWARD, name_scopes=((1, "head"),)),
    ]
    weight = Variable("layers.0.w", ("layers.0.w", "tied.w"), "w", trainable=True)
    entering = [(x, Source.INPUT), (w, Source.VARIABLE)]
    return step_of_ops(
        ops, entering, variables=(weight,), gradients={"layers.0.w": "g"}, loss="b", layers={"layers.0": "Linear"}
    )


def programs() -> dict[str, Program]:
    """Return programs that differ in every kind of setting."""
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


def same(one: Program, other: Program) -> bool:
    """Whether two programs are equal; steps compare by identity, so their parts are compared."""
    return one.choices == other.choices and all(
        getattr(one.step, each.name) == getattr(other.step, each.name) for each in fields(Step)
    )


class TestRoundTrip:
    @pytest.mark.parametrize("name", programs())
    def test_a_program_comes_back_equal(self, name: str) -> None:
        program = programs()[name]
        assert same(from_bytes(to_bytes(program)), program)

    def test_names_of_tensors_stay_different_from_texts(self) -> None:
        (a, b, _) = from_bytes(to_bytes(programs()["plain"])).step.ops
        assert type(a.arguments[0]) is Ref
        assert type(b.arguments[1][0]) is str

    def test_its_profile_is_the_same(self) -> None:
        program = programs()["accumulation"]
        assert profile_program(from_bytes(to_bytes(program))) == profile_program(program)

    def test_a_report_has_the_program_beside_the_profile(self, tmp_path: Path) -> None:
        program = programs()["plain"]
        files = write_report(profile_program(program), tmp_path)
        assert files.program == tmp_path / program_file.FILE_NAME
        assert same(program_file.read(tmp_path), program)
        found = read_report(tmp_path)
        assert found.program is not None
        assert same(found.program, program)

    def test_a_report_without_a_program_takes_that_of_an_earlier_one_away(self, tmp_path: Path) -> None:
        write_report(profile_program(programs()["plain"]), tmp_path)
        assert write_report(inference_profile(), tmp_path).program is None
        assert read_report(tmp_path).program is None


class TestRefused:
    def test_a_file_that_is_not_there_says_what_to_do(self, tmp_path: Path) -> None:
        with pytest.raises(Error, match=r"program\.ipu cannot be read: No such file.*model the program again"):
            program_file.read(tmp_path)

    @pytest.mark.parametrize("damage", [lambda d: d[:-1], lambda d: d[:60], lambda d: d[:-9] + b"x" + d[-8:]])
    def test_a_damaged_file_is_named(self, damage: Callable[[bytes], bytes], tmp_path: Path) -> None:
        file = tmp_path / program_file.FILE_NAME
        file.write_bytes(damage(to_bytes(programs()["plain"])))
        with pytest.raises(Error, match=r"program\.ipu: The file is damaged or incomplete: .* again"):
            program_file.read(file)

    @pytest.mark.parametrize("data", [b"", b"{}", b"program of the IPU Model, format 0\n"])
    def test_other_files_are_no_programs(self, data: bytes) -> None:
        with pytest.raises(Error, match="not a program that this version"):
            from_bytes(data)

    def test_classes_with_other_fields_are_those_of_another_version(self) -> None:
        def without_a_field(layout: dict[str, list[str]], records: list[object], root: object) -> None:
            layout["Op"].pop()

        with pytest.raises(Error, match=r"Another version .* wrote the file"):
            from_bytes(forged(without_a_field))

    def test_contents_that_follow_no_format_are_refused(self) -> None:
        def nonsense(layout: dict[str, list[str]], records: list[list[object]], root: object) -> None:
            records[0] = ["os.system", "true"]

        with pytest.raises(Error, match="contents do not follow its format"):
            from_bytes(forged(nonsense))

    def test_a_value_that_is_no_data_is_an_error_when_it_is_written(self) -> None:
        odd = replace(programs()["plain"], name=object())  # type: ignore[arg-type]
        with pytest.raises(Error, match="of type object"):
            to_bytes(odd)


def forged(edit: Callable[..., None]) -> bytes:
    """Return a file with a right digest whose contents `edit` changed in place."""
    data = to_bytes(programs()["plain"])
    head = data.index(b"\n") + 1
    contents = msgspec.msgpack.decode(zlib.decompress(data[head + 32 :]))
    edit(*contents)
    body = zlib.compress(msgspec.msgpack.encode(contents))
    return data[:head] + hashlib.sha256(body).digest() + body
