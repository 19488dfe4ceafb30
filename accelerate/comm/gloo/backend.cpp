// SPDX-License-Identifier: Apache-2.0
// The gloo backend: LibTorch's ProcessGroupGloo. This is the only file that includes gloo's headers. It passes gloo's
// objects on but never calls them, because the headers do not come from the same source as the library.
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <atomic>
#include <memory>
#include <mutex>
#include <optional>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>
#include <utility>

#include "accelerate/base/error.hpp"
#include "accelerate/base/log.hpp"
#include "accelerate/comm/core/backend_table.hpp"
#include "accelerate/comm/core/bytes.hpp"
#include "accelerate/comm/core/collective_fingerprint.hpp"
#include "accelerate/comm/core/connection.hpp"
#include "accelerate/comm/core/deadline_call.hpp"
#include "accelerate/comm/core/elementwise.hpp"
#include "accelerate/comm/core/group_core.hpp"
#include "accelerate/comm/core/peer_error_text.hpp"
#include "accelerate/comm/core/wire_format.hpp"
#include "accelerate/comm/gloo/call_options.hpp"
#include "accelerate/comm/gloo/direct_exchange.hpp"
#include "accelerate/comm/gloo/local_exchange.hpp"
#include "accelerate/comm/gloo/local_mailbox.hpp"
#include "accelerate/comm/gloo/shared_memory.hpp"
#include "accelerate/comm/gloo/terminate_message.hpp"
#include "accelerate/comm/rendezvous/interfaces.hpp"
#include "accelerate/comm/rendezvous/sockets.hpp"
#include "accelerate/comm/rendezvous/store_peer_diagnosis.hpp"
#include "accelerate/env/parse.hpp"

namespace accelerate::comm {
namespace {

/// Ranks on one machine exchange tensors through shared memory. A few ranks on several machines execute small
/// operations and all parts of a tensor by a direct exchange, and compare the calls of other operations. LibTorch's
/// all-gather would receive into a temporary tensor of the size of the output, which one of gloo's threads allocates.
/// glibc has a heap for each thread, and returns the free end of a heap to the system only above
/// MALLOC_TRIM_THRESHOLD_, which the launcher sets to a large value.
class Gloo final : public c10d::ProcessGroupGloo {
 public:
  using ProcessGroupGloo::ProcessGroupGloo;

  /// Called once, before the first operation.
  /// \param memory     Shared by all ranks, or null.
  /// \param job_ranks  The ranks' numbers in the job.
  void begin(const std::shared_ptr<SharedMemory>& memory, const std::vector<int64_t>& job_ranks,
             std::chrono::milliseconds timeout) {
    if (memory) {
      local_ = std::make_unique<LocalExchange>(memory, getRank(), getSize(), timeout);
      if (getSize() <= LocalMailbox::kMaxRanks) {
        mailbox_ = std::make_unique<LocalMailbox>(memory, getRank(), job_ranks, timeout);
      }
    } else if (getSize() <= DirectExchange::kMaxRanks) {
      exchange_ = std::make_unique<DirectExchange>(*this, timeout);
    }
  }

  [[nodiscard]] bool shares_memory() const { return local_ != nullptr; }
  [[nodiscard]] bool reduces_rows() const { return local_ || exchange_; }
  void announce(const CollectiveFingerprint& fingerprint, Agreement agreement) {
    const std::lock_guard lock(mutex_);
    announced_ = {fingerprint, agreement};
  }
  void abandon() noexcept {
    if (local_) local_->abandon();
    if (mailbox_) mailbox_->abandon();
    if (exchange_) exchange_->abandon();
  }

  c10::intrusive_ptr<c10d::Work> allreduce(std::vector<at::Tensor>& tensors,
                                           const c10d::AllreduceOptions& options) override {
    const auto op = tensors.size() == 1 ? reduction(tensors[0], options.reduceOp) : std::nullopt;
    if (op && is_plain(tensors[0])) {
      if (local_) return local_->all_reduce(tensors[0], *op, call(options.asyncOp));
      const bool is_small = byte_count(tensors[0]) * (getSize() - 1) <= kMaxReceived;
      if (exchange_ && is_small) return exchange_->all_reduce(tensors[0], *op, call(options.asyncOp));
    }
    return compared(c10d::OpType::ALLREDUCE, Operation::all_reduce, known_reduce_op(options.reduceOp), /*root=*/-1,
                    tensors, [&] { return ProcessGroupGloo::allreduce(tensors, options); });
  }

