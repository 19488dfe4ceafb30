// SPDX-License-Identifier: Apache-2.0
// The nccl backend: LibTorch's ProcessGroupNCCL. Tested only in a group of one rank, because one GPU was available.
#include <cstdlib>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp>

#include "accelerate/comm/core/backend_table.hpp"
#include "accelerate/comm/core/connection.hpp"

namespace accelerate::comm {
namespace {

using Nccl = c10d::ProcessGroupNCCL;

/// By default (3) a timeout ends the process without an exception. With 2 the communicators are aborted, so that no
/// kernel hangs, and the group's next operation throws. A value that the user has set is kept.
void keep_process_after_timeout() { ::setenv("TORCH_NCCL_ASYNC_ERROR_HANDLING", "2", 0); }

c10::intrusive_ptr<Nccl> make_nccl(const c10::intrusive_ptr<c10d::Store>& store, const std::string& name, int64_t rank,
                                   int64_t size, std::chrono::milliseconds timeout, at::Device device) {
  const auto options = Nccl::Options::create();
  options->timeout = timeout;
  options->group_name = name;
  auto nccl = c10::make_intrusive<Nccl>(c10::make_intrusive<c10d::PrefixStore>("nccl/" + name, store),
                                        static_cast<int>(rank), static_cast<int>(size), options);
  nccl->setBoundDeviceId(device);
  return nccl;
}

class NcclConnection : public Connection {
 public:
  NcclConnection(c10::intrusive_ptr<Nccl> nccl, c10::intrusive_ptr<c10d::Store> store,
                 std::chrono::milliseconds timeout, at::Device device)
      : Connection("nccl", c10d::ProcessGroup::BackendType::NCCL, nccl),
        nccl_(std::move(nccl)),
        store_(std::move(store)),
        timeout_(timeout),
        device_(device) {}

  /// A shutdown waits for pending collectives, an abort does not.
  ~NcclConnection() override {
    try {
      if (broken_) {
        nccl_->abort();
      } else {
        nccl_->shutdown();
      }
    } catch (const std::exception&) {  // destructors never throw
    }
  }

  std::shared_ptr<Connection> split(const Subgroup& part) override {
    return std::make_shared<NcclConnection>(
        make_nccl(store_, part.name, part.rank, static_cast<int64_t>(part.ranks.size()), timeout_, device_), store_,
        timeout_, device_);
  }

  /// GPU operations are asynchronous to the host, so a failure is detected at the next operation.
  void check() override {
    switch (nccl_->getError()) {
      case c10d::ErrorType::SUCCESS:
        return;
      case c10d::ErrorType::TIMEOUT:
        throw PeerLost("an earlier operation on the GPU reached its timeout");
      case c10d::ErrorType::COMM_ERROR:
        throw PeerLost("an earlier operation on the GPU failed, NCCL_DEBUG=WARN shows the cause");
      case c10d::ErrorType::REMOTE_ERROR:
        throw PeerLost("another rank's operation on the GPU failed");
    }
  }

  void abort_operations() noexcept override { broken_ = true; }

 private:
  c10::intrusive_ptr<Nccl> nccl_;
  c10::intrusive_ptr<c10d::Store> store_;
  std::chrono::milliseconds timeout_;
  at::Device device_;
  bool broken_ = false;
};

std::shared_ptr<Connection> connect_nccl(const ConnectionContext& context) {
  keep_process_after_timeout();
  const auto& [process, options] = std::tie(context.process, context.options);
  auto nccl =
      make_nccl(context.store, context.name, process.rank, process.world_size, options.timeout, *options.device);
  return std::make_shared<NcclConnection>(std::move(nccl), context.store, options.timeout, *options.device);
}

}  // namespace

const BackendRow& nccl_row() {
  static constexpr BackendRow row{
      .name = "nccl", .device = c10::DeviceType::CUDA, .connect = connect_nccl, .missing = "", .uses_store = true};
  return row;
}

}  // namespace accelerate::comm
