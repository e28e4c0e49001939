"""Which test holds each promise of SECURITY.md and of the laws, and that it is there."""

from pathlib import Path

import pytest

#: What is promised, and the file and name of the test that fails where it is not so.
HELD = {
    "no kept trace gives a stale answer": ("api/test_stale_traces.py", "test_no_stale_trace"),
    "what cannot be followed is not kept": ("api/test_stale_traces.py", "test_what_cannot_be_followed_is_not_kept"),
    "a damaged trace is traced anew": ("api/test_targets.py", "test_a_damaged_file_is_traced_anew"),
    "a store that cannot be used is done without": ("api/test_targets.py", "test_no_folder_is_no_reason_to_fail"),
    "nothing in the store is waited for": (
        "api/test_targets.py", "test_a_pipe_in_the_place_of_a_trace_is_not_waited_for",
    ),
    "wrong arguments are named": (
        "api/test_wrong_arguments.py", "test_no_value_of_any_argument_ends_in_an_error_from_inside",
    ),
    "no command line ends in a traceback or hangs": ("test_fuzz.py", "test_what_nobody_wrote"),
    "an interrupt ends a trace cleanly": (
        "tracing/test_interrupts.py", "test_an_interrupt_during_an_operator_waits_for_the_next_module",
    ),
    "no file is read without bound": ("test_hostile_files.py", "test_what_never_ends_and_what_is_no_file"),
    "no name of a file is too long": ("test_hostile_files.py", "test_a_name_longer_than_any_file_has"),
    "no link is written through": ("test_files.py", "test_no_link_is_written_through"),
    "no letter acts upon a terminal": (
        "test_fuzz.py", "test_letters_of_a_path_that_a_terminal_acts_upon_are_written_out",
    ),
    "compiled takes longer than eager only where it is said": ("test_fuzz.py", "obeys"),
    "a larger batch takes longer": ("step/test_batch_laws.py", "test_a_larger_batch_is_faster_only_with_fewer_kernels"),
    "a graph without its model says at which sizes it was traced": (
        "ir/test_apart.py", "test_a_graph_without_its_model_says_that_it_was_not_traced_at_one",
    ),
}  # fmt: skip


@pytest.mark.parametrize("promise", HELD)
def test_a_promise_has_a_test(promise: str) -> None:
    file, name = HELD[promise]
    assert f"def {name}(" in (Path(__file__).parent / file).read_text(encoding="utf-8")
