// SPDX-License-Identifier: Apache-2.0
// c10d backend for the device. Ranks are threads of this process, each with one device.
#pragma once

#include <c10/core/Stream.h>

#include <atomic>
#include <functional>
#include <memory>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <vector>

#include "tests/stand_in/collective_meeting.hpp"

namespace stand_in {

/// Like NCCL, every operation is a job of a separate stream that waits for the caller's current stream; waiting for its
/// Work makes the caller's current stream wait, not the host. With set_on_callers_stream(), operations with asyncOp =
/// false are jobs of the caller's stream.
class Backend final : public c10d::Backend {
 public:
  using Tensors = std::vector<at::Tensor>;
  using WorkPtr = c10::intrusive_ptr<c10d::Work>;

  /// All ranks construct it with one store and the same name.
  Backend(c10d::Store& store, const std::string& name, int rank, int size, c10::Device device,
          std::chrono::milliseconds timeout);
  ~Backend() override;
  Backend(const Backend&) = delete;
  Backend& operator=(const Backend&) = delete;

  const std::string getBackendName() const override { return "standin"; }  // NOLINT: the interface's const

  /// Aborts pending operations; later ones fail.
  void give_up(const std::string& reason) { meeting_->abort(reason); }
  [[nodiscard]] std::optional<std::string> failure() { return meeting_->failure(); }
  /// Waits until its stream has completed all jobs.
  void drain();

  WorkPtr allreduce(Tensors& tensors, const c10d::AllreduceOptions& options) override;
  WorkPtr reduce(Tensors& tensors, const c10d::ReduceOptions& options) override;
  WorkPtr broadcast(Tensors& tensors, const c10d::BroadcastOptions& options) override;
  WorkPtr allgather(std::vector<Tensors>& outputs, Tensors& inputs, const c10d::AllgatherOptions& options) override;
  WorkPtr _allgather_base(at::Tensor& output, at::Tensor& input, const c10d::AllgatherOptions& options) override;
  WorkPtr _reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                               const c10d::ReduceScatterOptions& options) override;
  WorkPtr alltoall_base(at::Tensor& output, at::Tensor& input, std::vector<int64_t>& output_rows,
                        std::vector<int64_t>& input_rows, const c10d::AllToAllOptions& options) override;
  WorkPtr barrier(const c10d::BarrierOptions& options) override;
  WorkPtr send(Tensors& tensors, int to, int tag) override;
  WorkPtr recv(Tensors& tensors, int from, int tag) override;

 private:
  /// \note The tensors of the part must be on the device.
  template <typename Asked>
  WorkPtr start(Part part, const Asked& options);
  WorkPtr run(const std::string& what, const Tensors& reads, const Tensors& writes, c10d::OpType type,
              std::function<void()> job, bool asynchronous = true);

  std::shared_ptr<Meeting> meeting_;
  c10::Stream side_;
  std::chrono::milliseconds timeout_;
  std::shared_ptr<std::atomic<uint64_t>> collectives_ = std::make_shared<std::atomic<uint64_t>>(0);
};

}  // namespace stand_in
