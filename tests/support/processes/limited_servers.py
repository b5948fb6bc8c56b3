"""Private MariaDB servers on a small disk, or with a clock that can be set."""

import shutil
import subprocess
from pathlib import Path

import psutil

from harness.servers import MariaDBServer, ServersMissing
from harness.termination import ends_with_this_process
from support.processes import private_servers

#: Runs a command with its own mounts, as root of that namespace.
_NAMESPACE = ("unshare", "--mount", "--map-root-user", "--")


class MariaDBOnASmallDisk(MariaDBServer):
    """A MariaDB whose data are on a file system of a few megabytes, which can be filled and freed.

    The file system is in memory and mounted only for a shell and the server that it starts; it disappears with the
    shell, whose id is ``pid``, and so do the data.

    The shell starts the server again after a crash, as the service of Debian's package does: InnoDB ends the server
    ("Error (Out of disk space) in rollback") if the disk is too full for undoing a transaction.
    """

    _MEGABYTES = 256
    #: Copies the data to the new file system, and then runs the server until it ends without an error.
    _SCRIPT = (
        'mount -t tmpfs -o size="$1" none "$3" && cp -a --sparse=never "$2/." "$3/" && shift 3 || exit; '
        'until "$@"; do sleep 0.5; done'
    )

    def _prepare(self, directory: Path) -> None:
        if shutil.which("unshare") is None:
            raise ServersMissing("there is no unshare here: install the Debian package util-linux")
        super()._prepare(directory)
        small = directory / "small"
        small.mkdir()
        # A container may forbid this, even if the program is installed.
        tried = subprocess.run(
            [*_NAMESPACE, "mount", "-t", "tmpfs", "none", str(small)], capture_output=True, text=True, check=False
        )
        if tried.returncode:
            private_servers.absent(f"no file system may be mounted here: {tried.stderr.strip()}")

    def _run(self, *command: str, wait_for_line: str | None = None) -> psutil.Popen:
        if command[0] != "mariadbd":
            return super()._run(*command, wait_for_line=wait_for_line)
        data, small = f"{self.tempdir}/data", f"{self.tempdir}/small"
        server = [part.replace(f"--datadir={data}", f"--datadir={small}") for part in command]
        script = ("sh", "-c", self._SCRIPT, "sh")
        return super()._run(
            *_NAMESPACE, *script, f"{self._MEGABYTES}m", data, small, *ends_with_this_process(), *server,
            wait_for_line=wait_for_line,
        )  # fmt: skip

    @property
    def _disk(self) -> Path:
        """The path of the file system, as this process sees it through the shell."""
        return Path(f"/proc/{self.pid}/root{self.tempdir}/small")

    def fill_disk(self) -> None:
        """Fill the file system completely."""
        with (self._disk / "filler").open("wb", buffering=0) as file:
            block = b"\0" * 2**16
            try:
                while True:
                    file.write(block)
            except OSError:
                pass

    def free_disk(self) -> None:
        """Make the space free again."""
        (self._disk / "filler").unlink(missing_ok=True)


class MariaDBWithItsOwnClock(MariaDBServer):
    """A MariaDB whose wall clock can be set; its monotonic clock is the machine's."""

    def _prepare(self, directory: Path) -> None:
        super()._prepare(directory)
        libraries = sorted(Path("/usr/lib").glob("*/faketime/libfaketimeMT.so.1"))
        if not libraries:
            raise ServersMissing("there is no libfaketime here: install the Debian package libfaketime")
        self._library = libraries[0]
        self._offset = directory / "offset"
        self.set_clock(0.0)

    def _launch(self) -> psutil.Popen:
        self.env |= {
            "LD_PRELOAD": str(self._library),
            "FAKETIME_TIMESTAMP_FILE": str(self._offset),
            "FAKETIME_NO_CACHE": "1",
            "DONT_FAKE_MONOTONIC": "1",
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
        }
        return super()._launch()

    def set_clock(self, seconds: float) -> None:
        """Set the server's clock to ``seconds`` after the machine's."""
        new = self._offset.with_suffix(".new")
        new.write_text(f"{seconds:+.3f}\n")
        new.rename(self._offset)
