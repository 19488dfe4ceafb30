// SPDX-License-Identifier: Apache-2.0
// Offloaded models that prepare() takes on several ranks.
#include "tests/testing.hpp"
//
#include <mutex>

#include "accelerate/accelerate.hpp"
#include "tests/offload/models.hpp"
#include "tests/refusal.hpp"
#include "tests/temporary_folder.hpp"

using accelerate::Accelerator;
using accelerate::disk_offload;
using accelerate::comm::Group;
using accelerate::comm::run_threads;
using offload_testing::DeepNet;
using offload_testing::output_of;
using testing::refusal;
using testing::TemporaryFolder;

namespace {

/// Ranks as threads share the global generator, so models are built one after another.
DeepNet net_of_rank(uint64_t seed) {
  static std::mutex one_at_a_time;
  const std::lock_guard lock(one_at_a_time);
  return offload_testing::deep_net(seed);
}

/// A folder with the weights of deep_net(), which all ranks read.
struct Weights {
  Weights() { disk_offload(*net_of_rank(1), folder.path); }
  TemporaryFolder folder;
  at::Tensor expected = [] {
    DeepNet net = net_of_rank(1);
    return output_of(net);
  }();
};

}  // namespace

TEST_CASE("an offloaded model is prepared on several ranks, frozen or not") {
  const Weights weights;
  for (const bool is_frozen : {false, true}) {
    CAPTURE(is_frozen);
    run_threads(2, [&](const Group& group) {
      Accelerator accelerator(group.duplicate(), {.cpu = true});
      DeepNet net = net_of_rank(2);
      for (at::Tensor& parameter : net->parameters()) parameter.requires_grad_(!is_frozen);
      disk_offload(*net, weights.folder.path);
      auto model = accelerator.prepare(net);
      {
        const torch::NoGradGuard no_grad;
        CHECK(at::equal(model(offload_testing::input()), weights.expected));
      }
      accelerator.save_model(model, weights.folder / "saved");
      DeepNet loaded = net_of_rank(3);
      disk_offload(*loaded, weights.folder / "saved");
      CHECK(at::equal(output_of(loaded), weights.expected));
      accelerator.wait_for_everyone();
    });
  }
}

TEST_CASE("a head is trained on several ranks after layers that are offloaded and frozen") {
  const TemporaryFolder folder;
  disk_offload(*net_of_rank(1)->blocks, folder.path);
  const auto train = [&](bool offloads, accelerate::ShardingStrategy sharding) {
    at::Tensor head;
    run_threads(2, [&](const Group& group) {
      Accelerator accelerator(group.duplicate(), {.cpu = true, .sharding = sharding});
      DeepNet net = net_of_rank(1);
      for (at::Tensor& parameter : net->blocks->parameters()) parameter.requires_grad_(false);
      if (offloads) disk_offload(*net->blocks, folder.path);
      torch::optim::SGD sgd(net->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
      auto [model, optimizer] = accelerator.prepare(net, sgd);
      for (int i = 0; i < 3; ++i) {
        optimizer.zero_grad();
        accelerator.backward(
            model(offload_testing::input() * (1.0 + static_cast<double>(group.rank()))).square().sum());
        optimizer.step();
      }
      const auto state = accelerator.get_state_dict(model);
      if (group.rank() == 0) head = state["head.weight"].clone();  // sharded models have it on rank 0 only
    });
    return head;
  };
  using enum accelerate::ShardingStrategy;
  for (const auto sharding : {no_shard, shard_optim_op, full_shard}) {
    CAPTURE(sharding);
    CHECK(at::equal(train(true, sharding), train(false, sharding)));
  }
}

TEST_CASE("a model that only some ranks offload is refused on all ranks") {
  const Weights weights;
  run_threads(2, [&](const Group& group) {
    Accelerator accelerator(group.duplicate(), {.cpu = true});
    DeepNet net = net_of_rank(1);
    if (group.rank() == 1) disk_offload(*net, weights.folder.path);
    const std::string text = refusal([&] { (void)accelerator.prepare(net); });
    CHECK_MESSAGE(text.find("parameter 0 of the model is first.weight [512, 8] Float on rank 0, first.weight [512, 8] "
                            "Float, offloaded on rank 1; build the same model on every rank") != std::string::npos,
                  text);
  });
}
