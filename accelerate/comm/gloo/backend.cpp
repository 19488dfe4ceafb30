// SPDX-License-Identifier: Apache-2.0
// The gloo backend: LibTorch's ProcessGroupGloo. This is the only file that includes gloo's headers. It passes gloo's
// objects on but never calls them, because the headers do not come from the same source as the library.
#include <algorithm>
#include <atomic>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>

#include "accelerate/base/error.hpp"
#include "accelerate/base/log.hpp"
#include "accelerate/comm/core/backend_table.hpp"
#include "accelerate/comm/core/collective_fingerprint.hpp"
#include "accelerate/comm/core/connection.hpp"
#include "accelerate/comm/core/deadline_call.hpp"
#include "accelerate/comm/core/group_core.hpp"
#include "accelerate/comm/core/peer_error_text.hpp"
#include "accelerate/comm/gloo/joined_work.hpp"
#include "accelerate/comm/gloo/terminate_message.hpp"
#include "accelerate/comm/rendezvous/interfaces.hpp"
#include "accelerate/comm/rendezvous/sockets.hpp"
#include "accelerate/comm/rendezvous/store_peer_diagnosis.hpp"

namespace accelerate::comm {
namespace {

/// LibTorch's all-gather receives into a temporary tensor of the size of the output, which one of gloo's threads
/// allocates. glibc has a heap for each thread. It returns the free end of a heap to the system only above
/// MALLOC_TRIM_THRESHOLD_, which the launcher sets to a large value. In a group of at most kMaxRanks, large parts are
/// therefore received directly into the output, by one broadcast of each rank's part.
class Gloo final : public c10d::ProcessGroupGloo {
 public:
  using ProcessGroupGloo::ProcessGroupGloo;

  c10::intrusive_ptr<c10d::Work> _allgather_base(at::Tensor& output, at::Tensor& input,
                                                 const c10d::AllgatherOptions& options) override {
    constexpr size_t kMinBytes = size_t{64} << 10;  // one operation is faster for less
    constexpr int kMaxRanks = 4;  // each broadcast occupies one of gloo's two threads for log2(ranks) transfers
    const bool is_flat = output.is_cpu() && input.is_cpu() && output.is_contiguous() && input.is_contiguous() &&
                         output.numel() == input.numel() * getSize() && output.dtype() == input.dtype();
    if (!is_flat || input.nbytes() < kMinBytes || getSize() > kMaxRanks) {
      return ProcessGroupGloo::_allgather_base(output, input, options);
    }
    const at::Tensor parts = output.view({getSize(), input.numel()});
    if (const at::Tensor own = parts[getRank()]; own.const_data_ptr() != input.const_data_ptr()) {
      own.copy_(input.view({-1}));
    }
    JoinedWork::Parts broadcasts;
    for (int root = 0; root < getSize(); ++root) {
      std::vector<at::Tensor> part{parts[root]};
      broadcasts.push_back(broadcast(part, {.rootRank = root, .timeout = options.timeout}));
    }
    return c10::make_intrusive<JoinedWork>(getRank(), std::move(broadcasts), output);
  }
};

using Devices = std::vector<std::shared_ptr<::gloo::transport::Device>>;

Endpoint store_of(const env::ProcessEnv& process) {
  return {process.master_addr.value_or("127.0.0.1"), process.master_port.value_or(1)};
}

/// Returns the interfaces in GLOO_SOCKET_IFNAME; if unset, the interface that routes to rank 0.
Devices devices_for(const ConnectionContext& context) {
  Devices devices;
  if (const auto named = context.variables.find("GLOO_SOCKET_IFNAME"); named != context.variables.end()) {
    for (const auto& name : interfaces_named(named->second, interfaces(), context.place)) {
      devices.push_back(Gloo::createDeviceForInterface(name));
    }
    if (!devices.empty()) return devices;
  }
  const auto deadline = std::chrono::steady_clock::now() + context.options.timeout;
  devices.push_back(
      Gloo::createDeviceForHostname(local_address_towards(store_of(context.process), context.place, deadline)));
  return devices;
}

StoreConnectionInfo kept_store(const ConnectionContext& context) {
  return {.store = context.store,
          .address = text(store_of(context.process)),
          .store_owner = context.process.agent_store ? "torchrun's agent beside rank 0" : "rank 0"};
}

c10::intrusive_ptr<Gloo> make_gloo(const c10::intrusive_ptr<c10d::Store>& store, const std::string& name, int64_t rank,
                                   int64_t size, std::chrono::milliseconds timeout, const Devices& devices) {
  const auto options = c10d::ProcessGroupGloo::Options::create(timeout);
  options->devices = devices;
  const auto deadline = std::chrono::steady_clock::now() + timeout;
  // Gloo keeps the timeout while the store answers. If the store hangs, the call is abandoned one second later.
  const auto make = [=] {
    announce_arrival(*store, name, rank);
    auto gloo = c10::make_intrusive<Gloo>(c10::make_intrusive<c10d::PrefixStore>(name, store), static_cast<int>(rank),
                                          static_cast<int>(size), options);
    // A connected rank could close its pairs while other ranks still connect theirs, which then fail with "Connection
    // closed by peer". So every rank waits until all are connected.
    c10d::BarrierOptions all_connected;
    all_connected.timeout =
        std::max(std::chrono::duration_cast<std::chrono::milliseconds>(deadline - std::chrono::steady_clock::now()),
                 std::chrono::milliseconds(1));
    gloo->barrier(all_connected)->wait();
    return gloo;
  };
  std::optional<c10::intrusive_ptr<Gloo>> gloo;
  try {
    gloo = run_with_deadline(deadline + std::chrono::seconds(1), make);
  } catch (const std::exception&) {
    if (std::chrono::steady_clock::now() < deadline - timeout / 10) throw;  // not a timeout
  }
  if (!gloo) throw DeadlineExceeded(missing_ranks_in_store(store, name, size));
  return *std::move(gloo);
}

class GlooConnection : public Connection {
 public:
  GlooConnection(c10::intrusive_ptr<Gloo> gloo, StoreConnectionInfo kept, std::string prefix, int64_t rank,
                 std::vector<int64_t> job_ranks)
      : Connection("gloo", c10d::ProcessGroup::BackendType::GLOO, gloo),
        gloo_(std::move(gloo)),
        store_info_(std::move(kept)),
        prefix_(std::move(prefix)),
        rank_(rank),
        job_ranks_(std::move(job_ranks)) {}

