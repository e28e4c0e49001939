"""`rooflinekit serve`, and what is said of wrong use."""

import re
from pathlib import Path

import pytest
from command_line import Run

CONFIG = "llama-3.1-8b"


def test_a_served_model(run: Run) -> None:
    result = run("serve", CONFIG, "--gpu", "l40s", "--batch", 4, "--output", 16, "--weights", "fp8", "--kv", "fp8")
    lines = result.answered().splitlines()
    assert lines[0] == "llama-3.1-8b on nvidia-l40s: 4 clients, 1024 tokens in, 16 out, weights fp8, cache fp8"
    assert "at 64.0 KiB a token" in result.out


def test_a_table_and_a_document(run: Run) -> None:
    args = ("serve", CONFIG, "--gpu", "l40s", "--batch", "1,4", "-i", "64,128", "--output", 8)
    text = run(*args).out
    assert text.startswith("llama-3.1-8b on nvidia-l40s, ")
    assert len(re.findall(r"^ +[14] +(?:64|128) ", text, re.MULTILINE)) == 4
    document = run(*args, "--json").document
    assert [(one["input"], one["batch"]) for one in document["servings"]] == [(64, 1), (64, 4), (128, 1), (128, 4)]


def test_each_gpu_has_its_own_price(run: Run) -> None:
    """A million tokens take 1e6 / (tokens a second) seconds, each of which costs a 3600th of an hour."""
    args = ("serve", CONFIG, "--gpu", "l40s", "--gpu", "h100-sxm5-80gb", "--batch", 1, "-i", 64, "--output", 8)
    priced = (*args, "--price", "l40s=0.9", "--price", "h100=$3/h")
    for one, hour in zip(run(*priced, "--json").document["servings"], (0.9, 3.0), strict=True):
        assert one["usd_per_million_tokens"] == pytest.approx(hour / 3600 / one["tokens_per_s"] * 1e6)
    assert "h100-sxm5-80gb: no price is given" in run(*args, "--price", "l40s=0.9").err
    assert "--price, --price-per-hour: give one of the two" in run(*priced, "--price-per-hour", 2).err


def test_a_gpu_that_it_does_not_fit_is_a_row(run: Run) -> None:
    # 8 G weights of 2 bytes are more than the 16 GB of a T4.
    args = ("serve", CONFIG, "--gpu", "t4", "--gpu", "l40s", "--batch", 1, "-i", 64, "--output", 8)
    said = run(*args).answered()
    assert re.search(r"^ nvidia-l40s +1 +64 +8 +\d", said, re.MULTILINE)
    assert re.search(r"^ t4 +1 +64 +8 +does not fit +–", said, re.MULTILINE)
    assert "left out: llama-3.1-8b does not fit nvidia-t4: one request needs " in said
    document = run(*args, "--json").document
    assert [one["gpu"] for one in document["servings"]] == ["nvidia-l40s"]
    assert [(one["gpu"], one["batch"], one["input"]) for one in document["refused"]] == [("t4", 1, 64)]
    run("serve", CONFIG, "--gpu", "t4").refused()


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ((), "--gpu is missing"),
        (("--gpu", "l4", "--batch", "x"), "--batch: expected numbers such as 1,2,4, 1:64 or 8:4096:8; got 'x'\n"),
        (("--gpu", "l4", "--policy", "x"), "engine policy 'x': expected mixed or prefill-first\n"),
        (("--gpu", "l4", "--tp", "2"), "tp 2: the GPUs sum their results over a link"),
    ],
)
def test_wrong_use_is_one_line(run: Run, args: tuple[str, ...], message: str) -> None:
    run("serve", CONFIG, *args).refused(message)


def test_requests_at_a_rate(run: Run) -> None:
    args = ("serve", CONFIG, "--gpu", "l40s", "-i", 64, "--output", 8, "--requests", 20)
    said = run(*args, "--rate", "2/s", "--arrivals", "gamma:2", "--seed", 3).answered()
    assert "20 requests with gaps that vary by 2, 64 tokens in, 8 out" in said.splitlines()[0]
    assert re.search(r"^ first token +\S+ \S+ +\S+ \S+", said, re.MULTILINE)
    assert said == run(*args, "--rate", "120/min", "--arrivals", "gamma:2", "--seed", 3).out
    assert len(re.findall(r"^ nvidia-l40s", run(*args, "--rate", "2,4/s").out, re.MULTILINE)) == 2


def test_an_engine_by_name_at_a_rate(run: Run) -> None:
    args = ("serve", CONFIG, "--gpu", "l40s", "-i", 64, "--output", 8, "--requests", 20, "--rate", "2/s")
    alone = run(*args, "--engine", "vllm:0.12", "--sequences", 9)
    assert "cache bf16, engine vllm 0.12 (the defaults since 0.8), 20 requests" in alone.out.splitlines()[0]
    assert "start: vllm serve llama-3.1-8b --max-num-batched-tokens 2048 --max-num-seqs 9  #" in alone.out
    assert "judged: first token, vllm on " in alone.out
    served = run(*args, "--engine", "sglang:0.3,vllm", "--json").document["served"]
    assert [one["engine"]["release"] for one in served] == ["sglang:0.3", "vllm"]
    assert [one["engine"]["policy"] for one in served] == ["prefill-first", "mixed"]
    assert all(one["launch"][0].startswith("start: ") for one in served)


