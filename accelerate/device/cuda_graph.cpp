// SPDX-License-Identifier: Apache-2.0
#include "accelerate/device/cuda_graph.hpp"

#include <ATen/cuda/CUDAGraph.h>

namespace accelerate::device {
namespace {

class CudaGraph final : public Graph {
 public:
  // Restricts the capture to this thread, because NCCL's watchdog and loader threads may make calls that a global
  // capture forbids.
  void begin() override { graph_.capture_begin(/*pool=*/{0, 0}, cudaStreamCaptureModeThreadLocal); }
  void end() override { graph_.capture_end(); }
  void replay() override { graph_.replay(); }

 private:
  at::cuda::CUDAGraph graph_;
};

std::unique_ptr<Graph> make_cuda_graph() { return std::make_unique<CudaGraph>(); }

}  // namespace

const GraphRow* cuda_graphs() {
  static constexpr GraphRow row{.type = c10::DeviceType::CUDA, .make = make_cuda_graph, .backend = "nccl"};
  return &row;
}

}  // namespace accelerate::device
