// SPDX-License-Identifier: Apache-2.0
// Loaders that one rank reads for all (dispatch_batches) on meshes with tensor parallel ranks and pipeline stages.
#include "tests/tensor_parallel/support.hpp"
//
#include <algorithm>
#include <optional>
#include <string>
#include <vector>

#include "accelerate/accelerate.hpp"
#include "accelerate/data/stream_loader.hpp"

namespace {

using accelerate::Accelerator;
using accelerate::ParallelismConfig;
using accelerate::comm::run_threads;
using tensor_parallel_testing::Group;

const std::vector<ParallelismConfig> dispatch_meshes{{.tp_size = 2},
                                                     {.pp_size = 2},
                                                     {.dp_replicate_size = 2, .tp_size = 2},
                                                     {.dp_replicate_size = 2, .pp_size = 2},
                                                     {.tp_size = 2, .pp_size = 2},
                                                     {.dp_replicate_size = 2, .tp_size = 2, .pp_size = 2}};

/// Samples that only rank 0 can read: `opened` counts the passes over the source, and other ranks find other numbers.
auto samples_of_rank_0(const Group& world, int64_t count, int64_t& opened) {
  const int64_t first = world.rank() * 1000;
  return accelerate::data::make_stream(
      [=, &opened] {
        ++opened;
        return [next = first, end = first + count]() mutable -> std::optional<at::Tensor> {
          if (next == end) return std::nullopt;
          return torch::full({}, next++, at::kLong);
        };
      },
      count);
}

/// The samples of all ranks, by rank, in every step.
std::vector<std::vector<at::Tensor>> steps_of(Accelerator& accelerator, auto& loader, at::Tensor& gathered) {
  std::vector<std::vector<at::Tensor>> steps;
  std::vector<at::Tensor> once;
  for (auto& batch : loader) {
    steps.push_back(accelerator.group().all_gather_list(batch));
    once.push_back(accelerator.gather_for_metrics(batch));
  }
  gathered = torch::cat(once);
  return steps;
}

TEST_CASE("rank 0 reads a stream once for the whole mesh, and ranks of one model read the same batches") {
  for (const ParallelismConfig& sizes : dispatch_meshes) {
    CAPTURE(sizes.text());
    run_threads(sizes.total_size(), [&](const Group& world) {
      Accelerator accelerator(world, {.cpu = true, .parallelism_config = sizes});
      const int64_t data_ranks = sizes.data_parallel_size();
      int64_t opened = 0;
      auto loader =
          accelerator.prepare(accelerate::data::StreamLoader(samples_of_rank_0(world, 11, opened), {.batch_size = 2}));
      CHECK(loader.dispatches());
      CHECK(loader.total_batch_size() == 2 * data_ranks);
      CHECK(loader.size() == (6 + data_ranks - 1) / data_ranks);
      at::Tensor gathered;
      const auto steps = steps_of(accelerator, loader, gathered);
      CHECK(opened == (world.rank() == 0 ? 1 : 0));
      CHECK(static_cast<int64_t>(steps.size()) == loader.size());
      CHECK(gathered.equal(torch::arange(11)));
      const auto data_rank = [&](int64_t rank) { return sizes.coordinates(rank).dp_replicate; };
      for (const auto& ranks : steps) {
        for (int64_t a = 0; a < world.size(); ++a) {
          for (int64_t b = 0; b < a; ++b) {
            const bool same = ranks[static_cast<size_t>(a)].equal(ranks[static_cast<size_t>(b)]);
            CHECK(same == (data_rank(a) == data_rank(b)));
          }
        }
      }
    });
  }
}

TEST_CASE("a dispatched loader resumes on every rank of a mesh") {
  for (const ParallelismConfig& sizes : dispatch_meshes) {
    CAPTURE(sizes.text());
    run_threads(sizes.total_size(), [&](const Group& world) {
      Accelerator accelerator(world, {.cpu = true, .parallelism_config = sizes, .dispatch_batches = true});
      int64_t opened = 0;
      const auto make = [&] {
        return accelerator.prepare(
            accelerate::data::StreamLoader(samples_of_rank_0(world, 16, opened), {.batch_size = 2}));
      };
      auto loader = make();
      auto position = loader.begin();
      ++position;
      const auto state = loader.state();
      std::vector<at::Tensor> rest, resumed;
      while (++position != loader.end()) rest.push_back(*position);
      auto again = make();
      again.load_state(state);
      for (auto& batch : again) resumed.push_back(batch);
      REQUIRE(resumed.size() == rest.size());
      for (size_t i = 0; i < rest.size(); ++i) CHECK(resumed[i].equal(rest[i]));
    });
  }
}

TEST_CASE("if rank 0 fails to read, all ranks of a mesh end with its error") {
  run_threads(4, [](const Group& world) {
    Accelerator accelerator(
        world, {.cpu = true, .parallelism_config = {{.dp_replicate_size = 2, .tp_size = 2}}, .dispatch_batches = true});
    auto loader =
        accelerator.prepare(accelerate::data::StreamLoader(accelerate::data::make_stream([] {
                                                             return [next = 0]() mutable -> std::optional<at::Tensor> {
                                                               if (next == 6)
                                                                 throw std::runtime_error("the disk is gone");
                                                               return torch::full({}, next++);
                                                             };
                                                           }),
                                                           {.batch_size = 2}));
    int64_t batches = 0;
    std::string text;
    try {
      for (auto& batch : loader) batches += batch.size(0) / 2;
    } catch (const std::exception& error) {
      text = error.what();
    }
    CHECK(batches == 1);
    CHECK(text.find("the disk is gone") != std::string::npos);
  });
}

TEST_CASE("ranks of one model shuffle by the seed of rank 0") {
  for (const ParallelismConfig& sizes : dispatch_meshes) {
    CAPTURE(sizes.text());
    run_threads(sizes.total_size(), [&](const Group& world) {
      Accelerator accelerator(world, {.cpu = true, .parallelism_config = sizes});
      auto loader = accelerator.prepare(accelerate::data::from_tensors(
          torch::arange(24), torch::arange(24),
          {.batch_size = 3, .shuffle = true, .seed = static_cast<uint64_t>(world.rank())}));
      for (auto& [x, y] : loader) {
        const auto batches = accelerator.group().all_gather_list(x);
        for (int64_t rank = 0; rank < world.size(); ++rank) {
          const bool same = batches[static_cast<size_t>(rank)].equal(x);
          CHECK(same == (sizes.coordinates(rank).dp_replicate == accelerator.data_parallel_rank()));
        }
      }
    });
  }
}

}  // namespace
