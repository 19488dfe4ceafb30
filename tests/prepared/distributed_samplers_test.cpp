// SPDX-License-Identifier: Apache-2.0
#include "tests/testing.hpp"
//
#include "accelerate/prepared/distributed_samplers.hpp"

namespace {

namespace samplers = torch::data::samplers;

struct Ids : torch::data::Dataset<Ids> {
  torch::data::Example<> get(size_t i) override { return {torch::ones({1}), torch::tensor(static_cast<int64_t>(i))}; }
  [[nodiscard]] std::optional<size_t> size() const override { return 32; }
};
struct Chunks : torch::data::datasets::ChunkDataReader<torch::data::Example<>> {
  using BatchType = std::vector<torch::data::Example<>>;  // required by ChunkDataset, not by ChunkDataReader
  BatchType read_chunk(size_t) override { return {}; }
  size_t chunk_count() override { return 1; }
  void reset() override {}
};
struct OwnSampler : samplers::DistributedRandomSampler {
  using DistributedRandomSampler::DistributedRandomSampler;
};

template <typename Sampler>
using LoaderBy =
    torch::data::StatelessDataLoader<torch::data::datasets::MapDataset<Ids, torch::data::transforms::Stack<>>, Sampler>;
template <typename ChunkSampler>
using ChunkLoader = torch::data::StatefulDataLoader<torch::data::datasets::SharedBatchDataset<
    torch::data::datasets::ChunkDataset<Chunks, ChunkSampler, samplers::RandomSampler>>>;
struct OwnLoader : LoaderBy<samplers::DistributedSequentialSampler> {
  using StatelessDataLoader::StatelessDataLoader;
};

template <typename T>
constexpr bool is_shared = accelerate::prepared::SharedBySampler<T>;

}  // namespace

TEST_CASE("a torch::data loader with a distributed sampler is recognised, others are not") {
  CHECK(is_shared<LoaderBy<samplers::DistributedRandomSampler>>);
  CHECK(is_shared<LoaderBy<samplers::DistributedSequentialSampler>>);
  CHECK(is_shared<LoaderBy<OwnSampler>>);
  CHECK(is_shared<OwnLoader>);
  CHECK(is_shared<ChunkLoader<samplers::DistributedRandomSampler>>);
  CHECK_FALSE(is_shared<LoaderBy<samplers::RandomSampler>>);
  CHECK_FALSE(is_shared<LoaderBy<samplers::SequentialSampler>>);
  CHECK_FALSE(is_shared<ChunkLoader<samplers::RandomSampler>>);
  CHECK_FALSE(is_shared<std::vector<samplers::DistributedRandomSampler>>);
  CHECK_FALSE(is_shared<int>);
}
