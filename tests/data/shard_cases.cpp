// SPDX-License-Identifier: Apache-2.0
// shard_cases FILE: compares our shards with recorded ones (tests/data/shard_cases.json was recorded from Accelerate).
// Prints each failure and "N passed, N failed". Exits with 1 after a failure and with 2 for an unreadable file.
//
//   {"batch_sampler_shard": [{"P", "n", "batch", "split_batches", "drop_last", "even_batches", "shards":
//   [rank][batch][index]}],
//    "iterable_dataset_shard": [{"P", "n", "batch", "split_batches", "drop_last", "shards": [rank][index]}],
//    "variable_batches": [{"P", "batches": [batch][index], "even_batches", "shards": [rank][batch][index]}]}
//
// Lists and options may be absent (defaults: split_batches and drop_last false, even_batches true). Lengths in the file
// are not compared, because some of Accelerate's are wrong. Ours must equal the actual number of batches.
#include <fmt/format.h>

#include <cstdio>
#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>
#include <numeric>

#include "accelerate/data/batch_sharding.hpp"
#include "accelerate/data/shard.hpp"

namespace {

using namespace accelerate::data;
using nlohmann::json;
using Indices = std::vector<int64_t>;
using Batches = std::vector<Indices>;

Indices order(int64_t n) {
  Indices samples(static_cast<size_t>(n));
  std::iota(samples.begin(), samples.end(), 0);
  return samples;
}

ShardOptions options_of(const json& one, int64_t rank) {
  return {.rank = rank,
          .world_size = one.at("P"),
          .batch_size = one.at("batch"),
          .split_batches = one.value("split_batches", false),
          .drop_last = one.value("drop_last", false),
          .even_batches = one.value("even_batches", true)};
}

/// The batches of one rank, and the number of batches (for a stream, of samples) that the loader reported in advance.
struct Shard {
  json read;
  int64_t reported_size = 0;
};

Shard of_batch_sampler(const json& one, int64_t rank) {
  const ShardOptions options = options_of(one, rank);
  return {shard(order(one.at("n")), options), ShardPlan(one.at("n"), options).size()};
}

/// A stream is always padded, sample by sample.
Shard of_stream(const json& one, int64_t rank) {
  ShardOptions options = options_of(one, rank);
  options.even_batches = true;
  Indices all;
  for (const auto& batch : shard(order(one.at("n")), options)) all.insert(all.end(), batch.begin(), batch.end());
  const ShardPlan plan(one.at("n"), options);
  return {all, plan.size() * plan.batch_size()};
}

Shard of_varying_batches(const json& one, int64_t rank) {
  const auto all = one.at("batches").get<Batches>();
  const auto batches = static_cast<int64_t>(all.size());
  const BatchShardOptions options{
      .rank = rank, .world_size = one.at("P"), .even_batches = one.value("even_batches", true)};
  Batches mine;
  for (const int64_t number : shard_batches(batches, options)) mine.push_back(all.at(static_cast<size_t>(number)));
  return {mine, shard_batch_count(batches, options)};
}

/// Returns "" if the case passes.
std::string failure_of(const json& one, const std::function<Shard(const json&, int64_t)>& ours) {
  const int64_t ranks = one.at("P");
  const json& shards = one.at("shards");
  if (static_cast<int64_t>(shards.size()) != ranks) return fmt::format("P is {}, with {} shards", ranks, shards.size());
  for (int64_t rank = 0; rank < ranks; ++rank) {
    const json& expected = shards.at(static_cast<size_t>(rank));
    const Shard mine = ours(one, rank);
    if (mine.read != expected) {
      return fmt::format("rank {} reads {}, expected {}", rank, mine.read.dump(), expected.dump());
    }
    if (mine.reported_size != static_cast<int64_t>(expected.size())) {
      return fmt::format("rank {} reports {} batches and has {}", rank, mine.reported_size, expected.size());
    }
  }
  return "";
}

int check(const json& file) {
  const std::vector<std::pair<std::string, std::function<Shard(const json&, int64_t)>>> lists{
      {"batch_sampler_shard", of_batch_sampler},
      {"iterable_dataset_shard", of_stream},
      {"variable_batches", of_varying_batches}};
  int64_t passed = 0;
  int64_t failed = 0;
  for (const auto& [name, ours] : lists) {
    for (const auto& one : file.value(name, json::array())) {
      const std::string failure = failure_of(one, ours);
      failure.empty() ? ++passed : ++failed;
      if (!failure.empty()) fmt::print("{}: {}\n  {}\n", name, failure, one.dump());
    }
  }
  fmt::print("{} passed, {} failed\n", passed, failed);
  return failed == 0 ? 0 : 1;
}

}  // namespace

int main(int count, char** arguments) {
  if (count != 2) {
    fmt::print(stderr, "usage: shard_cases FILE\n");
    return 2;
  }
  std::ifstream stream(arguments[1]);
  if (!stream) {
    fmt::print(stderr, "shard_cases: {} cannot be opened\n", arguments[1]);
    return 2;
  }
  try {
    return check(json::parse(stream));
  } catch (const std::exception& error) {
    fmt::print(stderr, "shard_cases: {}: {}\n", arguments[1], error.what());
    return 2;
  }
}
