"""`python -m adar_deploy` is `adar-deploy`."""

from adar_deploy.cli import main

if __name__ == "__main__":
    main()
