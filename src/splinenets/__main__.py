"""``python -m splinenets``, and so ``torchrun -m splinenets`` and ``accelerate launch -m splinenets``."""

from .cli import main

if __name__ == "__main__":
    main()
