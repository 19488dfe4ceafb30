// SPDX-License-Identifier: Apache-2.0
// What every LibTorch test includes, and nothing before it. c10 defines CHECK and friends as well; included the other
// way round doctest compiles, but counts only some of the assertions.
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
