// SPDX-License-Identifier: Apache-2.0
#include "accelerate/comm/core/backend_table.hpp"

#include <array>

#include "accelerate/comm/core/connection.hpp"
#include "accelerate/env/backends.hpp"
#include "tests/testing.hpp"

namespace {

using namespace accelerate::comm;
using accelerate::RankContext;

const RankContext kHere{.rank = 1, .world_size = 4, .host = "gpu-a"};

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

TEST_CASE("the default is mpi if MPI's variables are set, else gloo; a variable overrides it, code overrides both") {
  CHECK(choose({}) == "gloo");
  CHECK(choose({{"OMPI_COMM_WORLD_SIZE", "4"}, {"OMPI_COMM_WORLD_RANK", "1"}}) == "mpi");
  CHECK(choose({{"PMIX_NAMESPACE", "job"}}) == "mpi");
  CHECK(choose({{"PMIX_RANK", "0"}}) == "mpi");
  CHECK(choose({{"PMIX_RANK", "0"}}, {}, kNoMpi) == "gloo");
  CHECK(choose({{"ACCELERATE_BACKEND", "mpi"}}) == "mpi");
  CHECK(choose({{"ACCELERATE_BACKEND", "gloo"}, {"PMIX_RANK", "0"}}) == "gloo");
  CHECK(choose({{"ACCELERATE_BACKEND", ""}, {"PMIX_RANK", "0"}}) == "mpi");
  CHECK(choose({{"ACCELERATE_BACKEND", "gloo"}}, {.backend = "mpi"}) == "mpi");
  CHECK(choose({{"ACCELERATE_BACKEND", "auto"}, {"PMIX_RANK", "0"}}) == "mpi");
  CHECK(choose({{"ACCELERATE_BACKEND", "gloo"}, {"PMIX_RANK", "0"}}, {.backend = "auto"}) == "mpi");
  CHECK(choose({{"ACCELERATE_BACKEND", "mpi"}}, {.backend = "auto"}) == "gloo");
}

TEST_CASE("MPI's variables of an enclosing job do not count") {
  CHECK(choose({{"OMPI_COMM_WORLD_SIZE", "1"}, {"OMPI_COMM_WORLD_RANK", "0"}, {"PMIX_RANK", "0"}}) == "gloo");
  CHECK(choose({{"OMPI_COMM_WORLD_SIZE", "4"}, {"OMPI_COMM_WORLD_RANK", "0"}}) == "gloo");
  CHECK(choose({{"PMIX_RANK", "1"}, {"TORCHELASTIC_RUN_ID", "none"}}) == "gloo");
}

TEST_CASE("an unknown or missing backend is refused with the remedy") {
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

TEST_CASE("nccl selects the default backend for a GPU and is refused without a GPU") {
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
