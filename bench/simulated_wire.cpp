// SPDX-License-Identifier: Apache-2.0
#include "bench/simulated_wire.hpp"

#include <ATen/Parallel.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "accelerate/comm/core/backend_table.hpp"
#include "accelerate/comm/core/connection.hpp"

namespace bench {
namespace {

using Clock = std::chrono::steady_clock;
using Tensors = std::vector<at::Tensor>;
using WorkPtr = c10::intrusive_ptr<c10d::Work>;
using c10d::OpType;

/// The wire that all groups share.
class Wire {
 public:
  void set_bandwidth(double bytes_per_second) { bytes_per_second_ = bytes_per_second; }
  /// Returns when the wire has transferred the bytes, after those of earlier calls. Thread-safe.
  Clock::time_point transfer(double bytes) {
    const std::lock_guard lock(mutex_);
    const double seconds = bytes_per_second_ > 0 ? bytes / bytes_per_second_ : 0;
    const auto duration = std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds));
    return free_at_ = std::max(Clock::now(), free_at_) + duration;
  }

 private:
  std::mutex mutex_;
  double bytes_per_second_ = 0;
  Clock::time_point free_at_;
};

Wire& wire() {
  static Wire the_wire;
  return the_wire;
}

class Transfer : public c10d::Work {
 public:
  Transfer(OpType type, Tensors outputs, double bytes)
      : Work(-1, type), outputs_(std::move(outputs)), end_(wire().transfer(bytes)) {}
  bool isCompleted() override { return Clock::now() >= end_; }
  bool wait(std::chrono::milliseconds) override {
    std::this_thread::sleep_until(end_);
    return true;
  }
  Tensors result() override { return outputs_; }

 private:
  Tensors outputs_;
  Clock::time_point end_;
};

double bytes_of(const at::Tensor& tensor) { return static_cast<double>(tensor.nbytes()); }

/// A rank of a large ring sends almost the whole tensor, and twice that in an all-reduce.
class WireBackend : public c10d::Backend {
 public:
  using Backend::Backend;
  const std::string getBackendName() const override { return "wire"; }

  WorkPtr allreduce(Tensors& tensors, const c10d::AllreduceOptions&) override {
    return after(OpType::ALLREDUCE, tensors, 2 * bytes_of(tensors.at(0)));
  }
  WorkPtr broadcast(Tensors& tensors, const c10d::BroadcastOptions&) override {
    return after(OpType::BROADCAST, tensors, bytes_of(tensors.at(0)));
  }
  WorkPtr _allgather_base(at::Tensor& output, at::Tensor& input, const c10d::AllgatherOptions&) override {
    for (const at::Tensor& rows : output.chunk(getSize())) rows.copy_(input.view_as(rows));
    return after(OpType::_ALLGATHER_BASE, {output}, bytes_of(output));
  }
  WorkPtr _reduce_scatter_base(at::Tensor& output, at::Tensor& input, const c10d::ReduceScatterOptions&) override {
    output.copy_(input.chunk(getSize()).at(static_cast<size_t>(getRank())).view_as(output));
    return after(OpType::_REDUCE_SCATTER_BASE, {output}, bytes_of(input));
  }
  WorkPtr barrier(const c10d::BarrierOptions&) override { return after(OpType::BARRIER, {}, 0); }

 private:
  static WorkPtr after(OpType type, Tensors outputs, double bytes) {
    return c10::make_intrusive<Transfer>(type, std::move(outputs), bytes);
  }
};

class WireConnection : public accelerate::comm::Connection {
 public:
  WireConnection(int64_t rank, int64_t size)
      : Connection("wire", c10d::ProcessGroup::BackendType::CUSTOM,
                   c10::make_intrusive<WireBackend>(static_cast<int>(rank), static_cast<int>(size))) {}
  std::shared_ptr<Connection> split(const accelerate::comm::Subgroup& part) override {
    return std::make_shared<WireConnection>(part.rank, std::ssize(part.ranks));
  }
};

const accelerate::comm::BackendRow row{
    .name = "wire",
    .device = c10::DeviceType::CPU,
    .connect = [](const accelerate::comm::ConnectionContext& context) -> std::shared_ptr<accelerate::comm::Connection> {
      return std::make_shared<WireConnection>(context.process.rank, context.process.world_size);
    },
    .missing = "",
    .uses_store = false};

}  // namespace

void simulate_wire(double gigabytes_per_second) {
  wire().set_bandwidth(gigabytes_per_second * 1e9);
  accelerate::comm::add_backend(row);
  const std::pair<const char*, const char*> variables[] = {{"ACCELERATE_BACKEND", "wire"},
                                                           {"RANK", "0"},
                                                           {"WORLD_SIZE", "2"},
                                                           {"LOCAL_RANK", "0"},
                                                           {"LOCAL_WORLD_SIZE", "2"},
                                                           {"MASTER_ADDR", "127.0.0.1"},
                                                           {"MASTER_PORT", "1"}};
  for (const auto& [name, value] : variables) setenv(name, value, /*overwrite=*/1);
  at::set_num_threads(1);
}

}  // namespace bench
