// SPDX-License-Identifier: Apache-2.0
#include "tests/comm/store_backend/store_backend.hpp"

#include <algorithm>
#include <cstring>
#include <map>
#include <thread>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include "accelerate/comm/core/bytes.hpp"
#include "accelerate/comm/core/completable_work.hpp"
#include "accelerate/comm/core/connection.hpp"
#include "accelerate/comm/core/elementwise.hpp"
#include "accelerate/comm/core/group_core.hpp"
#include "accelerate/comm/core/wire_format.hpp"
#include "accelerate/comm/core/worker_thread.hpp"

namespace store_backend {
namespace {

using namespace accelerate::comm;
using Tensors = std::vector<at::Tensor>;
using WorkPtr = c10::intrusive_ptr<c10d::Work>;
using Bytes = std::vector<uint8_t>;
using c10d::OpType;

Bytes bytes_of(const at::Tensor& tensor) {
  const auto* data = static_cast<const uint8_t*>(tensor.const_data_ptr());
  return {data, data + tensor.nbytes()};
}

void fill(const at::Tensor& tensor, const Bytes& bytes, size_t from = 0) {
  TORCH_CHECK(from + tensor.nbytes() <= bytes.size(), bytes.size(), " bytes were received, ", tensor.nbytes(),
              " are expected");
  if (tensor.nbytes() > 0) std::memcpy(tensor.mutable_data_ptr(), bytes.data() + from, tensor.nbytes());
}

/// A TCPStore accepts at most 8 MiB at once.
constexpr size_t kMostAtOnce = size_t{4} << 20;

std::string piece_of(const std::string& key, size_t number) { return fmt::format("{}/{}", key, number); }

/// Writes pieces; the last one is shorter than the others.
void put(c10d::Store& store, const std::string& key, const Bytes& bytes) {
  for (size_t number = 0, begin = 0; begin <= bytes.size(); ++number, begin += kMostAtOnce) {
    const auto from = bytes.begin() + static_cast<std::ptrdiff_t>(begin);
    const auto length = static_cast<std::ptrdiff_t>(std::min(kMostAtOnce, bytes.size() - begin));
    store.set(piece_of(key, number), Bytes(from, from + length));
  }
}

/// Polls, because the store's own wait would block its other users.
Bytes get(c10d::Store& store, const std::string& key, size_t from, const TaskContext& turn) {
  Bytes all;
  for (size_t number = 0, last = kMostAtOnce; last == kMostAtOnce; ++number) {
    while (!store.check({piece_of(key, number)})) {
      if (turn.deadline_exceeded()) throw DeadlineExceeded({static_cast<int64_t>(from)});
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    const Bytes piece = store.get(piece_of(key, number));
    all.insert(all.end(), piece.begin(), piece.end());
    last = piece.size();
  }
  return all;
}

class StoreBackend : public c10d::Backend {
 public:
  StoreBackend(c10::intrusive_ptr<c10d::Store> store, int64_t rank, int64_t size, std::chrono::milliseconds timeout)
      : Backend(static_cast<int>(rank), static_cast<int>(size)),
        store_(std::move(store)),
        operations_(timeout),
        letters_(timeout) {}
  ~StoreBackend() override {
    operations_.stop(std::chrono::seconds(60));
    letters_.stop(std::chrono::seconds(60));
  }
  const std::string getBackendName() const override { return "store"; }
  [[nodiscard]] const c10::intrusive_ptr<c10d::Store>& store() const { return store_; }

  WorkPtr allreduce(Tensors& tensors, const c10d::AllreduceOptions& options) override {
    return after_exchange(OpType::ALLREDUCE, tensors, bytes_of(tensors.at(0)),
                          [out = tensors.at(0), op = from_c10d(options.reduceOp, "store")](const auto& all) {
                            reduce_all(out, all, 0, op);
                          });
  }
  WorkPtr reduce(Tensors& tensors, const c10d::ReduceOptions& options) override {
    return after_exchange(OpType::REDUCE, tensors, bytes_of(tensors.at(0)),
                          [out = tensors.at(0), op = from_c10d(options.reduceOp, "store"),
                           mine = options.rootRank == getRank()](const auto& all) {
                            if (mine) reduce_all(out, all, 0, op);
                          });
  }
  WorkPtr _reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                               const c10d::ReduceScatterOptions& options) override {
    return after_exchange(OpType::_REDUCE_SCATTER_BASE, {output, input}, bytes_of(input),
                          [out = output, op = from_c10d(options.reduceOp, "store"), me = me()](const auto& all) {
                            reduce_all(out, all, me * out.nbytes(), op);
                          });
  }
  WorkPtr broadcast(Tensors& tensors, const c10d::BroadcastOptions& options) override {
    const auto root = static_cast<size_t>(options.rootRank);
    return after_exchange(OpType::BROADCAST, tensors, root == me() ? bytes_of(tensors.at(0)) : Bytes{},
                          [out = tensors.at(0), root](const auto& all) { fill(out, all[root]); });
  }
  WorkPtr _allgather_base(at::Tensor& output, at::Tensor& input, const c10d::AllgatherOptions&) override {
    return after_exchange(OpType::_ALLGATHER_BASE, {output, input}, bytes_of(input), [out = output](const auto& all) {
      Bytes joined;
      for (const auto& each : all) joined.insert(joined.end(), each.begin(), each.end());
      fill(out, joined);
    });
  }
  WorkPtr alltoall_base(at::Tensor& output, at::Tensor& input, std::vector<int64_t>& /*output_rows*/,
                        std::vector<int64_t>& input_rows, const c10d::AllToAllOptions&) override {
    // The data begins with the number of bytes for each rank.
    const auto size = static_cast<size_t>(getSize());
    std::vector<int64_t> counts(size, byte_count(input) / getSize());
    const int64_t row = input.size(0) == 0 ? 0 : byte_count(input) / input.size(0);
    for (size_t r = 0; r < input_rows.size(); ++r) counts[r] = input_rows[r] * row;
    Bytes mine(size * sizeof(int64_t));
    std::memcpy(mine.data(), counts.data(), mine.size());
    const Bytes data = bytes_of(input);
    mine.insert(mine.end(), data.begin(), data.end());
    return after_exchange(OpType::ALLTOALL_BASE, {output, input}, mine, [out = output, me = me()](const auto& all) {
      Bytes joined;
      for (const auto& each : all) {
        std::vector<int64_t> parts(all.size());
        std::memcpy(parts.data(), each.data(), parts.size() * sizeof(int64_t));
        auto begin = each.begin() + static_cast<std::ptrdiff_t>(parts.size() * sizeof(int64_t));
        for (size_t before = 0; before < me; ++before) begin += parts[before];
        joined.insert(joined.end(), begin, begin + parts[me]);
      }
      fill(out, joined);
    });
  }
  WorkPtr barrier(const c10d::BarrierOptions&) override {
    return after_exchange(OpType::BARRIER, {}, {}, [](const auto&) {});
  }

  WorkPtr send(Tensors& tensors, int to, int tag) override {
    auto work = c10::make_intrusive<CompletableWork>(OpType::SEND, tensors);
    put(*store_, letter(me(), static_cast<size_t>(to), tag), bytes_of(tensors.at(0)));
    work->end();
    return work;
  }
  WorkPtr recv(Tensors& tensors, int from, int tag) override {
    auto work = c10::make_intrusive<CompletableWork>(OpType::RECV, tensors);
    const auto key = letter(static_cast<size_t>(from), me(), tag);
    letters_.push([work, key, from, store = store_, out = tensors.at(0)](const TaskContext& turn) {
      work->end(error_of([&] { fill(out, get(*store, key, static_cast<size_t>(from), turn)); }));
    });
    return work;
  }

 private:
  [[nodiscard]] size_t me() const { return static_cast<size_t>(getRank()); }

  std::string letter(size_t from, size_t to, int tag) {
    const auto key = fmt::format("letter/{}/{}/{}", from, to, tag);
    return fmt::format("{}/{}", key, letters_sent_[key]++);
  }

  static void reduce_all(const at::Tensor& out, const std::vector<Bytes>& all, size_t from, ReduceOp op) {
    fill(out, all[0], from);
    for (size_t r = 1; r < all.size(); ++r) {
      reduce_into(out.mutable_data_ptr(), all[r].data() + from, out.numel(), out.scalar_type(), op);
    }
  }

  template <typename F>
  static std::exception_ptr error_of(const F& f) {
    try {
      f();
      return nullptr;
    } catch (...) {
      return std::current_exception();
    }
  }

  /// Exchanges every rank's bytes, then calls `use` with them, in order with the other operations.
  template <typename F>
  WorkPtr after_exchange(OpType type, Tensors tensors, Bytes mine, F use) {
    auto work = c10::make_intrusive<CompletableWork>(type, std::move(tensors));
    const auto key = [number = operations_begun_++](size_t rank) { return fmt::format("{}/{}", number, rank); };
    put(*store_, key(me()), mine);
    operations_.push([work, key, use, store = store_, size = static_cast<size_t>(getSize())](const TaskContext& turn) {
      work->end(error_of([&] {
        std::vector<Bytes> all;
        for (size_t r = 0; r < size; ++r) all.push_back(get(*store, key(r), r, turn));
        use(all);
      }));
    });
    return work;
  }

  c10::intrusive_ptr<c10d::Store> store_;
  int64_t operations_begun_ = 0;
  std::map<std::string, int64_t> letters_sent_;
  WorkerThread operations_;
  WorkerThread letters_;
};

class StoreConnection : public Connection {
 public:
  StoreConnection(const c10::intrusive_ptr<c10d::Store>& store, int64_t rank, int64_t size,
                  std::chrono::milliseconds timeout)
      : Connection("store", c10d::ProcessGroup::BackendType::CUSTOM,
                   c10::make_intrusive<StoreBackend>(store, rank, size, timeout)),
        store_(store),
        timeout_(timeout) {}

  std::shared_ptr<Connection> split(const Subgroup& part) override {
    return std::make_shared<StoreConnection>(c10::make_intrusive<c10d::PrefixStore>(part.name, store_), part.rank,
                                             static_cast<int64_t>(part.ranks.size()), timeout_);
  }

 private:
  c10::intrusive_ptr<c10d::Store> store_;
  std::chrono::milliseconds timeout_;
};

std::shared_ptr<Connection> connect(const ConnectionContext& context) {
  return std::make_shared<StoreConnection>(c10::make_intrusive<c10d::PrefixStore>(context.name, context.store),
                                           context.process.rank, context.process.world_size, context.options.timeout);
}

}  // namespace

const BackendRow& row() {
  static constexpr BackendRow row{.name = "store", .connect = connect, .missing = "", .uses_store = true};
  return row;
}

}  // namespace store_backend
