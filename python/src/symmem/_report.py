"""The report of `python -m symmem.verify`: table and JSON are those of `symmem verify`."""

from __future__ import annotations

import json
from typing import Any

from symmem._workload import Row, expected, in_group, members

PASS, FAIL, DIVERGED, NOT_RUN = "PASS", "FAIL", "DIVERGED", "NOT RUN"


def merge(head: dict[str, Any], rows: list[Row], accounts: list[dict[str, Any]]) -> dict[str, Any]:
    """Join what ranks found. It is pure, so ranks that got the same accounts report the same."""
    divergence = next((a["divergence"] for a in accounts if a["divergence"]), None)
    faults = [f"rank {r}: {a['fault']}" for r, a in enumerate(accounts) if a["fault"]]
    missing = DIVERGED if divergence else NOT_RUN
    cases = [_case(row, i, accounts, missing) for i, row in enumerate(rows)]
    count = [c["result"] for c in cases]
    report = {
        **head,
        "passed": count.count(PASS),
        "failed": count.count(FAIL),
        "not_run": len(count) - count.count(PASS) - count.count(FAIL),
        "cases": cases,
        "divergence": divergence,
        "took": ", ".join(sorted({p for a in accounts for p in a["paths"]})),
    }
    if faults and not divergence:
        report["fault"] = faults[0]
    return report


def _case(row: Row, at: int, accounts: list[dict[str, Any]], missing: str) -> dict[str, Any]:
    ranks = len(accounts)
    mine = [(r, a["findings"][at]) for r, a in enumerate(accounts) if in_group(row.group, r, ranks)]
    wrong = [r for r, f in mine if f and f["wrong"]]
    done = all(f is not None for _, f in mine)
    return {
        "name": row.name,
        "round": row.round,
        "group": row.group,
        "churn": row.churn,
        "ranks": members(row.group, ranks),
        "size": row.elements,
        "value": row.value,
        "symmetric": done and all(f["symmetric"] for _, f in mine),
        "expected": expected(row.value, len(mine)),
        "max_diff": max((f["max_diff"] for _, f in mine if f), default=0.0),
        "mean_diff": max((f["mean_diff"] for _, f in mine if f), default=0.0),
        **({"wrong_ranks": wrong} if wrong else {}),
        "result": FAIL if wrong else PASS if done else missing,
    }


def ok(report: dict[str, Any]) -> bool:
    """Report whether every case passed and nothing ended the run early."""
    clean = not report["failed"] and not report["not_run"]
    return clean and report["divergence"] is None and "fault" not in report


def exit_code(report: dict[str, Any]) -> int:
    """Choose the exit code: 1 for wrong sums or ranks that differ, 2 for an early end."""
    if "fault" in report:
        return 2
    return 0 if ok(report) else 1


def as_json(report: dict[str, Any]) -> str:
    """Write the report for machines."""
    return json.dumps(report)


def as_text(report: dict[str, Any]) -> str:
    """Write the report for people."""
    ranks = report["ranks"]
    lines = [
        f"{ranks} rank{'s' if ranks != 1 else ''} on the {report['backend']} backend; "
        f"check {report['check']}, placement {report['placement']}, path {report['path']}",
        *_formula(report),
        "",
        *_table(report),
        "",
        f"Total: {len(report['cases'])} | Passed: {report['passed']} | Failed: {report['failed']}"
        + (f" | Not run: {report['not_run']}" if report["not_run"] else ""),
    ]
    if report["failed"] and report["divergence"] is None:
        lines += [
            "",
            "Sums were wrong, and nothing said so: --check every finds where ranks differ.",
        ]
    if report["divergence"] is not None:
        lines += ["", report["divergence"]["message"]]
    if "fault" in report:
        lines += ["", f"The run ended early: {report['fault']}"]
    return "\n".join(lines) + "\n"


def _formula(report: dict[str, Any]) -> list[str]:
    name = report.get("deterministic")
    return [f"Bits are compared with the formula {name}, of numbers that cancel."] if name else []


def _table(report: dict[str, Any]) -> list[str]:
    grouped = report["groups"] > 1
    head = ["TestCase", *(["Group"] if grouped else []), "Size", "Value", "Sym", "Exp"]
    rows = [[*head, "MaxDiff", "MeanDiff", "Result"]]
    cases = report["cases"]
    at = 0
    while at < len(cases):
        n = _alike(cases, at)
        rows.append(_line(cases[at : at + n], grouped))
        at += n
    widths = [max(len(row[i]) for row in rows) + 2 for i in range(len(rows[0]) - 1)]
    return [
        "".join(cell.ljust(w) for cell, w in zip(row, widths, strict=False)) + row[-1]
        for row in rows
    ]


def _alike(cases: list[dict[str, Any]], at: int) -> int:
    """Count the blocks of churn from a case on with one result; failures stand by themselves."""
    first = cases[at]
    if not first["churn"] or first["result"] == FAIL:
        return 1
    n = 1
    while at + n < len(cases):
        c = cases[at + n]
        if not c["churn"] or c["result"] != first["result"]:
            break
        n += 1
    return n


def _line(cases: list[dict[str, Any]], grouped: bool) -> list[str]:
    first, many = cases[0], len(cases) > 1
    symmetric, worst, mean = "-", "-", "-"
    if first["result"] in (PASS, FAIL):
        symmetric = "yes" if all(c["symmetric"] for c in cases) else "no"
        worst = f"{max(c['max_diff'] for c in cases):.8f}"
        mean = f"{max(c['mean_diff'] for c in cases):.8f}"
    group = ["*" if many else spans(first["ranks"])] if grouped else []
    return [
        first["name"],
        *group,
        f"{sum(c['size'] for c in cases):,}",
        "*" if many else f"{first['value']:g}",
        symmetric,
        "*" if many else f"{first['expected']:g}",
        worst,
        mean,
        f"{first['result']} x {len(cases)}" if many else first["result"],
    ]


def spans(numbers: list[int]) -> str:
    """Write ascending numbers as 0-2,5."""
    parts: list[list[int]] = []
    for n in numbers:
        if parts and n == parts[-1][-1] + 1:
            parts[-1] = [parts[-1][0], n]
        else:
            parts.append([n])
    return ",".join("-".join(str(n) for n in dict.fromkeys(p)) for p in parts)