  c10::intrusive_ptr<c10d::Work> broadcast(std::vector<at::Tensor>& tensors,
                                           const c10d::BroadcastOptions& options) override {
    if (local_ && tensors.size() == 1 && is_plain(tensors[0])) {
      return local_->broadcast(tensors[0], options.rootRank, call(options.asyncOp));
    }
    return compared(c10d::OpType::BROADCAST, Operation::broadcast, std::nullopt, options.rootRank, tensors,
                    [&] { return ProcessGroupGloo::broadcast(tensors, options); });
  }

  c10::intrusive_ptr<c10d::Work> reduce(std::vector<at::Tensor>& tensors, const c10d::ReduceOptions& options) override {
    const auto op = tensors.size() == 1 ? reduction(tensors[0], options.reduceOp) : std::nullopt;
    if (local_ && op && is_plain(tensors[0])) {
      return local_->reduce(tensors[0], *op, options.rootRank, call(options.asyncOp));
    }
    return compared(c10d::OpType::REDUCE, Operation::reduce, known_reduce_op(options.reduceOp), options.rootRank,
                    tensors, [&] { return ProcessGroupGloo::reduce(tensors, options); });
  }

  c10::intrusive_ptr<c10d::Work> _reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                                                      const c10d::ReduceScatterOptions& options) override {
    const auto op = reduction(input, options.reduceOp);
    if (op && is_divided(input, output)) {
      if (local_) return local_->reduce_scatter(output, input, *op, call(options.asyncOp));
      if (exchange_) return exchange_->reduce_scatter(output, input, *op, call(options.asyncOp));
    }
    return ProcessGroupGloo::_reduce_scatter_base(output, input, options);
  }

  c10::intrusive_ptr<c10d::Work> _allgather_base(at::Tensor& output, at::Tensor& input,
                                                 const c10d::AllgatherOptions& options) override {
    if (is_divided(output, input)) {
      if (local_) return local_->all_gather(output, input, call(options.asyncOp));
      if (exchange_) return exchange_->all_gather(output, input, call(options.asyncOp));
    }
    return ProcessGroupGloo::_allgather_base(output, input, options);
  }

  c10::intrusive_ptr<c10d::Work> barrier(const c10d::BarrierOptions& options) override {
    if (local_) return local_->barrier(call(options.asyncOp));
    return ProcessGroupGloo::barrier(options);
  }

  c10::intrusive_ptr<c10d::Work> send(std::vector<at::Tensor>& tensors, int to, int tag) override {
    return mailbox_ ? mailbox_->send(only(tensors), to, tag) : ProcessGroupGloo::send(tensors, to, tag);
  }

  c10::intrusive_ptr<c10d::Work> recv(std::vector<at::Tensor>& tensors, int from, int tag) override {
    return mailbox_ ? mailbox_->receive(only(tensors), from, tag) : ProcessGroupGloo::recv(tensors, from, tag);
  }

  c10::intrusive_ptr<c10d::Work> recvAnysource(std::vector<at::Tensor>& tensors, int tag) override {
    TORCH_CHECK(!mailbox_,
                "ranks that share memory cannot receive from any rank: name the sender, or set "
                "ACCELERATE_GLOO_SHARED_MEMORY=no");
    return ProcessGroupGloo::recvAnysource(tensors, tag);
  }

 private:
  /// Bytes that a rank receives in an all-reduce. Gloo's ring is faster for more.
  static constexpr int64_t kMaxReceived = int64_t{1} << 20;

