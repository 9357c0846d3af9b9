"""Run a fit: `python -m lab.fits NAME`."""

from lab.fits.driver import main

if __name__ == "__main__":
    main()
