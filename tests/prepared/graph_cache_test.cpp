// SPDX-License-Identifier: Apache-2.0
#include "accelerate/prepared/graph_cache.hpp"

#include "tests/testing.hpp"

using namespace accelerate::prepared;
using Decision = GraphCache::Decision;

namespace {

constexpr auto record = GraphCache::Action::record;
constexpr auto replay = GraphCache::Action::replay;
const Decision plain{};

}  // namespace

TEST_CASE("a device without graphs, and collectives on another backend, are reasons not to capture") {
  const accelerate::device::GraphRow of_cuda{.type = at::kCUDA, .make = nullptr, .backend = "nccl"};
  const at::Device gpu(at::kCUDA, 1);
  CHECK(graphs_unsupported_reason(at::kCPU, nullptr, "gloo", 2) == "the CPU has no graphs");
  CHECK(graphs_unsupported_reason(gpu, nullptr, "nccl+gloo", 2) == "cuda:1 has no graphs in this build");
  CHECK(graphs_unsupported_reason(gpu, &of_cuda, "ucc+gloo", 2) ==
        "collectives of backend ucc+gloo cannot be captured, only those of nccl");
  CHECK(graphs_unsupported_reason(gpu, &of_cuda, "gloo", 2) ==
        "collectives of backend gloo cannot be captured, only those of nccl");
  CHECK(graphs_unsupported_reason(gpu, &of_cuda, "nccl+gloo", 2).empty());
  CHECK(graphs_unsupported_reason(gpu, &of_cuda, "single", 1).empty());
}

TEST_CASE("a call is captured once its shapes have been seen warmup_steps times, and then replayed") {
  GraphCache shelf({.warmup_steps = 2});
  CHECK(shelf.next("a", 1) == plain);
  CHECK(shelf.next("b", 1) == plain);
  CHECK(shelf.next("a", 1) == plain);
  CHECK(shelf.graphs() == 0);
  CHECK(shelf.next("a", 1) == Decision{record, 0});
  CHECK(shelf.next("a", 1) == Decision{replay, 0});
  CHECK(shelf.next("b", 1) == plain);
  CHECK(shelf.next("b", 1) == Decision{record, 1});
  CHECK(shelf.next("a", 1) == Decision{replay, 0});
  CHECK(shelf.next("b", 1) == Decision{replay, 1});
  CHECK(shelf.graphs() == 2);
  CHECK(shelf.not_captured_reason().empty());
}

TEST_CASE("shapes beyond max_graphs run without capture, and the reason is reported") {
  GraphCache shelf({.warmup_steps = 1, .max_graphs = 1});
  shelf.next("a", 1);
  CHECK(shelf.next("a", 1) == Decision{record, 0});
  for (int i = 0; i < 3; ++i) CHECK(shelf.next("b", 1) == plain);
  CHECK(shelf.next("a", 1) == Decision{replay, 0});
  CHECK(shelf.not_captured_reason() ==
        "there are 1 graphs, as many as max_graphs; inputs of other shapes are not captured");
}

TEST_CASE("a changed step configuration clears the graphs and restarts the warm-up") {
  GraphCache shelf({.warmup_steps = 1});
  shelf.next("a", 1);
  shelf.next("a", 1);
  CHECK(shelf.next("a", 1) == Decision{replay, 0});
  CHECK(shelf.next("a", 2) == Decision{.cleared = true});
  CHECK(shelf.next("a", 2) == Decision{record, 0});
  CHECK(shelf.next("a", 2) == Decision{replay, 0});
}

TEST_CASE("a step that changes with every call is never captured") {
  GraphCache shelf({.warmup_steps = 1});
  for (uint64_t call = 1; call < 20; ++call) CHECK(shelf.next("a", call) == plain);
  CHECK(shelf.not_captured_reason() == "options, parameters or state of the step change from call to call");
  CHECK(shelf.next("a", 19) == Decision{record, 0});
}

TEST_CASE("captures stop if they are never replayed") {
  GraphCache shelf({.warmup_steps = 1, .max_graphs = 2});
  int recorded = 0;
  for (uint64_t call = 0; call < 100; ++call) recorded += shelf.next("a", 1 + call / 2).action == record ? 1 : 0;
  CHECK(recorded == 2);
  CHECK(shelf.not_captured_reason() ==
        "options, parameters or state of the step changed after each of 2 captures, before the first replay");
}

TEST_CASE("shapes that do not repeat are not stored forever") {
  GraphCache shelf({.warmup_steps = 1});
  for (int shape = 0; shape < 5000; ++shape) CHECK(shelf.next(std::to_string(shape), 1) == plain);
  CHECK(shelf.next("4999", 1) == plain);
  CHECK(shelf.next("3", 1).action == record);
}

TEST_CASE("invalid options of graphs are refused with their value") {
  const accelerate::RankContext here{.rank = 0, .world_size = 2, .host = "gpu-a"};
  CHECK_THROWS_WITH(check_graph_options({.warmup_steps = 0}, here),
                    "[rank 0 of 2, gpu-a] graphed_step: warmup_steps is 0, must be at least 1");
  CHECK_THROWS_WITH(check_graph_options({.max_graphs = -1}, here),
                    "[rank 0 of 2, gpu-a] graphed_step: max_graphs is -1, must be at least 1");
}
