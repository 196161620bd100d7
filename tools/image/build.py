"""The image, by Buildah in a chroot, with its storage in one folder that may be thrown away."""

import json
import os
import subprocess
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
BASE = "localhost/quire-base"
FORMATS = ("docker", "oci")
BUILD_S = 1200
SHORT_S = 300


@dataclass(frozen=True, slots=True)
class Config:
    """The part of an image that says how it is run, as one of its two formats keeps it."""

    environment: dict[str, str]
    entrypoint: list[str]
    labels: dict[str, str]
    health_check: list[str]
    """The command, or nothing where the format keeps none."""


@dataclass(frozen=True, slots=True)
class Buildah:
    """storage: the folder of images, containers and their layers."""

    storage: Path

    def run(self, *words: str | Path, within_s: float = SHORT_S) -> str:
        """The words that it says. Raises AssertionError with its last words where it fails."""
        places: list[str | Path] = [
            "--root",
            self.storage / "root",
            "--runroot",
            self.storage / "run",
        ]
        log = self.storage / "log"
        with log.open("w") as errors:
            done = subprocess.run(
                ["buildah", *places, *words],
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                timeout=within_s,
                env=os.environ | {"BUILDAH_ISOLATION": "chroot", "TMPDIR": str(self.storage)},
            )
        last = (done.stdout + log.read_text())[-3000:]
        assert done.returncode == 0, f"buildah {' '.join(map(str, words[:2]))}:\n{last}"
        return done.stdout.strip()

    def import_base(self, archive: Path) -> None:
        """The image BASE from an archive of a root."""
        container = self.run("from", "scratch")
        self.run("add", "--quiet", container, archive, "/")
        self.run("commit", "--quiet", container, BASE)
        self.run("rm", container)

    def build(self, wheels: Path) -> None:
        """The images quire:docker, from the Dockerfile, and quire:oci, the same in the other
        format."""
        print("buildah builds the Dockerfile", flush=True)
        arguments = {"PYTHON_IMAGE": BASE, "TORCH_INDEX": "file:///wheels"}
        given = [word for each in arguments.items() for word in ("--build-arg", "=".join(each))]
        options = ["--format", "docker", "--pull-never", "--volume", f"{wheels}:/wheels:ro"]
        self.run("bud", *options, *given, "--tag", "quire:docker", ROOT, within_s=BUILD_S)
        container = self.run("from", "--pull-never", "localhost/quire:docker")
        self.run("commit", "--quiet", "--format", "oci", container, "quire:oci")
        self.run("rm", container)

    def config(self, form: str) -> Config:
        """The configuration of quire:`form`, read from its own configuration."""
        said = json.loads(self.run("inspect", "--type", "image", f"localhost/quire:{form}"))
        config = said["Docker" if form == "docker" else "OCIv1"]["config"]
        return Config(
            environment=dict(each.split("=", 1) for each in config["Env"]),
            entrypoint=config["Entrypoint"],
            labels=config["Labels"],
            health_check=config.get("Healthcheck", {}).get("Test", [])[1:],
        )

    def mount(self) -> Path:
        """The root of a new container of quire:docker."""
        container = self.run("from", "--pull-never", "localhost/quire:docker")
        return Path(self.run("mount", container))
