"""Writes the JSON Schemas of what `--json` prints, docs/schemas/NAME.json, and of YAML files, docs/schemas/files/.

    python docs/make_schemas.py [--check]

With --check nothing is written, and the exit status is 1 where a file is behind. A document may have more fields than
its schema: one that is added does not raise its version, one that goes or changes its meaning does.
"""

from __future__ import annotations

import argparse
import json
import sys
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from rooflinekit.calibrate.bench import plan
from rooflinekit.calibrate.fitting import files as fits
from rooflinekit.files import write_text
from rooflinekit.hardware import prices
from rooflinekit.hardware.cluster import Cluster
from rooflinekit.hardware.device import Device
from rooflinekit.hardware.host import Host
from rooflinekit.step.memory import ACCOUNTS

FOLDER = Path(__file__).parent / "schemas"
Schema = dict[str, Any]
#: Kinds of YAML files, and the records that they become.
FILES: dict[str, type[BaseModel]] = {
    "device": Device, "host": Host, "cluster": Cluster, "plan": plan._File, "fit": fits.GpuFile, "links": fits.LinkFile,
    "energy": fits.EnergyFile, "prices": prices.PriceTable,
}  # fmt: skip

TEXT: Schema = {"type": "string"}
NUMBER: Schema = {"type": "number"}
COUNT: Schema = {"type": "integer", "minimum": 0}
FLAG: Schema = {"type": "boolean"}
ANY: Schema = {}


def of(unit: str, *, least: float | None = 0) -> Schema:
    """A number in a unit, never below `least`."""
    return {"type": "number", "description": unit} | ({} if least is None else {"minimum": least})


SECONDS, CHANGE, BYTES, FLOP = of("s"), of("s", least=None), of("byte"), of("FLOP")


def many(item: Schema, least: int = 0) -> Schema:
    """A list."""
    return {"type": "array", "items": item} | ({"minItems": least} if least else {})


def named(value: Schema) -> Schema:
    """Names that depend on the workload, each with such a value."""
    return {"type": "object", "additionalProperties": value}


def perhaps(schema: Schema) -> Schema:
    """It, or null where there is none."""
    return {"anyOf": [schema, {"type": "null"}]}


def record(required: Mapping[str, Schema], optional: Mapping[str, Schema] | None = None) -> Schema:
    """Fields that are always there, and fields that are there where they were asked for."""
    return {
        "type": "object", "properties": {**required, **(optional or {})}, "required": list(required),
    }  # fmt: skip


