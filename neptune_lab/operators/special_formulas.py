"""Gamma, Bessel and error functions by the scalar operations: polynomials that are right to the last digits of float64.

Their coefficients are those of Chebyshev interpolants of 60 digits, written as powers; the first is the constant.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, TypeAlias

# As in `formulas`: "x", a number, or an operation's name and its operands.
Term: TypeAlias = str | float | tuple[Any, ...]

# log(gamma(1 + u)) / (u (u - 1)), by 2 u - 1; log(gamma(x)) from 3 to 8, by (x - 5.5) / 2.5.
_GAMMA_FROM_1 = (
    0.4831289505409809, -0.07297994795715297, 0.015727850268641094, -0.003913560937631769, 0.0010498186644547402,
    -0.00029455070139898493, 8.510090373499432e-05, -2.5094329864078195e-05, 7.511391855641883e-06,
    -2.2742409034140543e-06, 6.948428064186312e-07, -2.1388452890262906e-07, 6.623878077265301e-08,
    -2.057734525447198e-08, 6.430260727636965e-09, -2.0735267758524892e-09, 6.566403819263112e-10,
    -1.6381596734648426e-10, 5.0258222095609345e-11, -3.53647433811882e-11, 1.1586115295157278e-11,
)  # fmt: skip
_GAMMA_FROM_3 = (
    3.957813967618716, 4.027732871454378, 0.6229449593426182, -0.10314830083678983, 0.02553807401523732,
    -0.007563969758263267, 0.002481750766693252, -0.0008698740450781699, 0.0003192341887296644,
    -0.00012116112008184256, 4.717531608305534e-05, -1.8737615069998938e-05, 7.555839918413796e-06,
    -3.0874349228326585e-06, 1.2889158317167572e-06, -5.394938819874086e-07, 2.0550572075190943e-07,
    -8.440278971267643e-08, 5.791580999051114e-08, -2.6452537855257283e-08, -3.2782509348082e-09,
    2.096949820056622e-09, 4.665572060511025e-09, -2.139178246520524e-09,
)  # fmt: skip
# The series at infinity of log(gamma(x)) and of digamma(x): powers of 1 / x**2.
_STIRLING = (
    0.08333333333333333, -0.002777777777777778, 0.0007936507936507937, -0.0005952380952380953, 0.0008417508417508417,
    -0.0019175269175269176, 0.00641025641025641, -0.029550653594771242, 0.17964437236883057,
)  # fmt: skip
_DIGAMMA = (
    0.08333333333333333, -0.008333333333333333, 0.003968253968253968, -0.004166666666666667, 0.007575757575757576,
    -0.021092796092796094, 0.08333333333333333, -0.4432598039215686, 3.0539543302701198,
)  # fmt: skip
# erfinv(x) / x by w = -log(1 - x**2): (w - 3.125) / 3.125, and (sqrt(w) - 4.375) / 1.875.
_ERFINV_NEAR = (
    1.6536545626831027, 0.7504943200799635, -0.058922567103787134, -0.022604447453450232, 0.01780836181873851,
    -0.004137314377403391, -0.0012716922767024804, 0.001232485568550093, -0.0002643935887486061,
    -0.00011688883906368398, 9.336693850145469e-05, -1.5027713926607673e-05, -1.12556848303199e-05,
    7.1300663740767115e-06, -6.87597660449069e-07, -1.059336931327948e-06, 5.455731449441755e-07,
    -1.0167881522843899e-08, -1.0509863560329017e-07, 3.9142671001331085e-08, 9.050516362783658e-09,
    -8.557984074479201e-09, -8.186442916595773e-11, 7.680990475576525e-10,
)  # fmt: skip
_ERFINV_FAR = (
    4.218480707652915, 1.8939929107274522, 0.0017701087788367363, -0.00336900687277914, 0.0021809396925835754,
    -0.0011757192352506104, 0.0006578821017067016, -0.00047958788479685743, 0.0004717915701950771,
    -0.000500746725756631, 0.000475816639348232, -0.0003639795332565344, 0.0001937308178904911,
    -2.996743262065019e-05, -7.070277520175015e-05, 9.318007462332905e-05, -6.267883670724034e-05,
    1.850238880608389e-05, 1.020194098620057e-05, -1.5514549367005996e-05, 8.402148523015948e-06,
    -2.215002076878451e-06, -3.7273094409290063e-07, 1.5408570515431564e-06, -1.263101102777371e-06,
    1.5309886418616908e-07, 2.5830090123806074e-07, -9.152175384853416e-08,
)  # fmt: skip
# exp(-x) I0(x) by x / 4 - 1 up to 8, and times sqrt(x) by 16 / x - 1 beyond; the same of I1(x), up to 8 over x.
_I0_NEAR = (
    0.2070019212239867, -0.11300432688620536, 0.09451562853995103, -0.08904344136077755, 0.08734341617552313,
    -0.08496338091541732, 0.07927522590716347, -0.06954119563168235, 0.05677703201991695, -0.0429859492954222,
    0.030177912022978357, -0.019682655791721182, 0.011960077907026221, -0.006792394790940051, 0.003617126448897043,
    -0.0018119030567637056, 0.0008563152748272306, -0.00038286526498299526, 0.00016240542162878106,
    -6.556805964401791e-05, 2.520232727107692e-05, -9.183742586936203e-06, 3.2293390826404927e-06,
    -1.142045323881917e-06, 3.675842926555429e-07, -8.591406444264668e-08, 2.6265363151970112e-08,
    -1.6316042856792757e-08, 4.470516727511741e-09,
)  # fmt: skip
_I0_FAR = (
    0.4021765094450081, 0.0033605519836677504, 0.00013621607438984735, 1.1143033800708978e-05, 1.4838476651250266e-06,
    2.973596046562712e-07, 8.872034383314144e-08, 3.932889375114634e-08, 2.1566251453104354e-08,
    7.534355843803342e-09, -6.8493381882867694e-09, -1.3326094405766387e-08, -5.0381064879032845e-09,
    7.3359687108161536e-09, 6.560138746917057e-09, -3.1346276429240787e-09, -4.575553424534973e-09,
    1.1050558794424347e-09, 2.1968921378829006e-09, -2.8033819978869995e-10, -6.633287112547084e-10,
    3.629355229718733e-11, 9.36508689281819e-11,
)  # fmt: skip
_I1_NEAR = (
    0.04468770987560883, -0.061124338029666284, 0.06805759990951268, -0.06848260620582691, 0.06376740371333643,
    -0.055280039226991644, 0.04467457262306667, -0.03367135552108536, 0.02368601693352639, -0.015571309243980052,
    0.009583962344356725, -0.005534567847563678, 0.003005761416447221, -0.00153887456203039, 0.0007445158727006065,
    -0.0003411760289073331, 0.00014841259927108295, -6.142360299099794e-05, 2.42486684188831e-05,
    -9.136543922789093e-06, 3.2758438130588964e-06, -1.1327072698408053e-06, 3.9094375480236725e-07,
    -1.2424759932738304e-07, 2.987385645901576e-08, -8.984420960424589e-09, 5.2131237878886215e-09,
    -1.41695079121077e-09,
)  # fmt: skip
_I1_FAR = (
    0.38939845902587233, -0.009749577193235635, -0.0002192357638317243, -1.5038547209501858e-05,
    -1.8349102358955385e-06, -3.4838534380376333e-07, -1.000109565963654e-07, -4.313196489977733e-08,
    -2.339250374801858e-08, -8.409182040442918e-09, 6.8401389977069586e-09, 1.3958551001385955e-08,
    5.59337010179061e-09, -7.44444147719727e-09, -6.983839624895866e-09, 3.086886736722725e-09, 4.810597405089944e-09,
    -1.0594544160443166e-09, -2.297004161885201e-09, 2.6340771095136483e-10, 6.917089294193807e-10,
    -3.365431853180176e-11, -9.752397204138195e-11,
)  # fmt: skip
# (1 + 2 x) exp(x**2) erfc(x) by (x - 3.75) / (x + 3.75).
_ERFCX = (
    1.2375126308378275, -0.14024059858554697, 0.0035854154854644293, 0.0822767384901452, -0.10880393014174886,
    0.09230432116037748, -0.05869339858963677, 0.028362277418956406, -0.009746579558029276, 0.0017556258528952954,
    0.0002937136655913448, -0.0002901540805408417, 5.164909889268241e-05, 2.238423915508223e-05,
    -1.1444146237700524e-05, -9.73559896736775e-07, 1.751637648849062e-06, -5.7218230603224086e-08,
    -2.5866850716155884e-07, 2.3263508708859124e-08, 3.8675334242222354e-08, -3.744210080962018e-09,
    -5.1739902140113095e-09, 3.1114333809799254e-10, 4.2514714447963895e-10,
)  # fmt: skip


def _polynomial(coefficients: Sequence[float], t: Term) -> Term:
    value: Term = coefficients[-1]
    for number in reversed(coefficients[:-1]):
        value = ("add", ("mul", value, t), number)
    return value


def _choice(below: float, x: Term, near: Term, far: Term) -> Term:
    return ("select", ("lt", x, below), near, far)


def _square(x: Term) -> Term:
    return ("mul", x, x)


_SIZE: Term = ("abs", "x")


def _lgamma() -> Term:
    """log(|gamma(x)|): relative to its zeros at 1 and 2; below 0 by the reflection, infinite at integers."""
    u: Term = ("sub", _SIZE, ("floor", _SIZE))
    zeros: Term = ("mul", ("mul", u, ("sub", u, 1.0)), _polynomial(_GAMMA_FROM_1, ("sub", ("mul", 2.0, u), 1.0)))
    step: Term = _choice(1.0, _SIZE, ("neg", ("log", _SIZE)), _choice(2.0, _SIZE, 0.0, ("log", ("sub", _SIZE, 1.0))))
    middle = _polynomial(_GAMMA_FROM_3, ("div", ("sub", _SIZE, 5.5), 2.5))
    series: Term = ("div", _polynomial(_STIRLING, _square(("div", 1.0, _SIZE))), _SIZE)
    main: Term = ("mul", ("sub", _SIZE, 0.5), ("sub", ("log", _SIZE), 1.0))
    far: Term = ("add", main, ("add", series, 0.5 * math.log(2 * math.pi) - 0.5))
    positive = _choice(3.0, _SIZE, ("add", zeros, step), _choice(8.0, _SIZE, middle, far))
    sine: Term = ("sin", ("mul", math.pi, ("select", ("gt", u, 0.5), ("sub", 1.0, u), u)))
    other_side: Term = ("sub", ("sub", math.log(math.pi), ("add", ("log", _SIZE), ("log", sine))), positive)
    below: Term = ("select", ("eq", "x", -math.inf), math.inf, other_side)
    return _choice(0.0, "x", below, positive)


def _digamma() -> Term:
    """The derivative of log(gamma(x)): by the recurrence below 8, and the reflection below 0."""
    z = _choice(0.0, "x", ("sub", 1.0, "x"), "x")
    y = _choice(8.0, z, ("add", z, 8.0), z)
    squares: Term = _square(("div", 1.0, y))
    series: Term = ("add", ("div", 0.5, y), ("mul", _polynomial(_DIGAMMA, squares), squares))
    steps: Term = ("div", 1.0, z)
    for n in range(1, 8):
        steps = ("add", steps, ("div", 1.0, ("add", z, float(n))))
    positive: Term = ("sub", ("sub", ("log", y), series), _choice(8.0, z, steps, 0.0))
    angle: Term = ("mul", math.pi, ("sub", "x", ("round", "x")))
    cotangent: Term = ("select", ("eq", ("sin", angle), 0.0), math.nan, ("div", ("cos", angle), ("sin", angle)))
    return _choice(0.0, "x", ("sub", positive, ("mul", math.pi, cotangent)), positive)


def _erfinv() -> Term:
    w: Term = ("neg", ("log", ("mul", ("sub", 1.0, "x"), ("add", 1.0, "x"))))
    near = _polynomial(_ERFINV_NEAR, ("div", ("sub", w, 3.125), 3.125))
    far = _polynomial(_ERFINV_FAR, ("div", ("sub", ("sqrt", w), 4.375), 1.875))
    inside: Term = ("mul", "x", _choice(6.25, w, near, far))
    return ("select", ("eq", _SIZE, 1.0), ("mul", "x", math.inf), inside)


def _scaled_bessel(near: Sequence[float], far: Sequence[float], of_near: Term, of_far: Term) -> Term:
    """exp(-|x|) I(x), with factors of the two polynomials."""
    small: Term = ("mul", of_near, _polynomial(near, ("sub", ("mul", _SIZE, 0.25), 1.0)))
    large: Term = ("div", _polynomial(far, ("sub", ("div", 16.0, _SIZE), 1.0)), ("sqrt", _SIZE))
    return _choice(8.0, _SIZE, small, ("mul", of_far, large))


def _bessel(scaled: Term) -> Term:
    """In two halves of the exponential, which overflows where the product is finite; NaN at infinities, as in torch."""
    half: Term = ("exp", ("mul", _SIZE, 0.5))
    return ("mul", half, ("mul", half, scaled))


def _erfcx_from_0(x: Term) -> Term:
    """exp(x**2) erfc(x) for x from 0 on, infinity included: 1 - 7.5 / (x + 3.75) is the polynomials' variable."""
    t: Term = ("sub", 1.0, ("div", 7.5, ("add", x, 3.75)))
    return ("div", _polynomial(_ERFCX, t), ("add", 1.0, ("mul", 2.0, x)))


_SIGN: Term = _choice(0.0, "x", -1.0, 1.0)
_I0E = _scaled_bessel(_I0_NEAR, _I0_FAR, 1.0, 1.0)
_I1E = _scaled_bessel(_I1_NEAR, _I1_FAR, "x", _SIGN)
# Beyond 30, erfc is 0, and its derivative would be infinity times 0.
_LARGE: Term = ("min", "x", 30.0)
_ERFC_FAR: Term = ("mul", ("exp", ("neg", _square(_LARGE))), _erfcx_from_0(_LARGE))

SPECIAL: dict[str, Term] = {
    "lgamma": _lgamma(),
    "digamma": _digamma(),
    "erfinv": _erfinv(),
    "i0": _bessel(_I0E),
    "special_i0e": _I0E,
    "special_i1": _bessel(_I1E),
    "special_i1e": _I1E,
    "erfc": _choice(0.5, "x", ("sub", 1.0, ("erf", "x")), _ERFC_FAR),
    "special_erfcx": _choice(
        0.0, "x", ("sub", ("mul", 2.0, ("exp", _square("x"))), _erfcx_from_0(_SIZE)), _erfcx_from_0("x")
    ),
}


__all__ = ["SPECIAL"]
