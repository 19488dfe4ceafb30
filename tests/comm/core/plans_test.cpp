// SPDX-License-Identifier: Apache-2.0
// The parts of comm that decide without peers.
#include <array>

#include "accelerate/comm/core/backend_table.hpp"
#include "accelerate/comm/core/call_signature.hpp"
#include "accelerate/comm/core/connection.hpp"
#include "accelerate/comm/core/failure_report.hpp"
#include "accelerate/comm/core/reduction_plan.hpp"
#include "accelerate/comm/objects.hpp"
#include "accelerate/env/backends.hpp"
#include "tests/testing.hpp"

namespace {

using namespace accelerate::comm;
using accelerate::Place;

const Place kHere{.rank = 1, .world_size = 4, .host = "gpu-a"};

std::shared_ptr<Connection> no_link(const ConnectionContext&) { return nullptr; }

constexpr BackendRow kMpi{.name = "mpi", .connect = no_link, .missing = "", .uses_store = false};
constexpr BackendRow kNoMpi{.name = "mpi", .connect = nullptr, .missing = "install it", .uses_store = false};
constexpr BackendRow kGloo{.name = "gloo", .connect = no_link, .missing = "", .uses_store = true};
constexpr BackendRow kNccl{.name = "nccl", .device = at::kCUDA, .connect = no_link, .missing = "", .uses_store = true};

std::string choose(const accelerate::env::Variables& variables, const ConnectOptions& options = {},
                   const BackendRow& mpi = kMpi) {
  const std::array<const BackendRow*, 3> table{&mpi, &kGloo, &kNccl};
  return std::string(choose_backend(variables, options, table, kHere).name);
}

}  // namespace

TEST_CASE("the backend is mpi where MPI's wire-up shows, else gloo; a variable beats that, code beats both") {
  CHECK(choose({}) == "gloo");
  CHECK(choose({{"OMPI_COMM_WORLD_SIZE", "4"}, {"OMPI_COMM_WORLD_RANK", "1"}}) == "mpi");
  CHECK(choose({{"PMIX_NAMESPACE", "job"}}) == "mpi");
  CHECK(choose({{"PMIX_RANK", "0"}}) == "mpi");
  CHECK(choose({{"PMIX_RANK", "0"}}, {}, kNoMpi) == "gloo");
  CHECK(choose({{"ACCELERATE_BACKEND", "mpi"}}) == "mpi");
  CHECK(choose({{"ACCELERATE_BACKEND", "gloo"}, {"PMIX_RANK", "0"}}) == "gloo");
  CHECK(choose({{"ACCELERATE_BACKEND", ""}, {"PMIX_RANK", "0"}}) == "mpi");
  CHECK(choose({{"ACCELERATE_BACKEND", "gloo"}}, {.backend = "mpi"}) == "mpi");
}

TEST_CASE("MPI's wire-up of a job around this one does not count") {
  CHECK(choose({{"OMPI_COMM_WORLD_SIZE", "1"}, {"OMPI_COMM_WORLD_RANK", "0"}, {"PMIX_RANK", "0"}}) == "gloo");
  CHECK(choose({{"OMPI_COMM_WORLD_SIZE", "4"}, {"OMPI_COMM_WORLD_RANK", "0"}}) == "gloo");
  CHECK(choose({{"PMIX_RANK", "1"}, {"TORCHELASTIC_RUN_ID", "none"}}) == "gloo");
}

TEST_CASE("a backend that is unknown or not built is refused, with what to do") {
  CHECK_THROWS_WITH(choose({{"ACCELERATE_BACKEND", "ucc"}}),
                    "[rank 1 of 4, gpu-a] connect: backend (ACCELERATE_BACKEND) is 'ucc', must be mpi or gloo");
  CHECK_THROWS_WITH(choose({}, {.backend = "mpi"}, kNoMpi),
                    "[rank 1 of 4, gpu-a] connect: backend (ACCELERATE_BACKEND) is 'mpi', which this build lacks; "
                    "install it");
  constexpr BackendRow no_gloo{.name = "gloo", .connect = nullptr, .missing = "install that", .uses_store = true};
  constexpr BackendRow no_nccl{
      .name = "nccl", .device = at::kCUDA, .connect = nullptr, .missing = "install CUDA", .uses_store = true};
  const std::array<const BackendRow*, 3> table{&kMpi, &no_gloo, &no_nccl};
  CHECK_THROWS_WITH(choose_backend({}, {}, table, kHere),
                    "[rank 1 of 4, gpu-a] connect: the backend for CPU tensors is 'gloo', which this build lacks; "
                    "install that");
  CHECK_THROWS_WITH(device_backend(at::kXPU, table, kHere),
                    "[rank 1 of 4, gpu-a] connect: no backend carries xpu tensors between ranks");
  CHECK_THROWS_WITH(device_backend(at::kCUDA, table, kHere),
                    "[rank 1 of 4, gpu-a] connect: the backend for GPU tensors is 'nccl', which this build lacks; "
                    "install CUDA");
}

TEST_CASE("nccl is what a GPU gets anyway; without a GPU it is refused") {
  const at::Device gpu(at::kCUDA, 0);
  CHECK(choose({{"ACCELERATE_BACKEND", "nccl"}}, {.device = gpu}) == "gloo");
  CHECK(choose({{"PMIX_RANK", "0"}}, {.backend = "nccl", .device = gpu}) == "mpi");
  const std::string refusal =
      "[rank 1 of 4, gpu-a] connect: backend (ACCELERATE_BACKEND) is 'nccl', which needs a GPU, and this rank computes "
      "on the CPU; use mpi or gloo, or unset it";
  CHECK_THROWS_WITH(choose({{"ACCELERATE_BACKEND", "nccl"}}), refusal.c_str());
  CHECK_THROWS_WITH(choose({}, {.backend = "nccl"}), refusal.c_str());
  CHECK_THROWS_WITH(choose({{"ACCELERATE_BACKEND", "nccl"}}, {.device = at::Device(at::kCPU)}), refusal.c_str());
}