REGIME: Schema = {"enum": ["compute", "memory", "latency", "overhead"]}
SPAN = {"total_s": SECONDS, "low_s": SECONDS, "high_s": SECONDS}  # the interval is that of 90 %
TERMS = {"ideal": SECONDS, "underuse": SECONDS, "memory": SECONDS, "launch": SECONDS, "overhead": SECONDS}
WATTS, JOULES = of("W"), of("J")
ENERGY = record({
    "joules": JOULES, "low_j": JOULES, "high_j": JOULES, "mean_w": WATTS, "low_w": WATTS, "high_w": WATTS,
    "peak_w": WATTS, "idle_w": WATTS, "parts_j": named(JOULES),
})  # fmt: skip
TEAM_ENERGY = record({
    "joules": JOULES, "low_j": JOULES, "high_j": JOULES, "mean_w": WATTS, "low_w": WATTS, "high_w": WATTS,
    "idle_w": WATTS, "parts_j": named(JOULES), "gpus": COUNT,
})  # fmt: skip
PER_TOKEN = {
    "energy": perhaps(TEAM_ENERGY), "joules_per_token": perhaps(of("J/token")),
    "joules_per_token_interval": perhaps(many(of("J/token"), 2)),
}  # fmt: skip
MEMORY_LEVEL = record(dict.fromkeys(("bytes", "low_bytes", "high_bytes"), BYTES))
VERDICT = record({
    **dict.fromkeys(("allocated", "reserved", "process"), MEMORY_LEVEL),
    "beside": named(BYTES), "least_bytes": BYTES, "usable_bytes": BYTES, "probability": NUMBER,
})  # fmt: skip
_HELD = record({"measured_bytes": COUNT, "predicted_bytes": COUNT})
_PLACES = many(record({"where": TEXT, "count": {**COUNT, "minimum": 1}, "bytes": {**COUNT, "minimum": 1}}))
MEASURED_MEMORY = record({
    "file": TEXT, "device": COUNT, "allocated": _HELD, "reserved": _HELD, "more": _PLACES, "less": _PLACES,
})  # fmt: skip
PREDICTION = record(
    {
        "model": TEXT, "mode": TEXT, "device": TEXT, "host": TEXT,
        "execution": record({"backend": TEXT, "sync": TEXT, "copy": TEXT}),
        "autocast": perhaps(TEXT), "channels_last": FLAG, "like": perhaps(TEXT), "sizes": named(COUNT),
        **SPAN, "gpu_s": SECONDS, "cpu_s": SECONDS, "regime": REGIME, "shares": named(NUMBER),
        "terms": record({**TERMS, "input": SECONDS}), "underuse": named(CHANGE),
        "mfu": NUMBER, "hfu": NUMBER, "flop": FLOP, "bytes": BYTES, "kernels": COUNT, "constants": TEXT, "burst": FLAG,
        "energy": perhaps(ENERGY), "power_limit_w": perhaps(WATTS), "clock_limit_hz": perhaps(of("Hz")),
        "memory": record({
            **dict.fromkeys((
                "peak_bytes", "weight_bytes", "gradient_bytes", "state_bytes", "workspace_bytes", "reserved_bytes",
                "context_bytes", "capacity_bytes",
            ), BYTES),
            "peak_op": TEXT, "fits": FLAG,
        }, {"verdict": VERDICT}),
        "coverage": record({
            "ops": named(COUNT), "default_kinds": named(COUNT), "flop_share": NUMBER, "bytes_share": NUMBER,
        }),
        "notes": many(TEXT),
    },
    {"by": many(record({})), "compare": many(record({})), "largest_batch": ANY, "measured_memory": MEASURED_MEMORY},
)  # fmt: skip
CHECK = record({
    "name": TEXT, "expected": perhaps(NUMBER), "actual": perhaps(NUMBER), "unit": TEXT, "status": TEXT, "note": TEXT,
})  # fmt: skip
DEVICE = record({
    "schema": COUNT, "name": TEXT, "kind": {"enum": ["gpu", "cpu"]}, "vendor": TEXT, "architecture": TEXT,
    "sm_count": COUNT, "lanes_per_sm": NUMBER, "clock": record({"boost": TEXT}),
    "dram": record({"capacity": TEXT, "bandwidth": TEXT}), "l2_capacity": TEXT, "matrix_peak": named(TEXT),
    "vector_peak": named(TEXT), "sources": named(TEXT),
    "table": record({"name": TEXT, "memory_bytes": BYTES, "bandwidth_bytes_per_s": of("byte/s")}),
})  # fmt: skip
CLUSTER = record({
    "schema": COUNT, "name": TEXT, "devices": many(record({"name": TEXT, "count": COUNT}), 1), "host": TEXT,
})  # fmt: skip
HOST = record({
    "schema": COUNT, "name": TEXT, "description": TEXT, "dispatch": named(TEXT), "launch": TEXT, "sync": TEXT,
    "copy_bandwidth_pageable": TEXT, "copy_bandwidth_pinned": TEXT, "sources": named(TEXT),
})  # fmt: skip
CHOSEN: Schema = {"anyOf": [FLAG, many(TEXT)]}  # all blocks or none, or modules
SHARED = record({
    "model": TEXT, "cluster": TEXT, "gpus": COUNT, "strategy": record({"name": TEXT}),
    "savers": record({
        "accumulate": COUNT, "checkpoint": CHOSEN, "eight_bit": FLAG, "offload": FLAG, "save": many(TEXT),
        "offload_activations": CHOSEN,
    }),
    "batch": COUNT,
    **SPAN, "terms": record({**TERMS, "input": SECONDS, "communication": CHANGE}),
    "communication_s": SECONDS, "exposed_s": SECONDS, "hidden_s": SECONDS, "collectives_s": named(SECONDS),
    "throughput": of("samples/s"), "one_gpu_s": perhaps(SECONDS), "speedup": perhaps(NUMBER),
    "efficiency": perhaps(NUMBER), "mfu": NUMBER, "hfu": NUMBER, "fits": FLAG, "energy": perhaps(TEAM_ENERGY),
    "fullest": many(COUNT, 1), "fullest_name": TEXT, "verdict": VERDICT,
    "devices": many(record({
        "device": TEXT, "numbers": many(COUNT, 1), "batch": COUNT, "total_s": SECONDS, "terms": record(TERMS),
        **dict.fromkeys(("peak_bytes", "weight_bytes", "gradient_bytes", "state_bytes", "reserved_bytes"), BYTES),
        "fits": FLAG, "verdict": VERDICT,
        "memory_over_time": record({
            "moments": named(record({
                "op": TEXT, "start_s": SECONDS, "allocated": BYTES,
                **{account.replace(" ", "_"): BYTES for account in ACCOUNTS},
            })),
            "levels": record({"stretch_s": SECONDS, "bytes": many(BYTES, 1)}),
        }),
    }), 1),
    "notes": many(TEXT),
})  # fmt: skip
#: A combination of sizes, with the time; on clusters other columns than on GPUs, and missing numbers are null.
ROW = record({"total_s": perhaps(SECONDS), "low_s": perhaps(SECONDS), "high_s": perhaps(SECONDS)})
_OVER_REQUESTS = record({
    **dict.fromkeys(("mean", "p50", "p90", "p99"), perhaps(SECONDS)), "mean_interval": many(perhaps(SECONDS), 2),
})  # fmt: skip
ENGINE = record({
    "host": TEXT, "policy": TEXT, "graph_sizes": perhaps(many(COUNT, 1)),
    "speculation": perhaps(record({
        "tokens": COUNT, "acceptance": {"anyOf": [NUMBER, many(NUMBER)]}, "given": NUMBER, "weights": TEXT, "draft": perhaps(TEXT),
    })),
    "adapters": perhaps(record({"number": COUNT, "rank": COUNT})), "sums": TEXT, "heads": TEXT, "host_more_s": SECONDS,
    "handed": FLAG, "release": perhaps(TEXT),
})  # fmt: skip
SERVED = record({
    "decoder": TEXT, "gpu": TEXT, "tp": COUNT, "ep": COUNT, "dp": COUNT, "weights": TEXT, "kv": TEXT,
    "rate": of("request/s"), "cv": NUMBER, "input": COUNT, "output": COUNT, "length_cv": NUMBER, "cached": NUMBER,
    "requests": COUNT, "power_limit_w": perhaps(WATTS), "clock_limit_hz": perhaps(of("Hz")),
    "warm_up": NUMBER, "drain": NUMBER, "seed": NUMBER, "log": FLAG, "engine": ENGINE, "gpus": COUNT,
    "disaggregation": perhaps(record({
        "prefill": COUNT, "decode": COUNT, "prefill_tp": perhaps(COUNT), "link_bytes_per_s": of("byte/s"),
        "link_latency_s": SECONDS, "transfer_s": SECONDS,
    })),
    **dict.fromkeys(("queue_s", "ttft_s", "tpot_s", "e2e_s"), _OVER_REQUESTS),
    "gap_s": record(dict.fromkeys(("p50", "p90", "p99"), perhaps(SECONDS))),
    "alone": record({"ttft_s": SECONDS, "tpot_s": perhaps(SECONDS), "e2e_s": SECONDS}),
    "requests_per_s": of("request/s"), "tokens_per_s": of("token/s"), "tokens_per_s_per_gpu": of("token/s"),
    "overloaded": FLAG, "busy": NUMBER, "reading": NUMBER, "running": NUMBER, "preemptions": NUMBER,
    "peak_cache": NUMBER, "weight_bytes": BYTES, "cache_bytes": BYTES, "kv_bytes_per_token": BYTES, **PER_TOKEN,
    "launch": many(TEXT), "notes": many(TEXT),
})  # fmt: skip
PROFILE = record({
    "file": TEXT, "mark": TEXT, "steps": COUNT, "device": TEXT, "wall_s": SECONDS, "busy_s": SECONDS, "idle_s": SECONDS,
    "launched": NUMBER, "busy_share": NUMBER, "regime": TEXT,
    "kernels": many(record({"name": TEXT, "count": NUMBER, "seconds": SECONDS})),
})  # fmt: skip
CONSTANTS = named(record({"value": NUMBER, "error": NUMBER, "unit": TEXT, "source": TEXT}))
CALIBRATION = record(
    {"constants": CONSTANTS, "spreads": named(record({"random": NUMBER, "systematic": NUMBER, "short_s": NUMBER}))}
)
OWN_FIT = {
    "constants": CONSTANTS,
    "families": named(record({
        "cases": COUNT, "typical_error": NUMBER, "typical_error_before": NUMBER, "bias": NUMBER,
    })),
    "worst": many(record({"case": TEXT, "measured_s": SECONDS, "predicted_s": SECONDS})),
    "left_out": COUNT,
}  # fmt: skip

