"""`python -m adar_deploy` does the same as `adar-deploy`."""

from adar_deploy.cli import main

if __name__ == "__main__":
    main()
