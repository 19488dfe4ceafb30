// SPDX-License-Identifier: Apache-2.0
// Compiled once for all benches.
#pragma once

#include <accelerate/accelerate.hpp>
