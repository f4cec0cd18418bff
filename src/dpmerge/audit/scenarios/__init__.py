"""Games that ship: releases whose privacy is known, claimed or refuted, one file each (docs/soundness.md)."""