  /// Begins an operation of LibTorch. Its tag is the count of operations, unless calls are compared.
  template <typename Begin>
  c10::intrusive_ptr<c10d::Work> compared(c10d::OpType type, Operation operation, std::optional<ReduceOp> op,
                                          int64_t root, const std::vector<at::Tensor>& tensors, const Begin& begin) {
    if (!exchange_ || tensors.size() != 1 || !is_plain(tensors[0])) return begin();
    return exchange_->compare(type, fingerprint_of(operation, tensors[0], op, root), tensors[0],
                              call(/*asynchronous=*/false), [&](uint32_t tag) {
                                const uint32_t count = std::exchange(collectiveCounter_, tag);
                                auto work = begin();
                                collectiveCounter_ = count;
                                return work;
                              });
  }
  /// The next operation, with the call that was announced for it.
  CallOptions call(bool asynchronous) {
    const std::lock_guard lock(mutex_);
    return {.asynchronous = asynchronous, .announced = std::exchange(announced_, std::nullopt)};
  }
  /// The tensor of a message.
  static const at::Tensor& only(const std::vector<at::Tensor>& tensors) {
    TORCH_CHECK(tensors.size() == 1, "a message has ", tensors.size(), " tensors, must be one");
    const at::Tensor& tensor = tensors[0];
    TORCH_CHECK(tensor.is_cpu() && tensor.layout() == at::kStrided && tensor.is_contiguous(),
                "the tensor of a message must be contiguous, dense and on the CPU");
    return tensor;
  }
  static bool is_plain(const at::Tensor& tensor) {
    return tensor.is_cpu() && tensor.layout() == at::kStrided && tensor.is_contiguous() && tensor.numel() > 0 &&
           !tensor.is_conj() && !tensor.is_neg();
  }
  [[nodiscard]] bool is_divided(const at::Tensor& whole, const at::Tensor& part) const {
    return is_plain(whole) && is_plain(part) && whole.numel() == part.numel() * getSize() &&
           whole.dtype() == part.dtype();
  }
  /// Returns nothing if the exchange does not support the reduction.
  static std::optional<ReduceOp> reduction(const at::Tensor& tensor, const c10d::ReduceOp& op) {
    return has_reduction(tensor.scalar_type()) ? known_reduce_op(op) : std::nullopt;
  }

  // Null unless local_ is set. Destroyed after it, because a peer may wait for a message before it joins an operation.
  std::unique_ptr<LocalMailbox> mailbox_;
  // At most one of them is set.
  std::unique_ptr<LocalExchange> local_;
  std::unique_ptr<DirectExchange> exchange_;
  std::mutex mutex_;  // protects the member below
  std::optional<AnnouncedOperation> announced_;
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

/// More than SharedMemory::address() has.
constexpr int64_t kAddressBytes = 256;

/// Reads ACCELERATE_GLOO_SHARED_MEMORY; the default is true.
bool wants_shared_memory(const ConnectionContext& context) {
  const auto found = context.variables.find("ACCELERATE_GLOO_SHARED_MEMORY");
  if (found == context.variables.end() || found->second.empty()) return true;
  const auto value = env::parse_bool(found->second);
  if (!value) {
    base::fail(ErrorKind::environment, context.place, "connect",
               "ACCELERATE_GLOO_SHARED_MEMORY is '{}', must be yes or no", found->second);
  }
  return *value;
}

/// Shares memory between the ranks if all of them run on one machine and want it. Collective. Waits until all ranks are
/// connected: a connected rank could close its pairs while other ranks still connect theirs, which then fail with
/// "Connection closed by peer".
/// \returns memory on all ranks, or null on all ranks.
std::unique_ptr<SharedMemory> share_memory(Gloo& gloo, bool is_wanted, std::chrono::milliseconds at_most) {
  const int64_t rank = gloo.getRank(), size = gloo.getSize();
  const bool has_size = size > 1 && size <= LocalExchange::kMaxRanks;
  std::unique_ptr<SharedMemory> memory = has_size && is_wanted && rank == 0 ? SharedMemory::create(size) : nullptr;
  if (has_size) {
    std::vector<at::Tensor> of_rank_0{at::zeros({kAddressBytes}, at::kByte)};  // a text that ends with a null
    const char* const address = at_byte(of_rank_0[0], 0);
    if (memory) std::ranges::copy(memory->address(), at_byte(of_rank_0[0], 0));
    c10d::BroadcastOptions from_rank_0;
    from_rank_0.timeout = at_most;
    gloo.broadcast(of_rank_0, from_rank_0)->wait();
    if (is_wanted && rank != 0) memory = SharedMemory::open(address, rank, size);
  }
  std::vector<at::Tensor> all_share{at::full({1}, memory ? 1 : 0, at::kInt)};
  c10d::AllreduceOptions least;
  least.reduceOp = c10d::ReduceOp::MIN;
  least.timeout = at_most;
  gloo.allreduce(all_share, least)->wait();
  if (memory) memory->unlink();
  return all_share[0].item<int>() == 1 ? std::move(memory) : nullptr;
}

c10::intrusive_ptr<Gloo> make_gloo(const c10::intrusive_ptr<c10d::Store>& store, const Subgroup& ranks,
                                   std::chrono::milliseconds timeout, const Devices& devices, bool shares_memory) {
  const auto options = c10d::ProcessGroupGloo::Options::create(timeout);
  options->devices = devices;
  const auto deadline = std::chrono::steady_clock::now() + timeout;
  const auto size = static_cast<int64_t>(ranks.job_ranks.size());
  // Gloo keeps the timeout while the store answers. If the store hangs, the call is abandoned one second later.
  const auto make = [=] {
    announce_arrival(*store, ranks.name, ranks.rank);
    auto gloo = c10::make_intrusive<Gloo>(c10::make_intrusive<c10d::PrefixStore>(ranks.name, store),
                                          static_cast<int>(ranks.rank), static_cast<int>(size), options);
    const auto left =
        std::chrono::duration_cast<std::chrono::milliseconds>(deadline - std::chrono::steady_clock::now());
    gloo->begin(share_memory(*gloo, shares_memory, std::max(left, std::chrono::milliseconds(1))), ranks.job_ranks,
                timeout);
    return gloo;
  };
  std::optional<c10::intrusive_ptr<Gloo>> gloo;
  try {
    gloo = run_with_deadline(deadline + std::chrono::seconds(1), make);
  } catch (const std::exception&) {
    if (std::chrono::steady_clock::now() < deadline - timeout / 10) throw;  // not a timeout
  }
  if (!gloo) throw DeadlineExceeded(missing_ranks_in_store(store, ranks.name, size));
  return *std::move(gloo);
}

class GlooConnection : public Connection {
 public:
  GlooConnection(c10::intrusive_ptr<Gloo> gloo, StoreConnectionInfo kept, Subgroup ranks, bool wants_shared_memory)
      : Connection("gloo", c10d::ProcessGroup::BackendType::GLOO, gloo),
        gloo_(std::move(gloo)),
        store_info_(std::move(kept)),
        ranks_(std::move(ranks)),
        wants_shared_memory_(wants_shared_memory) {}

