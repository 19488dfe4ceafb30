// SPDX-License-Identifier: Apache-2.0
// The mpi backend: a c10d::Backend that executes operations in order, on one worker thread or, if an operation can be
// abandoned at its deadline, on the waiting thread.
#include <algorithm>
#include <exception>
#include <mutex>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <utility>

#include "accelerate/comm/core/backend_table.hpp"
#include "accelerate/comm/core/bytes.hpp"
#include "accelerate/comm/core/connection.hpp"
#include "accelerate/comm/core/group_core.hpp"
#include "accelerate/comm/core/wire_format.hpp"
#include "accelerate/comm/mpi/all_reduce.hpp"
#include "accelerate/comm/mpi/channel.hpp"
#include "accelerate/comm/mpi/mailbox.hpp"
#include "accelerate/comm/mpi/mpi_peer_diagnosis.hpp"

namespace accelerate::comm {
namespace {

using Tensors = std::vector<at::Tensor>;
using WorkPtr = c10::intrusive_ptr<c10d::Work>;
using c10d::OpType;

/// State that jobs share with the backend, because the worker may be abandoned with a pending job.
struct MpiShared {
  MpiShared(std::shared_ptr<MpiRuntime> runtime, MPI_Comm communicator)
      : channel(std::move(runtime), communicator),
        by_messages(communicator, channel.handshake(), channel.runtime().is_on_other_host(communicator)) {}

  void all_reduce(const Tensors& tensors, ReduceOp op, const MpiCallContext& call_context) {
    for (const auto& tensor : tensors) {
      // throws for unsupported reductions
      const auto type_and_op = channel.runtime().reduction(tensor.scalar_type(), op);
      if (channel.has_few_ranks()) {
        by_messages.run(tensor, op, call_context.call, call_context.call_context);
      } else {
        channel.all_reduce(tensor, type_and_op, call_context);
      }
    }
  }

  void reduce_scatter(const at::Tensor& output, const at::Tensor& input, ReduceOp op,
                      const MpiCallContext& call_context) {
    if (!channel.has_few_ranks()) return channel.reduce_scatter(output, input, op, call_context);
    static_cast<void>(channel.runtime().reduction(input.scalar_type(), op));  // throws for unsupported reductions
    // The ring overwrites its parts. The copy is a member, because MPI may still write to it. The executing thread may
    // have autograd or inference mode enabled, so the result is copied to the user's tensor as memory.
    input_copy = input.detach().clone();
    by_messages.reduce_scatter(input_copy, op, call_context.call, call_context.call_context);
    const int64_t bytes = byte_count(output);
    std::copy_n(at_byte(input_copy, channel.rank() * bytes), bytes, at_byte(output, 0));
    input_copy.reset();
  }

  void all_gather(const at::Tensor& output, const at::Tensor& input, const MpiCallContext& call_context) {
    if (!channel.has_few_ranks() || channel.handshake()->carries(byte_count(input))) {
      return channel.all_gather(output, input, call_context);
    }
    const int64_t bytes = byte_count(input);
    char* const own = at_byte(output, channel.rank() * bytes);
    if (own != at_byte(input, 0)) std::copy_n(at_byte(input, 0), bytes, own);
    by_messages.all_gather(output, call_context.call, call_context.call_context);
  }

  MpiChannel channel;
  MpiAllReduce by_messages;
  at::Tensor input_copy{};
  /// Reason why no further operation is possible. Accessed only by the thread that executes an operation.
  std::exception_ptr failure{};
};

/// Maximum time in which an idle thread ends on a busy machine.
constexpr std::chrono::milliseconds kThreadExitTime{500};

class MpiBackend : public c10d::Backend {
 public:
  MpiBackend(std::shared_ptr<MpiRuntime> runtime, MPI_Comm communicator, std::vector<int64_t> job_ranks, int64_t rank,
             std::chrono::milliseconds timeout)
      : Backend(static_cast<int>(rank), static_cast<int>(job_ranks.size())),
        shared_(std::make_shared<MpiShared>(std::move(runtime), communicator)),
        mailbox_(std::make_shared<MpiMailbox>(channel(), job_ranks, timeout)),
        job_ranks_(std::move(job_ranks)),
        timeout_(timeout),
        worker_(std::make_shared<WorkerThread>(timeout)) {}