ACCOUNTS = record({
    **dict.fromkeys((
        "weights", "gradients", "optimizer", "activations", "working", "buffers", "allocated", "reserved", "context",
        "host",
    ), BYTES),
    "probability": NUMBER, "fits": FLAG,
})  # fmt: skip
TRAINING = record({
    "model": TEXT, "parameters": COUNT, "cluster": TEXT, "gpus": COUNT, "layout": TEXT, "recipe": TEXT,
    "recompute": TEXT, "offload_layers": COUNT, "batch": COUNT, "seq": COUNT, "micro_batches": COUNT, "total_s": SECONDS,
    "interval_s": {**many(SECONDS, 2), "maxItems": 2}, "terms": named(CHANGE), "tokens_per_s": of("token/s"),
    "mfu": NUMBER, "hfu": NUMBER, "energy": perhaps(TEAM_ENERGY),
    "memory": ACCOUNTS, "verdict": VERDICT,
    "fullest": record({"stage": COUNT, "first_gpu": COUNT, "last_gpu": COUNT}),
    "stages": many(record({
        "first_gpu": COUNT, "last_gpu": COUNT,
        "moments": record(dict.fromkeys(("backward begins", "backward ends", "update"), ACCOUNTS)),
    }), 1),
})  # fmt: skip
COSTS = record({
    "currency": TEXT, "unit": TEXT, "samples": perhaps(NUMBER), "carbon_kg_per_kwh": perhaps(NUMBER),
    "rows": many(record({
        "gpu": TEXT, "gpus": COUNT, "total_s": SECONDS, "power_w": perhaps(WATTS), "energy_j": perhaps(JOULES),
        "cost": NUMBER, "per_million": NUMBER, "rented": perhaps(NUMBER), "owned": perhaps(NUMBER),
        "break_even_h": perhaps(of("h")),
    }, {"run_s": SECONDS, "run_cost": NUMBER, "run_kwh": perhaps(of("kWh")), "kg": perhaps(of("kg"))}), 1),
})  # fmt: skip
LIMITS = record(
    {
        "model": TEXT, "mode": TEXT, "device": TEXT, "gpus": COUNT, "sizes": named(COUNT),
        "limits": many(record({
            "limit_w": WATTS, "total_s": SECONDS, "slower": NUMBER, "power_w": WATTS, "energy_j": JOULES,
            "saved": NUMBER, "energy_delay": of("J·s"),
        }), 1),
        "least_energy_w": WATTS, "least_energy_delay_w": WATTS,
    },
    {"rack": many(record({"limit_w": WATTS, "gpus": COUNT, "samples_a_day": NUMBER}))},
)  # fmt: skip

