"""What is fetched from the hub, what is told meanwhile, and what each refusal of the hub means."""

from collections.abc import Callable
from pathlib import Path

import pytest
from huggingface_hub import errors
from huggingface_hub.utils._paths import filter_repo_objects
from tqdm.auto import tqdm  # type: ignore[import-untyped]

from quire.models.config import CheckpointError
from quire.models.loading.checkpoint import ModelSource, locate
from tests.models.driver import ignore_progress

Download = Callable[..., str]


def replace_download(monkeypatch: pytest.MonkeyPatch, download: Download) -> None:
    monkeypatch.setattr("quire.models.loading.hub.snapshot_download", download)


def a_model_folder(folder: Path) -> str:
    for name in ("config.json", "model.safetensors"):
        (folder / name).write_text("{}")
    return str(folder)


def test_whole_files_are_counted_and_nothing_is_printed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def download(name: str, *, tqdm_class: type[tqdm], **options: object) -> str:
        with tqdm_class(total=900, unit="B") as in_bytes, tqdm_class(total=3) as in_files:
            for _ in range(3):
                in_bytes.update(300)
                in_files.update(1)
        return a_model_folder(tmp_path)

    replace_download(monkeypatch, download)
    calls: list[tuple[str, int, int]] = []
    folder = locate(ModelSource("some/model"), lambda *call: calls.append(call))
    assert folder == tmp_path
    assert calls == [("download", done, 3) for done in (1, 2, 3)]
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("trusted", [False, True])
def test_pickles_are_never_fetched_and_code_only_if_trusted(
    trusted: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: dict[str, object] = {}

    def download(name: str, *, allow_patterns: list[str], **options: object) -> str:
        asked.update(options, allow_patterns=allow_patterns)
        return a_model_folder(tmp_path)

    replace_download(monkeypatch, download)
    source = ModelSource("some/model", revision="v2", trust_remote_code=trusted)
    locate(source, ignore_progress)
    patterns = asked["allow_patterns"]
    assert isinstance(patterns, list)
    assert ("*.py" in patterns) == trusted
    assert not any(name in pattern for pattern in patterns for name in ("bin", "pt"))
    assert asked["revision"] == "v2"


def test_of_subfolders_only_that_of_the_pooling_is_fetched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = ["model.safetensors", "1_Pooling/config.json", "modules.json", "config.json"]
    others = ["onnx/model.json", "2_Dense/config.json", "1_Dense/config.json", "16/config.json"]
    fetched: list[str] = []

    def download(
        name: str, *, allow_patterns: list[str], ignore_patterns: list[str], **options: object
    ) -> str:
        found = filter_repo_objects(
            [*files, *others], allow_patterns=allow_patterns, ignore_patterns=ignore_patterns
        )
        fetched[:] = found
        return a_model_folder(tmp_path)

    replace_download(monkeypatch, download)
    locate(ModelSource("some/model"), ignore_progress)
    assert fetched == files


def refused(kind: type[errors.HfHubHTTPError]) -> errors.HfHubHTTPError:
    """Made without its constructor, which wants a response of the hub's own HTTP client."""
    return kind.__new__(kind, "no")


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (refused(errors.GatedRepoError), "is gated.*HF_TOKEN"),
        (refused(errors.RevisionNotFoundError), "has no revision v9"),
        (refused(errors.RepositoryNotFoundError), "neither a folder here nor a model on the hub"),
        (errors.HFValidationError("no"), "neither a folder here nor a model on the hub"),
        (errors.LocalEntryNotFoundError("no"), "the hub is out of reach"),
        (errors.OfflineModeIsEnabled("no"), "the hub is out of reach"),
    ],
)
def test_refusals_say_what_to_do(
    error: Exception, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def download(*args: object, **options: object) -> str:
        raise error

    replace_download(monkeypatch, download)
    with pytest.raises(CheckpointError, match=message):
        locate(ModelSource("some/model", revision="v9"), ignore_progress)
