"""The subcommands for files of measurements: whether they hold, what they hold, several as one."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from rooflinekit.cli import documents
from rooflinekit.cli.guide import Command, group
from rooflinekit.cli.measured import RankOption
from rooflinekit.cli.options import ForceOption, JsonOption, gpu_names, print_json
from rooflinekit.errors import printable
from rooflinekit.present.text.progress import bar

campaign = group(
    """Check, summarize and merge what `calibrate` has measured.

    Example: rooflinekit campaign validate calibration/campaigns/nvidia-t4/*.csv
    """
)

Files = Annotated[list[Path], typer.Argument(metavar="FILE...", help="records (.jsonl) or campaigns (.csv)")]


@campaign.command(cls=Command)
def validate(files: Files, as_json: JsonOption = False) -> None:
    """Whether files are sound: whole, unchanged, well-formed; exit status 1 where one is not.

    Example: rooflinekit campaign validate calibration/campaigns/nvidia-t4/*.csv
    """
    from rooflinekit.calibrate.campaigns import files as campaign_files

    found = campaign_files.validate(files)
    if as_json:
        rows = [{"file": str(file), "problem": wrong or None} for file, wrong in found.items()]
        print_json("campaign-validate", {"sound": not any(found.values()), "files": rows})
    for file, wrong in found.items() if not as_json else ():
        print(printable(f"{file}: {wrong or 'sound'}"))
    if any(found.values()):
        raise typer.Exit(1)


@campaign.command(cls=Command)
def summarize(files: Files, as_json: JsonOption = False) -> None:
    """What files hold: device, environment, ops by number formats, noisy cases, failures.

    Example: rooflinekit campaign summarize calibration/campaigns/nvidia-t4/*.csv
    """
    from rooflinekit.calibrate.campaigns import files as campaign_files
    from rooflinekit.present.text import calibration as campaign_text

    summaries = [campaign_files.summarize_file(file) for file in files]
    if as_json:
        print_json("campaign-summarize", {"files": [documents.summarized(summary) for summary in summaries]})
        return
    for summary in summaries:
        campaign_text.print_summary(summary)


@campaign.command(cls=Command, name="from-trace")
def from_trace(
    traces: Annotated[
        list[Path],
        typer.Argument(metavar="TRACE...", help="of export_chrome_trace, or .json.gz; or a folder"),
    ],
    out: Annotated[Path, typer.Option("--out", "-o", help="file for the rows, .csv")],
    gpu: Annotated[
        str | None,
        typer.Option(autocompletion=gpu_names, help="by default the device that the trace names"),
    ] = None,
    rank: RankOption = None,
    licence: Annotated[str, typer.Option(help="of the measurements, for whoever gets the file")] = "own measurements",
    force: ForceOption = False,
    as_json: JsonOption = False,
) -> None:
    """Measured ops out of traces that were recorded with shapes.

    Products, convolutions, attention, softmax, layer norms and element-wise ops become rows; `rooflinekit calibrate
    --campaign` fits constants on them. Several traces, such as those of all ranks, are one campaign.
    Example: rooflinekit campaign from-trace shapes.json.gz --gpu nvidia-l4 --out l4.csv
    """
    from rooflinekit.calibrate.campaigns.campaign import campaign_text
    from rooflinekit.files import check_free, write_text
    from rooflinekit.present.text import calibration as campaign_text_of
    from rooflinekit.study.profile.drawn import draw_all
    from rooflinekit.study.profile.trace import trace_files

    check_free(out, force=force)
    files = [file for trace in traces for file in trace_files(trace, rank)]
    with bar(f"reading {len(files)} traces", share=True) as advance:
        found = draw_all(files, gpu, licence, advance)
    write_text(campaign_text(found.campaign), out, force=force)
    if as_json:
        print_json("campaign-from-trace", documents.drawn(found, out))
        return
    campaign_text_of.print_drawn(found)
    print(printable(f"written to {out}"))


@campaign.command(cls=Command)
def merge(
    files: Files,
    out: Annotated[Path, typer.Option("--out", "-o", help="file for all measurements")],
    force: ForceOption = False,
    as_json: JsonOption = False,
) -> None:
    """Several records, or several campaigns, of one device in one environment, as one file.

    Example: rooflinekit campaign merge monday.jsonl tuesday.jsonl --out both.jsonl
    """
    from rooflinekit.calibrate.campaigns import files as campaign_files
    from rooflinekit.files import check_free
    from rooflinekit.present.text import calibration as campaign_text

    check_free(out, force=force)
    campaign_files.merge_files(files, out, force=force)
    summary = campaign_files.summarize_file(out)
    if as_json:
        print_json("campaign-summarize", {"files": [documents.summarized(summary)]})
        return
    campaign_text.print_summary(summary)
    print(printable(f"written to {out}"))
