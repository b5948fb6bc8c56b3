"""The entry point of the `moorage` program, which loads the rest of it."""

import signal

#: The exit status of a shell for a process that Ctrl-C has ended.
_INTERRUPTED = 130


def main() -> int:
    """Run the sub-command of the command line; return the exit status."""
    # Ctrl-C during the imports ends the process without a traceback. A process in the background may ignore Ctrl-C.
    handler = signal.getsignal(signal.SIGINT)
    if handler is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from moorage.cli import shell  # here, because it takes most of a command's time

    signal.signal(signal.SIGINT, handler)
    try:
        return shell.main()
    except KeyboardInterrupt:
        return _INTERRUPTED