  /// Completes abandoned operations, because other ranks may wait for them. During stack unwinding it only waits until
  /// the thread is idle, and informs the ranks that wait for this one.
  ~MpiBackend() override {
    const bool unwinding = std::uncaught_exceptions() > 0;
    const auto patience = unwinding || aborted_ ? kThreadExitTime : timeout_;
    const bool operations_ended = worker_->stop(patience);
    // The exception may belong to another group. If this group is intact, the other ranks are informed, so that they do
    // not wait until their timeout.
    const bool leaves = unwinding && operations_ended && !shared_->failure && !MpiRuntime::finalized();
    if (leaves) announce_departure();
    const bool messages_ended = mailbox_->finish_abandoned(patience);
    if (leaves && messages_ended) mailbox_->announce_departure();
    if (!messages_ended || !operations_ended) shared_->channel.runtime().skip_finalize();
  }

  const std::string getBackendName() const override { return "mpi"; }

  void announce(const CollectiveFingerprint& signature, Agreement agreement) { announced_ = {signature, agreement}; }

  void abort_operations() noexcept {
    aborted_ = true;
    shared_->channel.runtime().skip_finalize();
    worker_->abandon();
  }

  PeerReport diagnose_peers(const CollectiveFingerprint& signature) {
    if (diagnosed_.exchange(true) || !shared_->channel.runtime().usable()) return {};
    leak_until_exit(shared_, {});
    return diagnose_by_messages(shared_->channel, signature, job_ranks_);
  }

  WorkPtr allreduce(Tensors& tensors, const c10d::AllreduceOptions& options) override {
    const ReduceOp op = from_c10d(options.reduceOp, "mpi");
    return submit(OpType::ALLREDUCE, tensors, call_of(Operation::all_reduce, tensors.at(0), op), by_waiter(options),
                  [op](auto& mpi, const Tensors& all, const MpiCallContext& call_context) {
                    mpi.all_reduce(all, op, call_context);
                  });
  }

  WorkPtr broadcast(Tensors& tensors, const c10d::BroadcastOptions& options) override {
    auto call = call_of(Operation::broadcast, tensors.at(0), std::nullopt, options.rootRank);
    const auto root = static_cast<int>(options.rootRank);
    return submit(OpType::BROADCAST, tensors, std::move(call), by_waiter(options),
                  [root](auto& mpi, const Tensors& all, const MpiCallContext& call_context) {
                    mpi.channel.broadcast(all, root, call_context);
                  });
  }

  WorkPtr _allgather_base(at::Tensor& output, at::Tensor& input, const c10d::AllgatherOptions& options) override {
    return submit(OpType::_ALLGATHER_BASE, {output, input}, call_of(Operation::all_gather, input), always(options),
                  [](auto& mpi, const Tensors& all, const MpiCallContext& call_context) {
                    mpi.all_gather(all[0], all[1], call_context);
                  });
  }

  WorkPtr allgather(std::vector<Tensors>& outputs, Tensors& inputs, const c10d::AllgatherOptions& options) override {
    return submit(OpType::ALLGATHER, outputs.at(0), call_of(Operation::all_gather, inputs.at(0)), always(options),
                  [input = inputs.at(0)](auto& mpi, const Tensors& all, const MpiCallContext& call_context) {
                    mpi.channel.all_gather_list(all, input, call_context);
                  });
  }

