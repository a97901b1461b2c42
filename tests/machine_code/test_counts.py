"""Instructions counted from text, and the occupancy that follows from registers, shared memory and warps."""

from __future__ import annotations

import pytest

from neptune_lab.errors import MachineCodeError
from neptune_lab.machine_code import ARCHITECTURES, MatrixInstruction, MemoryInstruction, architecture_of, occupancy
from neptune_lab.machine_code.counts import count
from neptune_lab.target import GPUS, Target


def sass(*instructions: str) -> str:
    return "".join(f"        /*{16 * n:04x}*/                   {x} ;\n" for n, x in enumerate(instructions))


@pytest.mark.parametrize(
    ("instruction", "kind", "width"),
    [
        ("LDG.E.128 R4, desc[UR18][R4.64]", "global load", 16),
        ("@P0 LDG.E.64 R4, [R2.64]", "global load", 8),
        ("@!P3 LDG.E.U16 R4, [R2.64]", "global load", 2),
        ("LDG.E R4, [R2.64]", "global load", 4),
        ("STG.E.U8 [R2.64], R4", "global store", 1),
        ("LDGSTS.E.BYPASS.128 [R2], [R4.64]", "global to shared copy", 16),
        ("LDSM.16.MT88.4 R4, [R2]", "shared load", 16),
        ("LDSM.16.M88.2 R4, [R2]", "shared load", 8),
        ("STS.64 [R2], R4", "shared store", 8),
        ("STL.64 [R1], R4", "spill store", 8),
        ("UTMALDG.2D [UR8], [UR4]", "tile load", None),
    ],
)
def test_memory_instructions_of_sass(instruction, kind, width):
    assert count(sass(instruction), cuda=True).memory == (MemoryInstruction(kind, width, 1),)


@pytest.mark.parametrize(
    ("instruction", "kind", "width"),
    [
        ("global_load_dwordx4 v[0:3], v0, s[0:1]", "global load", 16),
        ("buffer_load_dwordx2 v[0:1], v0, s[0:3], 0 offen", "global load", 8),
        ("buffer_load_ushort v0, v0, s[0:3], 0 offen", "global load", 2),
        ("global_load_b128 v[0:3], v0, s[0:1]", "global load", 16),
        ("buffer_store_b16 v0, v0, s[0:3], 0 offen", "global store", 2),
        ("ds_read_b64 v[0:1], v0", "shared load", 8),
        ("ds_read2_b64 v[0:3], v0 offset1:1", "shared load", 16),
        ("ds_write2st64_b32 v0, v1, v2", "shared store", 8),
        ("ds_load_u16_d16_hi v0, v1", "shared load", 2),
        ("scratch_store_dword off, v0, s32", "spill store", 4),
    ],
)
def test_memory_instructions_of_amdgcn(instruction, kind, width):
    assert count(f"\t{instruction}\n", cuda=False).memory == (MemoryInstruction(kind, width, 1),)


@pytest.mark.parametrize(
    ("instruction", "name", "shape"),
    [
        ("HMMA.16816.F32 R28, R48.reuse, R8, RZ", "HMMA.16816.F32", (16, 8, 16)),
        ("HMMA.1688.F32.TF32 R28, R48, R8, RZ", "HMMA.1688.F32.TF32", (16, 8, 8)),
        ("HGMMA.64x128x16.F32 R24, gdesc[UR8], RZ, !UPT", "HGMMA.64x128x16.F32", (64, 128, 16)),
        ("UTCHMMA gdesc[UR8], gdesc[UR10], tmem[UR4]", "UTCHMMA", None),
    ],
)
def test_matrix_instructions_of_sass(instruction, name, shape):
    assert count(sass(instruction, instruction), cuda=True).matrix == (MatrixInstruction(name, shape, 2),)


def test_matrix_instructions_waits_and_barriers_of_amdgcn():
    text = """kernel:
	v_mfma_f32_32x32x8_f16 a[0:15], v[0:1], v[2:3], 0
	v_wmma_f32_16x16x16_f16 v[0:7], v[8:15], v[16:23], v[0:7]
	s_waitcnt vmcnt(0)
	s_barrier
	; a comment
	.p2align 8
"""
    found = count(text, cuda=False)
    assert found.instructions == 4
    assert [(m.name, m.shape) for m in found.matrix] == [
        ("v_mfma_f32_32x32x8_f16", (32, 32, 8)),
        ("v_wmma_f32_16x16x16_f16", (16, 16, 16)),
    ]
    assert found.waits == (("s_waitcnt", 1),)
    assert found.barriers == (("s_barrier", 1),)


def test_waits_and_barriers_of_sass():
    found = count(
        sass("DEPBAR.LE SB0, 0x1", "WARPGROUP.DEPBAR.LE gsb0, 0x0", "BAR.SYNC.DEFER_BLOCKING 0x0", "BRA `(.L_x_1)"),
        True,
    )
    assert found.waits == (("DEPBAR.LE", 1), ("WARPGROUP.DEPBAR.LE", 1))
    assert found.barriers == (("BAR.SYNC.DEFER_BLOCKING", 1),)
    assert found.instructions == 4


# The occupancy calculator of the CUDA toolkit gives these numbers; for AMD's, LLVM prints them as "Occupancy".
@pytest.mark.parametrize(
    ("name", "registers", "shared", "warps", "blocks", "limited_by"),
    [
        ("sm_90", 168, 100_000, 4, 2, ("shared memory",)),
        ("sm_90", 255, 0, 8, 1, ("registers",)),
        ("sm_90", 32, 0, 1, 32, ("blocks",)),
        ("sm_86", 40, 0, 8, 6, ("warps", "registers")),
        ("sm_80", 64, 163 * 1024, 8, 1, ("shared memory",)),
        ("sm_90", 64, 228 * 1024, 8, 0, ("shared memory",)),
        ("gfx942", 88, 6144, 4, 5, ("registers",)),
        ("gfx942", 128, 65536, 4, 1, ("shared memory",)),
        ("gfx1100", 111, 8192, 4, 12, ("registers",)),
    ],
)
def test_occupancy(name, registers, shared, warps, blocks, limited_by):
    held = occupancy(ARCHITECTURES[name], registers, shared, warps)
    assert (held.blocks, held.limited_by, held.warps) == (blocks, limited_by, blocks * warps)
    assert held.share == blocks * warps / ARCHITECTURES[name].warps


def test_every_known_gpu_has_an_architecture_with_its_shared_memory():
    for name in GPUS:
        assert architecture_of(name).block_shared_memory == Target(name).shared_memory, name
    assert architecture_of(Target("cuda", (8, 9))).name == "sm_89"


@pytest.mark.parametrize("target", ["sm_75", "hopper", 90, Target("any"), Target("hip"), Target("cuda", (7, 5))])
def test_a_target_without_an_architecture_is_refused(target):
    with pytest.raises(MachineCodeError, match=r"expected an architecture\n  help: architectures are sm_80, "):
        architecture_of(target)
