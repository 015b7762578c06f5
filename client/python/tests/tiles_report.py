# SPDX-License-Identifier: MIT
"""What is wrong in a product of two ranks by tiles (test_streams_tiles.py): which tiles, rows and columns, and what stands there instead."""
import torch

ROWS, CLUSTERS = 128, 66  # kernels/gpu/device/tiles/tiles_order.h
TILES_SHOWN, ELEMENTS_SHOWN = 8, 4
SHIFTS = (1, 2, 8, 16, 32, 64, 128, 256)


def columns(m, n):
    """Of a tile: tiles_columns()."""
    high = -(-m // (2 * ROWS))
    large, small = (-(-high * -(-n // cols) // CLUSTERS) for cols in (256, 128))
    return 128 if small * 58 < large * 100 else 256


def ranges(numbers, most=8):
    """[0, 1, 2, 5] as "0-2 5"."""
    found = []
    for i in numbers:
        if found and i == found[-1][1] + 1:
            found[-1][1] = i
        else:
            found.append([i, i])
    text = " ".join(str(a) if a == b else f"{a}-{b}" for a, b in found[:most])
    return text + (f" ... ({len(found)} ranges)" if len(found) > most else "")


def instead(case, rank):
    """{what: matrix} that a result may be in the place of the right one, of all its rows."""
    made = {}
    if case.gathers:
        a, b = torch.cat(case.a).double(), case.b[rank].double()
        made["this rank's rows again"] = lambda wanted: torch.cat([case.a[rank].double() @ b] * 2)[:len(wanted)].to(case.dtype)
        made |= {f"no more than the first {k} of K": lambda _, k=k: (a[:, :k] @ b[:k]).to(case.dtype) for k in range(64, a.shape[1], 64)}
        return made
    whole = [a.double() @ b.double() for a, b in zip(case.a, case.b)]
    mine = slice(case.first[rank], case.first[rank] + case.rows[rank]) if case.kind == "gemm_reduce_scatter" else slice(None)
    for r, term in enumerate(whole):
        made[f"rank {r}'s term alone"] = lambda _, term=term: term[mine].to(case.dtype)
        made[f"rank {r}'s term twice"] = lambda _, term=term: (2 * term[mine]).to(case.dtype)
    if case.ks[0] == case.ks[1]:
        made |= {f"no more than the first {k} of K": lambda _, k=k: sum(a[:, :k].double() @ b[:k].double() for a, b in zip(case.a, case.b))[mine].to(case.dtype)
                 for k in range(64, case.ks[0], 64)}
    return made


def moved(wanted):
    for by in SHIFTS:
        for sign in (1, -1):
            for dim, what in enumerate(("rows", "columns")):
                if by < wanted.shape[dim]:
                    yield f"what belongs {by} {what} {'above' if (sign, dim) == (1, 0) else 'below' if dim == 0 else 'left' if sign == 1 else 'right'}", torch.roll(wanted, sign * by, dim)


def guesses(case, rank, found, wanted, wrong, factors):
    """What more than half of the wrong elements are."""
    made = instead(case, rank) if factors else {}
    tried = [("nothing but 0", torch.zeros_like(wanted)), *((what, make(wanted)) for what, make in made.items()), *moved(wanted)]
    at = found[wrong]
    shares = [(float((at == other[wrong]).float().mean()), what) for what, other in tried if other.shape == wanted.shape]
    shares.append((float(at.isnan().float().mean()), "NaN: never stored, or stored from nothing"))
    return [f"{100 * share:.0f} % of them are {what}" for share, what in sorted(shares, reverse=True)[:3] if share > 0.5] or ["they are nothing that is known"]


def parts(case, rank):
    """Of the result's rows: whose they are, the first, and how many."""
    if case.kind == "gemm_reduce_scatter":
        return [("own", 0, case.rows[rank])]
    return [("own" if r == rank else "the other's", case.first[r], case.rows[r]) for r in range(2)]


def differences(case, rank, found, wanted, factors=True):
    """Lines of text; none: nothing differs. factors: it is a product."""
    if found.shape != wanted.shape or found.dtype != wanted.dtype:
        return [f"{found.dtype} {list(found.shape)}: {wanted.dtype} {list(wanted.shape)} was expected"]
    wrong = ~(found == wanted)  # NaN is wrong, too
    if not bool(wrong.any()):
        return []
    wide = columns(sum(case.rows), wanted.shape[1])
    lines, tiles = [], []
    for whose, first, rows in parts(case, rank):
        for row in range(0, rows, ROWS):
            for col in range(0, wanted.shape[1], wide):
                tile = wrong[first + row:first + min(row + ROWS, rows), col:col + wide]
                if bool(tile.any()):
                    tiles.append((whose, row, col, first, tile))
    lines.append(f"{int(wrong.sum())} of {wrong.numel()} elements are wrong, in {len(tiles)} tiles of {ROWS} x {wide}")
    lines += guesses(case, rank, found, wanted, wrong, factors)
    for whose, row, col, first, tile in tiles[:TILES_SHOWN]:
        by_row, by_col = tile.any(1).nonzero().flatten().tolist(), tile.any(0).nonzero().flatten().tolist()
        lines.append(f"{whose} rows from {row}, columns from {col}: {int(tile.sum())} of {tile.numel()}; in it rows {ranges(by_row)}, columns {ranges(by_col)}")
        for r, c in tile.nonzero()[:ELEMENTS_SHOWN].tolist():
            at = first + row + r, col + c
            lines.append(f"    [{r}][{c}]: {float(found[at])}, not {float(wanted[at])}")
    return lines
