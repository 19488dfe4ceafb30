// SPDX-License-Identifier: Apache-2.0
// The block that shows how to write a test on the stand-in.
#include "tests/stand_in/ranks.hpp"

// block: tests/stand_in/README.md: stand_in: an accelerator without hardware
