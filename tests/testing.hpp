// SPDX-License-Identifier: Apache-2.0
// Must be the first include of every LibTorch test. c10 also defines CHECK and related macros; in the other order
// doctest compiles, but counts only some of the assertions.
#pragma once

#include <torch/torch.h>

#undef CHECK
#undef CHECK_EQ
#undef CHECK_NE
#undef CHECK_LT
#undef CHECK_LE
#undef CHECK_GT
#undef CHECK_GE

#include <doctest/doctest.h>