def test_requests_of_a_log(run: Run, tmp_path: Path) -> None:
    log = tmp_path / "log.csv"
    log.write_text("arrival,input,output\n0,64,8\n1.5,100,4\n", encoding="utf-8")
    said = run("serve", CONFIG, "--gpu", "l40s", "--requests", log).answered()
    assert "2 requests as the log says, 82 tokens in, 6 out" in said


def test_a_service_level(run: Run, tmp_path: Path) -> None:
    load = ("-i", 64, "--output", 8, "--requests", 20)
    args = ("serve", CONFIG, "--gpu", "l40s", *load, "--slo", "ttft=500ms,tpot=40ms")
    figure = tmp_path / "rates.svg"
    said = run(*args, "--load", "100/s", "--price-per-hour", 1, "--figure", figure).answered()
    assert "first token within 500 ms, each further token within 40.0 ms, for 90% of the requests:" in said
    assert "Requests/s" in figure.read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("--rate", "4"), "--rate '4': expected requests with their time, such as 4/s, 120/min or 1,2,4/s\n"),
        (("--rate", "1/s", "--arrivals", "x"), "--arrivals 'x': expected poisson, even, or gamma:CV"),
        (("--slo", "ttft=5"), "--slo 'ttft=5': expected one or more of ttft, tpot, e2e with seconds"),
        (("--rate", "1/s", "--keep", "0.5"), "--keep: needs a service level, such as --slo ttft=500ms,tpot=40ms\n"),
        (("--rate", "1/s", "--load", "9/s"), "--load: needs a service level, such as --slo ttft=500ms,tpot=40ms\n"),
        (
            ("--rate", "1/s", "--price", "l40s=1"),
            "--price: needs a service level, such as --slo ttft=500ms,tpot=40ms\n",
        ),
        (("--rate", "1/s", "-i", "64,128"), "--input '64,128': with --rate, --requests FILE or --slo, expected one"),
    ],
)
def test_wrong_rates_are_one_line(run: Run, args: tuple[str, ...], message: str) -> None:
    run("serve", CONFIG, "--gpu", "l40s", *args).refused(message)


def test_settings_of_the_engine(run: Run) -> None:
    args = ("serve", CONFIG, "--gpu", "l40s", "-i", 64, "--output", 8, "--json")
    speculation = ("--acceptance", 0.7, "--draft-tokens", 3, "--draft", CONFIG)
    engine = run(*args, *speculation, "--adapters", 4, "--graph-sizes", "1,8").document["servings"][0]["engine"]
    assert engine["speculation"]["given"] == pytest.approx(1 + 0.7 + 0.7**2 + 0.7**3)
    assert engine["speculation"]["draft"] == "llama-3.1-8b"
    assert (engine["adapters"], engine["graph_sizes"]) == ({"number": 4, "rank": 16}, [1, 8])
    both = run(*args, "--policy", "mixed,prefill-first", "--kv", "bf16,fp8").document["servings"]
    assert [(one["kv"], one["engine"]["policy"]) for one in both] == [
        ("bf16", "mixed"), ("bf16", "prefill-first"), ("fp8", "mixed"), ("fp8", "prefill-first")
    ]  # fmt: skip


def test_engines_apart_and_the_cheapest_of_several(run: Run) -> None:
    args = ("serve", CONFIG, "--gpu", "l40s", "-i", 64, "--output", 8, "--requests", 20)
    document = run(*args, "--rate", "2/s", "--prefill-engines", 2, "--link", "10 GB/s", "--json").document
    (served,) = document["served"]
    assert served["gpus"] == 3
    # 64 tokens of 2 · 32 layers · 8 heads · 128 numbers of 2 bytes
    assert served["disaggregation"]["transfer_s"] == pytest.approx(5e-6 + 64 * 2**17 / 10e9)
    searched = (*args, "--slo", "ttft=21ms", "--load", "20/s", "--weights", "bf16,fp8", "--search")
    said = run(*searched).answered()
    assert "copies   GPUs for 20/s" in said
    assert "2 combinations considered, " in said
    assert run(*searched, "--json").document["considered"] == 2


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("--draft", CONFIG), "--draft: needs --acceptance"),
        (("--acceptance", "2"), "speculation acceptance: expected the chance that a proposed token is kept, 0 to 1"),
        (("--prefill-engines", "1"), "--prefill-engines: needs requests at a rate"),
        (("--cached", "0.5"), "--cached: needs requests at a rate"),
        (("--length-cv", "0.5"), "--length-cv: needs requests at a rate"),
        (("--prefill-engines", "1", "--link", "fast"), "--link 'fast': expected bytes a second"),
        (("--graph-sizes", "8,x"), "--graph-sizes: expected numbers such as 1,2,4"),
        (("--search", "--rate", "1/s"), "--search: needs --slo"),
        (("--search",), "--search: needs requests at a rate"),
        (("--load", "9/s"), "--load: needs requests at a rate"),
        (("--prefill-tp", "2"), "--prefill-tp: belongs to --prefill-engines"),
        (("--draft-tokens", "2"), "--draft-tokens: needs --acceptance"),
        (("--dp", "2"), "dp 2: the GPUs sum their results over a link"),
    ],
)
def test_wrong_settings_are_one_line(run: Run, args: tuple[str, ...], message: str) -> None:
    run("serve", CONFIG, "--gpu", "l4", "-i", 64, "--output", 4, *args).refused(message)