  WorkPtr alltoall_base(at::Tensor& output, at::Tensor& input, std::vector<int64_t>& output_rows,
                        std::vector<int64_t>& input_rows, const c10d::AllToAllOptions& options) override {
    return submit(
        OpType::ALLTOALL_BASE, {output, input}, call_of(Operation::all_to_all), always(options),
        [from = output_rows, to = input_rows](auto& mpi, const Tensors& all, const MpiCallContext& call_context) {
          mpi.channel.all_to_all(all[0], from, all[1], to, call_context);
        });
  }

  WorkPtr barrier(const c10d::BarrierOptions& options) override {
    return submit(
        OpType::BARRIER, {}, call_of(Operation::barrier), always(options),
        [](auto& mpi, const Tensors&, const MpiCallContext& call_context) { mpi.channel.barrier(call_context); });
  }

  WorkPtr reduce(Tensors& tensors, const c10d::ReduceOptions& options) override {
    const ReduceOp op = from_c10d(options.reduceOp, "mpi");
    const auto root = static_cast<int>(options.rootRank);
    return submit(OpType::REDUCE, tensors, call_of(Operation::reduce, tensors.at(0), op, options.rootRank), By::thread,
                  [op, root](auto& mpi, const Tensors& all, const MpiCallContext& call_context) {
                    mpi.channel.reduce(all.at(0), op, root, call_context);
                  });
  }

  WorkPtr _reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                               const c10d::ReduceScatterOptions& options) override {
    const ReduceOp op = from_c10d(options.reduceOp, "mpi");
    return submit(OpType::_REDUCE_SCATTER_BASE, {output, input}, call_of(Operation::reduce_scatter, input, op),
                  by_waiter(options), [op](auto& mpi, const Tensors& all, const MpiCallContext& call_context) {
                    mpi.reduce_scatter(all[0], all[1], op, call_context);
                  });
  }

  WorkPtr send(Tensors& tensors, int to, int tag) override { return mailbox_->send(tensors.at(0), to, tag); }
  WorkPtr recv(Tensors& tensors, int from, int tag) override { return mailbox_->receive(tensors.at(0), from, tag); }

  /// Runs in order with the operations.
  c10::intrusive_ptr<MpiBackend> split(const Subgroup& part) {
    const auto color = static_cast<int>(part.ranks.front());  // the lowest member identifies the part
    const auto child = std::make_shared<MPI_Comm>(MPI_COMM_NULL);
    submit(OpType::UNKNOWN, {}, call_of(Operation::split), By::thread,
           [=, key = static_cast<int>(part.rank)](auto& mpi, const Tensors&, const MpiCallContext& call_context) {
             *child = mpi.channel.split(color, key, call_context);
           })
        ->wait(timeout_);
    return c10::make_intrusive<MpiBackend>(shared_->channel.shared_runtime(), *child, part.job_ranks, part.rank,
                                           timeout_);
  }

 private:
  using By = WorkerThread::ExecutionPolicy;

  void announce_departure() noexcept {
    leak_until_exit(shared_, {});
    try {
      shared_->channel.handshake()->announce_departure();
    } catch (const PeerLost&) {  // no peer is left
    }
  }

  template <typename Options>
  By always(const Options& options) const {
    return options.asyncOp ? By::any_thread : By::waiting_caller;
  }
  template <typename Options>
  By by_waiter(const Options& options) const {
    return shared_->channel.has_few_ranks() ? always(options) : By::thread;
  }

  /// Returns the announced call. For a call through c10d's handle, returns what its arguments show.
  AnnouncedOperation call_of(Operation operation, const std::optional<at::Tensor>& tensor = std::nullopt,
                             std::optional<ReduceOp> op = std::nullopt, int64_t root = -1) {
    if (announced_) return *std::exchange(announced_, std::nullopt);
    AnnouncedOperation call{.agreement = tensor ? Agreement::whole_shape : Agreement::operation_only};
    if (tensor) call.fingerprint = fingerprint_of(operation, *tensor);
    call.fingerprint.operation = operation;
    call.fingerprint.sequence = ++unannounced_;
    call.fingerprint.root = root;
    if (op) call.fingerprint.reduce = static_cast<int64_t>(*op);
    return call;
  }

