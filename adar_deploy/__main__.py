"""The program: `adar-deploy`, or `python -m adar_deploy`."""

from adar_deploy.signals import exit_at_once, install


def main() -> None:
    """Handle signals, then import and run the command line: the imports take a part of a second."""
    install(exit_at_once)
    from adar_deploy.cli import main as run

    run()


if __name__ == "__main__":
    main()