SCHEMAS: dict[str, Schema] = {
    "advise": record({
        "base": PREDICTION,
        "suggestions": many(record({
            "what": TEXT, "saved_s": CHANGE, "speedup": NUMBER, "speedup_low": NUMBER, "speedup_high": NUMBER,
            "saved_terms": named(CHANGE), **SPAN, "steps": NUMBER, "regime": REGIME, "peak_bytes": BYTES, "notes": many(TEXT),
        })),
        "left_out": many(record({"what": TEXT, "why": TEXT})),
    }),
    "calibrate": record({
        "device": TEXT, "plan": TEXT, "measurements": COUNT, "units": COUNT, "left": COUNT, "samples": COUNT,
        "outliers": COUNT,
        "host_ops": many(record({"case": TEXT, "what": TEXT, "median_s": SECONDS, "error": NUMBER})),
        "fit": perhaps(record(OWN_FIT)), "warnings": many(TEXT), "files": named(many(TEXT, 1)),
    }),
    "campaign-from-trace": record({
        "file": TEXT, "device": TEXT, "source": TEXT,
        "ops": many(record({"op": TEXT, "shapes": COUNT, "calls": COUNT})), "kernels_s": SECONDS,
        "refused_s": SECONDS, "refused": named(COUNT),
    }),
    "campaign-summarize": record({"files": many(record({
        "file": TEXT, "device": TEXT, "origin": TEXT, "environment": named(TEXT), "cases": COUNT,
        "counts": many(record({"op": TEXT, "format": TEXT, "cases": COUNT})), "noisy": many(TEXT),
        "failures": many(record({"status": TEXT, "cases": many(TEXT, 1), "note": TEXT})),
    }), 1)}),
    "campaign-validate": record({"sound": FLAG, "files": many(record({"file": TEXT, "problem": perhaps(TEXT)}), 1)}),
    "check": record({"specifications": many(record({"name": TEXT, "checks": many(CHECK)}))}),
    "cluster": record({"cluster": CLUSTER}),
    "clusters": record({"clusters": many(CLUSTER)}),
    "hosts": record({"hosts": many(HOST)}),
    "collective": record({
        "collective": TEXT, "cluster": TEXT, "gpus": COUNT, "bytes": BYTES, "total_s": SECONDS,
        "interval_s": {**many(SECONDS, 2), "maxItems": 2}, "algorithm": TEXT, "bus_bandwidth": of("byte/s"),
        "algorithm_bandwidth": of("byte/s"), "terms": named(SECONDS),
        "links": many(record({"technology": TEXT, "bandwidth_per_direction": of("byte/s"), "latency_s": SECONDS})),
    }),
    "compare": record({
        "model": TEXT, "mode": TEXT, "sizes": named(COUNT), "execution": TEXT, "host": TEXT, "sort": TEXT,
        "gpus": many(record({
            "gpu": TEXT, **SPAN, "fits": FLAG, "peak_bytes": BYTES, "memory_bytes": BYTES, "regime": REGIME,
            "bandwidth_bytes_per_s": of("byte/s"), "price_usd": perhaps(NUMBER), "power_w": perhaps(NUMBER),
            "drawn_w": perhaps(WATTS), "per_million": perhaps(NUMBER),
        })),
        "currency": perhaps(TEXT), "refused": named(TEXT),
        "neighbours": many(record({
            "faster": TEXT, "slower": TEXT, "ratio": NUMBER, "ratio_low": NUMBER, "ratio_high": NUMBER, "certain": FLAG,
        })),
        "sentences": many(TEXT),
    }),
    "cost": COSTS,
    "crossover": record({
        "intensity": record({"of": TEXT, "formula": TEXT, "latex": TEXT}),
        "sizes": many(record({"what": TEXT, "size": TEXT, "from": perhaps(COUNT)})),
        "bandwidths": many(record({
            "first": TEXT, "second": TEXT, "stated_bytes_per_s": of("byte/s"), "bytes_per_s": perhaps(of("byte/s")),
        })),
    }),
    "device": record({"device": DEVICE, "checks": many(CHECK)}),
    "devices": record({"devices": many(DEVICE)}),
    "explain": record({"explanations": many(record({
        "a": PREDICTION, "b": PREDICTION, "labels": many(TEXT, 2),
        "differences": many(record({"what": TEXT, "a": ANY, "b": ANY})),
        "a_s": SECONDS, "b_s": SECONDS, "delta_s": CHANGE, "terms": named(CHANGE), "underuse": named(CHANGE),
        **dict.fromkeys(("flop_ratio", "promised_ratio", "time_ratio", "gpu_ratio"), perhaps(NUMBER)),
        "intervals_overlap": FLAG, "certain": FLAG, "b_by_a": many(perhaps(NUMBER), 2),
        "drivers": many(record({"module": TEXT, "kind": TEXT, "a_s": SECONDS, "b_s": SECONDS, "delta_s": CHANGE})),
        "story": many(TEXT, 1), "details": many(TEXT),
    }))}),
    "fit": record({
        "folder": TEXT, "written": FLAG, "difference": perhaps(TEXT), "removed": many(TEXT), "measurements": COUNT,
        "priors": CALIBRATION, "architectures": named(CALIBRATION), "gpus": named(CALIBRATION),
    }),
    "fit-into": record({
        "best": perhaps(SHARED),
        "tried": many(record({
            "combination": TEXT, "total_s": perhaps(SECONDS), "fits": FLAG, "probability": NUMBER,
        }), 1),
    }),
    "doctor": record({"findings": many(record({"what": TEXT, "found": TEXT, "to_do": TEXT}), 1)}),
    "guard": record({
        "checked": many(record({
            "workload": TEXT, "gpu": TEXT, "status": {"enum": ["same", "changed", "exceeded"]}, "total_s": SECONDS,
            "locked_s": perhaps(SECONDS), "rooflinekit_s": CHANGE,
            "changes": named(record({"before": NUMBER, "now": NUMBER})),
            "ratio": perhaps(record({"times": NUMBER, "low": NUMBER, "high": NUMBER})), "certain": FLAG,
            "causes": many(record({
                "module": TEXT, "kind": TEXT, "what": TEXT, "s": CHANGE, "following_s": CHANGE,
            })),
            "exceeded": many(TEXT), "notes": many(TEXT),
        }), 1),
    }),
    "host": record({
        "file": TEXT, "measured_on": {"enum": ["cuda", "cpu"]}, "op_s": SECONDS, "slowness": perhaps(NUMBER),
        "against": TEXT,
    }),
    "measure": record({
        "measured_s": SECONDS, "predicted_s": SECONDS, "error": NUMBER, "inside": FLAG, "noisy": FLAG,
        "validation": record({
            "model": TEXT, "mode": TEXT, "sizes": named(COUNT), "device": TEXT, "host": TEXT,
            "seconds": many(SECONDS, 1), "steps": COUNT,
            "predicted": record({**SPAN, "regime": REGIME, "terms": named(SECONDS)}),
            "ops": many(record({})), "environment": named(TEXT),
        }),
        "file": perhaps(TEXT),
    }),
    "own-fit": record({"device": TEXT, "file": TEXT, **OWN_FIT}),
    "parallel": SHARED,
    "power": record({"studies": many(LIMITS, 1)}),
    "predict": record({"predictions": many(PREDICTION, 1)}),
    "profile": record({"profile": PROFILE}, {
        "prediction": PREDICTION, "error": NUMBER, "ops": many(record({})),
    }),
    "search": record({
        "minimize": perhaps(TEXT), "maximize": perhaps(TEXT), "require": many(TEXT), "predicted": COUNT,
        "exhaustive": FLAG, "unpriced": many(TEXT), "best": perhaps(ROW), "runners_up": many(ROW), "closest": many(ROW),
    }, {"doubts": many(TEXT)}),
    "serve": record({"servings": many(record({
        "decoder": TEXT, "gpu": TEXT, "tp": COUNT, "ep": COUNT, "dp": COUNT, "weights": TEXT, "kv": TEXT,
        "batch": COUNT, "power_limit_w": perhaps(WATTS), "clock_limit_hz": perhaps(of("Hz")),
        "engine": ENGINE,
        "ttft_s": SECONDS, "tpot_s": perhaps(SECONDS), "prefill_s": SECONDS, "decode_s": SECONDS,
        "tokens_per_s": of("token/s"), "tokens_per_s_per_gpu": of("token/s"), "running": NUMBER, "largest_batch": COUNT,
        "prefill_regime": REGIME, "decode_regime": REGIME, "weight_bytes": BYTES, "kv_bytes_per_token": BYTES,
        **PER_TOKEN, "launch": many(TEXT), "notes": many(TEXT),
    }), 1)}),
    "specs": record({"specification": record({"schema": COUNT}), "left_empty": many(TEXT), "file": perhaps(TEXT)}),
    "serve-capacity": record({
        "capacities": many(record({
            "level": record(dict.fromkeys(("ttft_s", "tpot_s", "e2e_s"), perhaps(SECONDS)) | {"share": NUMBER}),
            "rate": of("request/s"), "tokens_per_s": of("token/s"), "price_usd_per_hour": perhaps(NUMBER),
            "usd_per_million_tokens": perhaps(NUMBER), "load": perhaps(of("request/s")), "copies": perhaps(COUNT),
            "gpus": perhaps(COUNT),
            "points": many(record({
                "rate": of("request/s"), "kept": NUMBER, "goodput": of("request/s"), "requests_per_s": of("request/s"),
                "tokens_per_s": of("token/s"), "ttft_s": many(SECONDS, 3), "tpot_s": many(perhaps(SECONDS), 3),
                "e2e_s": many(SECONDS, 3),
                "overloaded": FLAG,
            }), 1),
            "at": SERVED,
        })),
        "refused": many(record({"gpu": TEXT, "why": TEXT})),
    }, {"considered": COUNT, "played": COUNT}),
    "serve-rates": record({"served": many(SERVED, 1), "refused": many(record({"gpu": TEXT, "why": TEXT}))}),
    "sweep": record({"rows": many(ROW)}),
    "summary": record({
        "model": TEXT, "mode": TEXT, "sizes": named(COUNT), "gpus": many(TEXT),
        "modules": many(record({
            "module": TEXT, "output": perhaps(many(COUNT)), "parameters": COUNT, "flop": FLOP, "bytes": BYTES,
            "activation_bytes": BYTES,
        }, {"share": NUMBER}), 1),
    }),
    "train": record({
        "step": TRAINING,
        "search": perhaps(record({
            "considered": COUNT, "too_large": COUNT, "worked_out": COUNT, "front": many(TRAINING, 1),
        })),
    }, {"cost": COSTS, "power": LIMITS}),
    "transfer": record({"predictions": many(PREDICTION, 1)}),
}  # fmt: skip