  std::shared_ptr<MpiChannel> channel() const { return {shared_, &shared_->channel}; }

  /// MPI may still use this memory after a failed operation. It stays reachable until the process ends, so that leak
  /// checkers do not report it.
  static void leak_until_exit(std::shared_ptr<MpiShared> shared, Tensors tensors) {
    static std::mutex mutex;
    static auto* const kept = new std::vector<std::pair<std::shared_ptr<MpiShared>, Tensors>>;
    const std::lock_guard lock(mutex);
    kept->emplace_back(std::move(shared), std::move(tensors));
  }

  template <typename F>
  WorkPtr submit(OpType type, Tensors tensors, AnnouncedOperation call, By by, F execute) {
    auto work = c10::make_intrusive<CallerRunsWork>(type, std::move(tensors), worker_, by != By::thread, timeout_);
    auto job = [work, shared = shared_, call = std::move(call),
                execute = std::move(execute)](TaskContext call_context) {
      work->end(error_of(*shared, call_context, [&] {
        execute(*shared, work->tensors(), MpiCallContext{call, call_context});
      }));
      if (call_context.should_run && shared->failure) leak_until_exit(shared, work->tensors());
    };
    work->set_number(worker_->push(std::move(job), by));
    return work;
  }

  /// Returns null on success.
  template <typename F>
  static std::exception_ptr error_of(MpiShared& shared, const TaskContext& call_context, const F& execute) {
    try {
      if (!call_context.should_run) throw PeerLost("an earlier operation was abandoned");
      if (shared.failure) std::rethrow_exception(shared.failure);
      execute();
      return nullptr;
    } catch (const FingerprintMismatch&) {  // reported on all ranks, with no message pending
      return std::current_exception();
    } catch (const std::invalid_argument&) {  // rejected before anything was sent
      return std::current_exception();
    } catch (...) {
      if (call_context.should_run) shared.failure = std::current_exception();
      return std::current_exception();
    }
  }

  std::shared_ptr<MpiShared> shared_;
  std::shared_ptr<MpiMailbox> mailbox_;
  std::vector<int64_t> job_ranks_;
  std::chrono::milliseconds timeout_;
  std::shared_ptr<WorkerThread> worker_;
  std::optional<AnnouncedOperation> announced_;
  int64_t unannounced_ = 0;
  std::atomic<bool> diagnosed_ = false;
  std::atomic<bool> aborted_ = false;
};

class MpiConnection : public Connection {
 public:
  explicit MpiConnection(c10::intrusive_ptr<MpiBackend> mpi)
      : Connection("mpi", c10d::ProcessGroup::BackendType::MPI, mpi), mpi_(std::move(mpi)) {}

  std::shared_ptr<Connection> split(const Subgroup& part) override {
    return std::make_shared<MpiConnection>(mpi_->split(part));
  }

  bool announce(const CollectiveFingerprint& signature, Agreement agreement) override {
    mpi_->announce(signature, agreement);
    return true;
  }

  PeerReport diagnose_peers(const CollectiveFingerprint& signature) override { return mpi_->diagnose_peers(signature); }

  void abort_operations() noexcept override { mpi_->abort_operations(); }

 private:
  c10::intrusive_ptr<MpiBackend> mpi_;
};

std::shared_ptr<Connection> connect_mpi(const ConnectionContext& context) {
  auto runtime = MpiRuntime::start(context.process, context.place, context.options.timeout);
  const MPI_Comm own = runtime->duplicate_world(context.process, context.place, context.options.timeout);
  return std::make_shared<MpiConnection>(c10::make_intrusive<MpiBackend>(
      std::move(runtime), own, all_ranks(context.process.world_size), context.process.rank, context.options.timeout));
}

}  // namespace

const BackendRow& mpi_row() {
  static constexpr BackendRow row{.name = "mpi", .connect = connect_mpi, .missing = "", .uses_store = false};
  return row;
}

}  // namespace accelerate::comm
