// SPDX-License-Identifier: Apache-2.0
// A training step of an MLP with 25 MB of gradients, for hosts on a slow cable; bench/hosts starts it.
#include <accelerate/accelerate.hpp>

#include "bench/harness.hpp"
#include "bench/nets.hpp"

namespace {

constexpr int64_t kClasses = 250;
constexpr std::array<int64_t, 2> kBatches{32,
                                          512};  // the cable takes longer than the computing, and the other way round

/// "32-4MB": with the group of all ranks; "32-compute": with one of this rank alone, the same without communication.
void add_cases(std::vector<bench::Case>& cases, const accelerate::comm::Group& group, int64_t bucket_megabytes,
               const std::string& name) {
  auto accelerator = std::make_shared<accelerate::Accelerator>(
      group, accelerate::AcceleratorOptions{.cpu = true, .buckets = {.cap_bytes = bucket_megabytes << 20}});
  accelerator->set_seed(1);
  const bench::Mlp net(std::vector<int64_t>{1024, 1024, 1024, 1024, 1024, 1024, 1024, kClasses});
  auto [model, optimizer] = accelerator->prepare(net, std::make_shared<torch::optim::AdamW>(net->parameters(), 1e-3));
  for (const int64_t batch : kBatches) {
    const auto x = torch::randn({batch, 1024});
    const auto y = torch::randint(kClasses, {batch});
    const auto step = [=, model = model, optimizer = optimizer]() mutable {
      optimizer.zero_grad();
      accelerator->backward(torch::cross_entropy_loss(model(x), y));
      optimizer.step();
    };
    cases.push_back(bench::timed(fmt::format("{}-{}", batch, name), step, {}));
  }
}

}  // namespace

int main() {
  const accelerate::Accelerator accelerator({.cpu = true});
  const auto& all = accelerator.group();
  std::vector<bench::Case> cases;
  add_cases(cases, all.split(all.rank()), 25, "compute");
  add_cases(cases, all, 25, "25MB");
  add_cases(cases, all, 4, "4MB");
  return bench::serve(accelerator.process_index(), bench::about(accelerator), cases);
}
