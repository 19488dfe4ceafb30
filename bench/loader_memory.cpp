// SPDX-License-Identifier: Apache-2.0
// What data cost in memory on ranks of one machine: a file that all of them map, and a copy in each.
#include <accelerate/accelerate.hpp>
#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "bench/harness.hpp"
#include "bench/nets.hpp"

namespace data = accelerate::data;

namespace {

/// Resident bytes of this process; a page that n processes share counts as 1/n of it in each (the kernel's Pss).
double resident_bytes() {
  std::ifstream file("/proc/self/smaps_rollup");
  for (std::string word; file >> word;) {
    double kilobytes = 0;
    if (word == "Pss:" && file >> kilobytes) return kilobytes * 1024;
  }
  throw std::runtime_error("/proc/self/smaps_rollup has no Pss");
}

/// What all ranks together hold more once each has read its share of two shuffled epochs, which is nearly all.
double cost(accelerate::Accelerator& accelerator, const std::function<at::Tensor()>& open) {
  const auto all_ranks = [&] {
    accelerator.wait_for_everyone();
    const auto sum = accelerator.reduce(torch::tensor(resident_bytes(), torch::kDouble)).item<double>();
    accelerator.wait_for_everyone();
    return sum;
  };
  const double before = all_ranks();
  auto loader = accelerator.prepare(data::from_tensors(open(), {}, {.batch_size = 256, .shuffle = true}));
  int64_t sum = 0;
  for (int epoch = 0; epoch < 2; ++epoch) {
    for (auto& batch : loader) sum += batch.data[0][0].item<int64_t>();
  }
  if (sum == 0) throw std::logic_error("the data are all zero");
  return all_ranks() - before;
}

}  // namespace

int main() {
  accelerate::Accelerator accelerator({.cpu = true});
  const char* folder = std::getenv("ACCELERATE_BENCH_DATA");  // the driver's, made by peers/loader_data.py
  if (folder == nullptr) {
    fmt::print(stderr, "bench_loader_memory: is started by bench/run, which makes its data\n");
    return 2;
  }
  const auto mapped = [file = std::filesystem::path(folder) / "rows.npy"] { return data::map_npy(file); };
  const auto copied = [mapped] { return mapped().clone(); };
  return bench::serve(accelerator.process_index(), bench::about(accelerator),
                      {{"mapped", [&](int64_t) { return cost(accelerator, mapped); }},
                       {"copied", [&](int64_t) { return cost(accelerator, copied); }}});
}
