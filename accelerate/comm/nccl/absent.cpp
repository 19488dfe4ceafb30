// SPDX-License-Identifier: Apache-2.0
// Replaces backend.cpp if LibTorch was built without NCCL.
#include "accelerate/comm/core/backend_table.hpp"

namespace accelerate::comm {

const BackendRow& nccl_row() {
  static constexpr BackendRow row{
      .name = "nccl",
      .device = c10::DeviceType::CUDA,
      .connect = nullptr,
      .missing = "build with a LibTorch that has CUDA, the PyPI package torch for example (ACCELERATE_WITH_NCCL=ON)",
      .uses_store = true};
  return row;
}

}  // namespace accelerate::comm