_VERSIONS: dict[str, int] = {}  # of documents that no longer have their first
#: What prints a document that is not called as its command.
_COMMANDS = {
    "campaign-from-trace": "campaign from-trace", "campaign-summarize": "campaign summarize",
    "campaign-validate": "campaign validate", "cluster": "clusters NAME", "device": "devices NAME",
    "host": "measure --host-only", "own-fit": "calibrate --campaign FILE", "specs": "specs new",
    "serve-capacity": "serve --slo", "serve-rates": "serve --rate",
}  # fmt: skip


def schema(name: str) -> Schema:
    """The whole schema of a document, whose field `schema` says its name and version."""
    content, version = SCHEMAS[name], f"rooflinekit/{name}/{_VERSIONS.get(name, 1)}"
    command = _COMMANDS.get(name, name)
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": version,
        "title": f"what `rooflinekit {command} --json` prints",
        "type": "object",
        "properties": {"schema": {"const": version}, **content["properties"]},
        "required": ["schema", *content["required"]],
    }  # fmt: skip


def of_file(name: str, model: type[BaseModel]) -> Schema:
    """The schema of a kind of YAML file: that of the record which checks it when it is read, without its prose."""
    with warnings.catch_warnings(action="ignore"):  # defaults that JSON cannot say
        found = model.model_json_schema()
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", "$id": f"rooflinekit/files/{name}/1"} | {
        **found, "title": f"a file of rooflinekit: {name}",
    }  # fmt: skip


def main() -> None:
    """Writes them, or says which are behind."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="only say whether the files are current")
    check = parser.parse_args().check
    FOLDER.mkdir(exist_ok=True)
    (FOLDER / "files").mkdir(exist_ok=True)
    wanted = {FOLDER / f"{name}.json": json.dumps(schema(name), indent=1) + "\n" for name in SCHEMAS}
    wanted |= {
        FOLDER / "files" / f"{name}.json": json.dumps(of_file(name, model), indent=1) + "\n"
        for name, model in FILES.items()
    }
    there = {file: file.read_text(encoding="utf-8") for file in FOLDER.rglob("*.json")}
    if check:
        sys.exit(0 if there == wanted else "docs/schemas is behind: run python docs/make_schemas.py")
    for file in there.keys() - wanted.keys():
        file.unlink()
    for file, text in wanted.items():
        write_text(text, file)


if __name__ == "__main__":
    main()
