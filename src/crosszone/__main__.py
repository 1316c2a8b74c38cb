"""`python -m crosszone`."""

from crosszone.cli import main

if __name__ == "__main__":
    main()
