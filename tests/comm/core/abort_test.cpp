// SPDX-License-Identifier: Apache-2.0
// A backend continues an operation that its caller has abandoned: MPI cannot cancel one.
#include "accelerate/comm/core/completable_work.hpp"
#include "accelerate/comm/core/group_core.hpp"
#include "accelerate/comm/group.hpp"
#include "tests/testing.hpp"

namespace {

using namespace accelerate::comm;
using Tensors = std::vector<at::Tensor>;
using WorkPtr = c10::intrusive_ptr<c10d::Work>;

/// A backend with operations that never end and keep their tensors.
class StuckBackend : public c10d::Backend {
 public:
  StuckBackend() : Backend(0, 2) {}
  const std::string getBackendName() const override { return "stuck"; }
  WorkPtr _allgather_base(at::Tensor& output, at::Tensor& input, const c10d::AllgatherOptions&) override {
    return keep({output, input});
  }
  WorkPtr broadcast(Tensors& tensors, const c10d::BroadcastOptions&) override { return keep(tensors); }
  WorkPtr send(Tensors& tensors, int, int) override { return keep(tensors); }
  WorkPtr recv(Tensors& tensors, int, int) override { return keep(tensors); }

  Tensors kept;

 private:
  WorkPtr keep(const Tensors& tensors) {
    kept.insert(kept.end(), tensors.begin(), tensors.end());
    return c10::make_intrusive<CompletableWork>(c10d::OpType::UNKNOWN, tensors);
  }
};

class StuckConnection : public Connection {
 public:
  explicit StuckConnection(const c10::intrusive_ptr<StuckBackend>& stuck)
      : Connection("stuck", c10d::ProcessGroup::BackendType::CUSTOM, stuck) {}
  std::shared_ptr<Connection> split(const Subgroup&) override { return nullptr; }
};

/// Tensors that the backend still has after the operation was given up.
Tensors left_by(bool debug, const std::function<void(const Group&)>& operation) {
  const auto stuck = c10::make_intrusive<StuckBackend>();
  auto impl = std::make_shared<GroupCore>();
  impl->size = 2;
  impl->job_ranks = all_ranks(2);
  impl->timeout = std::chrono::milliseconds(20);
  impl->debug = debug;
  impl->cpu = std::make_shared<StuckConnection>(stuck);
  const Group group(with_process_group(std::move(impl)));
  CHECK_THROWS_AS(operation(group), accelerate::Error);
  return stuck->kept;
}

/// True if each tensor owns its memory, which can then be resized.
bool all_own_their_memory(const Tensors& tensors) {
  return std::all_of(tensors.begin(), tensors.end(), [](const at::Tensor& each) { return each.storage().resizable(); });
}

}  // namespace

namespace {

class FailsBehindItsCaller : public StuckConnection {
 public:
  using StuckConnection::StuckConnection;
  void check() override {
    if (failed) throw PeerLost("an earlier operation on the GPU reached its timeout");
  }
  bool failed = false;
};

}  // namespace

TEST_CASE("check() throws a failed asynchronous operation's error, which breaks the group") {
  const auto core = std::make_shared<GroupCore>();
  const auto connection = std::make_shared<FailsBehindItsCaller>(c10::make_intrusive<StuckBackend>());
  core->size = 2;
  core->job_ranks = all_ranks(2);
  core->cpu = connection;
  const Group group(with_process_group(core));
  CHECK_NOTHROW(group.check("optimizer.step"));
  connection->failed = true;
  const std::string reason = "optimizer.step: an earlier operation on the GPU reached its timeout";
  CHECK_THROWS_WITH_AS(group.check("optimizer.step"), reason.c_str(), accelerate::Error);
  CHECK_THROWS_WITH_AS(group.barrier(), ("barrier: this group is broken since " + reason).c_str(), accelerate::Error);
  CHECK_THROWS_WITH_AS(group.check("clip"), ("clip: this group is broken since " + reason).c_str(), accelerate::Error);
}

TEST_CASE("the backend owns the memory of an aborted operation") {
  const std::vector<Tensors> all{
      left_by(true, [](const Group& group) { group.barrier(); }),
      left_by(true, [](const Group& group) { group.send(at::ones({2}), 1); }),
      left_by(true, [](const Group& group) { group.recv(at::ones({2}), 1); }),
      left_by(false, [](const Group& group) { static_cast<void>(group.broadcast_bytes("four", 0)); }),
      left_by(false, [](const Group& group) { static_cast<void>(group.all_gather(at::ones({2}))); })};
  for (const auto& tensors : all) {
    CHECK_FALSE(tensors.empty());
    CHECK(all_own_their_memory(tensors));
  }
}