  std::shared_ptr<Connection> split(const Subgroup& part) override {
    const auto options = gloo_->getOptions();
    const auto size = static_cast<int64_t>(part.ranks.size());
    try {
      return std::make_shared<GlooConnection>(
          make_gloo(store_info_.store, part.name, part.rank, size, options->timeout, options->devices), store_info_,
          part.name, part.rank, part.job_ranks);
    } catch (DeadlineExceeded& late) {  // has ranks of the part
      for (auto& rank : late.missing) rank = part.ranks.at(static_cast<size_t>(rank));
      throw;
    }
  }

  /// LibTorch's version is an all-reduce with a handle that never completes and has no deadline.
  [[nodiscard]] bool reduces_rows() const override { return false; }

  PeerReport diagnose_peers(const CollectiveFingerprint& signature) override {
    return diagnose_peers_over_store(store_info_, prefix_, signature, rank_, job_ranks_);
  }

  void abort_operations() noexcept override {
    // Leaks one reference, because the destructor would wait for operations that hang.
    if (!abandoned_.exchange(true)) c10::raw::intrusive_ptr::incref(gloo_.get());
  }

 private:
  c10::intrusive_ptr<Gloo> gloo_;
  StoreConnectionInfo store_info_;
  std::string prefix_;
  int64_t rank_;
  std::vector<int64_t> job_ranks_;
  std::atomic<bool> abandoned_ = false;  // two threads may fail at once
};

/// Reports gloo's error with the ranks that report no failure of their own, because a rank may die while others
/// connect.
[[noreturn]] void fail_to_connect(const ConnectionContext& context, const std::exception& error,
                                  Clock::time_point begun) {
  const auto& process = context.process;
  const auto waited = std::chrono::duration_cast<std::chrono::milliseconds>(Clock::now() - begun);
  base::log(base::LogLevel::debug, context.place, "connect: gloo failed: {}", error.what());
  std::string text = connect_failure("gloo", process.world_size, context.options.timeout, waited, reason_of(error));
  const PeerReport peers =
      diagnose_peers_over_store(kept_store(context), context.name, {.operation = Operation::barrier}, process.rank,
                                all_ranks(process.world_size));
  if (!peers.text.empty()) text += "; " + peers.text;
  throw Error(ErrorKind::peer, context.place, "connect", text, peers.missing_ranks);
}

std::shared_ptr<Connection> connect_gloo(const ConnectionContext& context) {
  install_terminate_message(context.place);
  const auto& process = context.process;
  const Devices devices = devices_for(context);
  const auto begun = Clock::now();
  try {
    auto gloo =
        make_gloo(context.store, context.name, process.rank, process.world_size, context.options.timeout, devices);
    return std::make_shared<GlooConnection>(std::move(gloo), kept_store(context), context.name, process.rank,
                                            all_ranks(process.world_size));
  } catch (const DeadlineExceeded& late) {
    if (!late.missing.empty()) throw;
    fail_to_connect(context, late, begun);
  } catch (const std::exception& error) {
    fail_to_connect(context, error, begun);
  }
}

}  // namespace

const BackendRow& gloo_row() {
  static constexpr BackendRow row{.name = "gloo", .connect = connect_gloo, .missing = "", .uses_store = true};
  return row;
}

}  // namespace accelerate::comm
