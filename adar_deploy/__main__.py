"""The program: `adar-deploy`, or `python -m adar_deploy`."""

from adar_deploy.early_signals import install_early


def main() -> None:
    """Handle signals, then import and run the command line: the imports take a part of a second."""
    install_early()
    from adar_deploy.cli import main as run

    run()


if __name__ == "__main__":
    main()