TEST_CASE("what libraries throw is told without their source places, conditions and backtraces") {
  CHECK(plain("[enforce fail at /pytorch/third_party/gloo/gloo/transport/tcp/device.cc:84] ifa != nullptr. Unable to "
              "find address for: eth7") == "Unable to find address for: eth7");
  CHECK(plain("[enforce fail at device.cc:84] ifa != nullptr. ") == "");
  CHECK(plain("Gloo connectFullMesh failed with [../third_party/gloo/gloo/transport/tcp/pair.cc:144] no error") ==
        "Gloo connectFullMesh failed with no error");
  CHECK(plain("connect [127.0.0.1]:4711: Connection refused") == "connect [127.0.0.1]:4711: Connection refused");
  CHECK(plain("failed to recv, got 0 bytes\nException raised from recvBytes at Utils.hpp:678\nframe #0: x") ==
        "failed to recv, got 0 bytes");
}

TEST_CASE("that the time was up is said where it was") {
  using namespace std::chrono_literals;
  CHECK(connect_failure("gloo", 4, 2s, 2100ms, "wait timeout") ==
        "gloo could not connect the 4 ranks within 2 s; a rank has not come or cannot be reached");
  CHECK(connect_failure("gloo", 4, 2s, 300ms, "Connection closed by peer") ==
        "gloo could not connect the 4 ranks, it failed after 0.3 s: Connection closed by peer");
}

TEST_CASE("every backend has a row, built or not") {
  const auto rows = backend_table();
  const auto names = accelerate::env::backends();
  REQUIRE(rows.size() == names.size());
  for (size_t i = 0; i < rows.size(); ++i) {
    CHECK((rows[i]->connect == nullptr) == !rows[i]->missing.empty());
    CHECK(rows[i]->name == names[i].name);
    CHECK(c10::DeviceTypeName(rows[i]->device, true) == names[i].device);
  }
}

TEST_CASE("a reduction of any dtype becomes one that every backend knows") {
  using Passage = ReductionPlan::Passage;
  const auto same = [](at::ScalarType dtype, ReduceOp op, bool divide) {
    return ReductionPlan{.passage = Passage::same, .dtype = dtype, .op = op, .divide = divide};
  };
  CHECK((plan_reduction(at::kFloat, ReduceOp::sum) == same(at::kFloat, ReduceOp::sum, false)));
  CHECK((plan_reduction(at::kBFloat16, ReduceOp::mean) == same(at::kBFloat16, ReduceOp::sum, true)));
  CHECK((plan_reduction(at::kLong, ReduceOp::max) == same(at::kLong, ReduceOp::max, false)));
  CHECK((plan_reduction(at::kBool, ReduceOp::sum) ==
         ReductionPlan{.passage = Passage::reinterpret, .dtype = at::kByte, .op = ReduceOp::max}));
  CHECK((plan_reduction(at::kBool, ReduceOp::product) ==
         ReductionPlan{.passage = Passage::reinterpret, .dtype = at::kByte, .op = ReduceOp::min}));
  CHECK((plan_reduction(at::kShort, ReduceOp::min) ==
         ReductionPlan{.passage = Passage::convert, .dtype = at::kInt, .op = ReduceOp::min}));
  CHECK((plan_reduction(at::kComplexDouble, ReduceOp::mean) ==
         ReductionPlan{.passage = Passage::reinterpret, .dtype = at::kDouble, .op = ReduceOp::sum, .divide = true}));
  CHECK((plan_reduction(at::kFloat8_e4m3fn, ReduceOp::sum) ==
         ReductionPlan{.passage = Passage::convert, .dtype = at::kFloat, .op = ReduceOp::sum}));
  for (const auto dtype : {at::kLong, at::kBool, at::kByte, at::kUInt64}) {
    CHECK_FALSE(plan_reduction(dtype, ReduceOp::mean));
  }
  CHECK_FALSE(plan_reduction(at::kComplexFloat, ReduceOp::max));
  CHECK_FALSE(plan_reduction(at::kUInt64, ReduceOp::min));
}

TEST_CASE("a signature survives its journey") {
  CallSignature signature = signature_of(Operation::reduce_scatter, at::empty({3, 0, 7}, at::kBFloat16));
  signature.sequence = 1'000'000'007;
  signature.root = 3;
  signature.reduce = 2;
  CHECK((decode(encode(signature)) == signature));
  const CallSignature barrier{.operation = Operation::barrier, .sequence = 9};
  CHECK((decode(encode(barrier)) == barrier));
  CHECK(describe(signature) == "[3, 0, 7] bfloat16");
  CHECK(describe(signature_of(Operation::send, at::ones({}, at::kBool))) == "[] bool");
  CHECK(describe(barrier) == "no tensor");
}

TEST_CASE("json objects are gathered and broadcast") {
  run_threads(3, [](const Group& group) {
    const nlohmann::json mine{{"rank", group.rank()}, {"names", {"a", "b"}}};
    const auto all = all_gather_object(group, mine);
    CHECK(all.size() == 3);
    for (int64_t r = 0; r < 3; ++r) CHECK(all[static_cast<size_t>(r)]["rank"] == r);
    CHECK(gather_object(group, mine, 1).size() == (group.rank() == 1 ? 3 : 0));
    CHECK(broadcast_object(group, mine, 2)["rank"] == 2);
  });
}
