"""Line information of each stage, on texts written by hand."""

from __future__ import annotations

from neptune_lab.machine_code.line_maps import MODULE, numbered, of_assembly, of_llvm, of_mlir, of_sass


def pairs(mapped):
    lines = mapped.text.splitlines()
    assert len(lines) == len(mapped.lines)
    return list(zip([line.strip() for line in lines], mapped.lines, strict=True))


def test_mlir_resolves_names_calls_and_fused_places():
    text = f"""#loc = loc("/a/{MODULE}":3:0)
#loc1 = loc("/lib/standard.py":40:2)
#loc2 = loc("/a/{MODULE}":8:4)
#loc3 = loc("x (tile)"(#loc2))
module {{
  tt.func @k(%p: !tt.ptr<f16> loc("p"(#loc))) {{
    %0 = scf.for %i = %a to %b {{
      %1 = arith.addf %p, %p : f32 loc(callsite(#loc1 at #loc3))
      %2 = arith.mulf %p, %p : f32 loc(fused[#loc, callsite(#loc2 at #loc4)])
    }} loc(#loc4)
  }} loc(#loc)
}} loc(#loc)
#loc4 = loc("/a/{MODULE}":7:4)
"""
    assert pairs(of_mlir(text)) == [
        ("module {", (3,)),
        ("tt.func @k(%p: !tt.ptr<f16>) {", (3,)),
        ("%0 = scf.for %i = %a to %b {", (7,)),
        ("%1 = arith.addf %p, %p : f32", (8,)),
        ("%2 = arith.mulf %p, %p : f32", (3, 8, 7)),
        ("}", (7,)),
        ("}", (3,)),
        ("}", (3,)),
    ]


def test_llvm_follows_calls_and_leaves_out_other_files():
    text = f"""define void @k() !dbg !3 {{
  %1 = fadd float 0.0, 0.0, !dbg !5
  %2 = fmul float 0.0, 0.0
}}
!llvm.dbg.cu = !{{!2}}
!0 = !{{i32 2, !"Debug Info Version", i32 3}}
!1 = !DIFile(filename: "{MODULE}", directory: "/a")
!2 = distinct !DICompileUnit(language: DW_LANG_C, file: !1)
!3 = distinct !DISubprogram(name: "k", scope: !1, file: !1, line: 4, unit: !2)
!4 = distinct !DISubprogram(name: "sum", scope: !7, file: !7, line: 90, unit: !2)
!5 = !DILocation(line: 91, column: 3, scope: !4, inlinedAt: !6)
!6 = distinct !DILocation(line: 9, column: 1, scope: !3)
!7 = !DIFile(filename: "standard.py", directory: "/lib")
"""
    assert pairs(of_llvm(text)) == [
        ("define void @k() {", (4,)),
        ("%1 = fadd float 0.0, 0.0", (9,)),
        ("%2 = fmul float 0.0, 0.0", ()),
        ("}", ()),
        ('!0 = !{i32 2, !"Debug Info Version", i32 3}', ()),
    ]


PTX = f"""\t.file\t1 "/a/{MODULE}"
.visible .entry k(
)
{{
$L__func_begin0:
\t.loc\t1 4 0 // {MODULE}:4:0
\tmov.b32 %r1, 0;
$L__tmp1:
\t.loc\t2 27 25 // standard.py:27:25 @[ {MODULE}:21:34 @[ {MODULE}:54:26 ] ]
\t@%p1 bra $L__BB0_2;
$L__BB0_2:
\t.loc\t1 0 0 // :0:0
\tret;
}}
\t.section\t.debug_info
\t{{
.b8 1
\t}}
\t.section\t.debug_macinfo\t{{\t}}
"""


def test_assembly_carries_the_place_on_and_drops_debug_sections():
    assert pairs(of_assembly(PTX)) == [
        (".visible .entry k(", ()),
        (")", ()),
        ("{", ()),
        ("mov.b32 %r1, 0;", (4,)),
        ("@%p1 bra $L__BB0_2;", (21, 54)),
        ("$L__BB0_2:", ()),
        ("ret;", ()),
        ("}", ()),
    ]


def test_sass_gets_the_callers_back_through_numbered_places():
    text, chains = numbered(PTX)
    assert chains == ((4,), (21, 54), ())
    assert [line.split("//")[0].split() for line in text.splitlines() if ".loc" in line] == [
        [".loc", "1", "1", "0"],
        [".loc", "1", "2", "0"],
        [".loc", "1", "3", "0"],
    ]
    sass = f"""\t.text
k:
\t//## File "/a/{MODULE}", line 2
        /*0000*/                   MOV R1, R2 ;
\t//## File "/a/{MODULE}", line 3
        /*0010*/                   EXIT ;
"""
    assert pairs(of_sass(sass, chains)) == [
        (".text", ()),
        ("k:", ()),
        ("/*0000*/                   MOV R1, R2 ;", (21, 54)),
        ("/*0010*/                   EXIT ;", ()),
    ]
