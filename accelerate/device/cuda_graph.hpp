// SPDX-License-Identifier: Apache-2.0
// Private: the table row for CUDA graphs; null in a build without CUDA.
#pragma once

#include "accelerate/device/graph.hpp"

namespace accelerate::device {

const GraphRow* cuda_graphs();

}  // namespace accelerate::device