  std::shared_ptr<Connection> split(const Subgroup& part) override {
    const auto options = gloo_->getOptions();
    try {
      // The part may be on one machine although this group is not.
      auto gloo = make_gloo(store_info_.store, part, options->timeout, options->devices, wants_shared_memory_);
      return std::make_shared<GlooConnection>(std::move(gloo), store_info_, part, wants_shared_memory_);
    } catch (DeadlineExceeded& late) {  // has ranks of the part
      for (auto& rank : late.missing) rank = part.ranks.at(static_cast<size_t>(rank));
      throw;
    }
  }

  /// The exchanges compare the fingerprints of their operations, but not every operation is theirs.
  bool announce(const CollectiveFingerprint& fingerprint, Agreement agreement) override {
    gloo_->announce(fingerprint, agreement);
    return false;
  }

  /// LibTorch's version is an all-reduce with a handle that never completes and has no deadline.
  [[nodiscard]] bool reduces_rows() const override { return gloo_->reduces_rows(); }

  PeerReport diagnose_peers(const CollectiveFingerprint& signature) override {
    return diagnose_peers_over_store(store_info_, ranks_.name, signature, ranks_.rank, ranks_.job_ranks);
  }

  void abort_operations() noexcept override {
    if (abandoned_.exchange(true)) return;
    // Leaks one reference, because the destructor would wait for operations that hang.
    c10::raw::intrusive_ptr::incref(gloo_.get());
    gloo_->abandon();
  }

 private:
  c10::intrusive_ptr<Gloo> gloo_;
  StoreConnectionInfo store_info_;
  Subgroup ranks_;
  bool wants_shared_memory_;
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
  const bool shares_memory = wants_shared_memory(context);
  const auto begun = Clock::now();
  try {
    const Subgroup ranks{.name = context.name, .job_ranks = all_ranks(process.world_size), .rank = process.rank};
    auto gloo = make_gloo(context.store, ranks, context.options.timeout, devices, shares_memory);
    base::log(base::LogLevel::debug, context.place, "connect: gloo exchanges tensors through {}",
              gloo->shares_memory() ? "shared memory" : "the network");
    return std::make_shared<GlooConnection>(std::move(gloo), kept_store(context), ranks, shares_memory);
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
