// SPDX-License-Identifier: Apache-2.0
// Where things are after prepare().
#include <c10/core/impl/VirtualGuardImpl.h>

#include <map>

#include "tests/stand_in/ranks.hpp"

using accelerate::Accelerator;
using stand_in::device;
using stand_in::made_alike;
using stand_in::on_devices;
using stand_in::SmallNet;

namespace {

/// A batch of the user's own.
struct Sample {
  at::Tensor image;
  std::map<std::string, std::vector<at::Tensor>> more;
  int64_t number = 0;
};
auto tree_members(Sample& sample) { return std::tie(sample.image, sample.more, sample.number); }

std::string refusal(const std::function<void()>& call) {
  try {
    call();
  } catch (const c10::Error& error) {
    return error.what_without_backtrace();
  } catch (const std::exception& error) {
    return error.what();
  }
  return "no error";
}

}  // namespace

TEST_CASE("a process alone takes the accelerator that is there, a rank its own device of it") {
  CHECK(Accelerator().device() == device(0));
  CHECK(Accelerator({.cpu = true}).device() == at::kCPU);
  CHECK(Accelerator({.device = "standin:2"}).device() == device(2));
  on_devices(3, [](Accelerator& accelerator) {
    CHECK(accelerator.device() == device(accelerator.process_index()));
    CHECK(accelerator.group().device() == accelerator.device());
    CHECK(accelerator.group().backend() == "standin+threads");
    CHECK((accelerator.distributed_type() == accelerate::DistributedType::multi_gpu));
  });
}

TEST_CASE("a device by number that is not there, and more ranks than devices, are refused with both counts") {
  CHECK(refusal([] { Accelerator({.device = "standin:9"}); })
            .ends_with("device: standin:9 is asked for (device in the code, ACCELERATE_TORCH_DEVICE or torch_device in "
                       "the config file), 4 standin devices are visible; ask for at most standin:3 or cpu"));
  CHECK(refusal([] { Accelerator({.device = "cuda"}); })
            .ends_with("device: cuda is asked for (device in the code, ACCELERATE_TORCH_DEVICE or torch_device in the "
                       "config file), 4 standin devices are visible; ask for standin or cpu"));
  CHECK(refusal([] { on_devices(5, [](Accelerator&) {}); })
            .ends_with("device: 5 ranks on this machine, 4 standin devices visible; start at most 4, run on the CPU "
                       "(ACCELERATE_USE_CPU=1), or set ACCELERATE_ALLOW_SHARED_GPUS=1, which is also right where every "
                       "rank sees only its own GPU"));
}

TEST_CASE("the current device of a rank's thread is its own from the start") {
  on_devices(3, [](Accelerator& accelerator) {
    CHECK(c10::impl::VirtualGuardImpl(stand_in::kType).getDevice() == accelerator.device());
    CHECK(torch::ones({1}, at::TensorOptions(c10::Device(stand_in::kType))).device() == accelerator.device());
  });
}

TEST_CASE("prepare() moves parameters and buffers, and batches of any type from both kinds of loaders") {
  on_devices(2, [](Accelerator& accelerator) {
    auto net = made_alike([] { return SmallNet(); });
    torch::optim::SGD sgd(net->parameters(), 0.1);
    auto own = stand_in::small_loader(8, 2);
    std::vector<Sample> foreign;
    for (int64_t i = 0; i < 4; ++i) foreign.push_back({torch::ones({2, 3}), {{"a", {torch::zeros({2})}}}, i});
    auto [model, optimizer, loader, samples] = accelerator.prepare(net, sgd, own, foreign);
    for (const auto& tensor : stand_in::state_of(model)) CHECK(tensor.device() == accelerator.device());
    for (const auto& tensor : optimizer.param_groups()[0].params()) CHECK(tensor.device() == accelerator.device());
    for (auto& [images, labels] : loader) {
      CHECK(images.device() == accelerator.device());
      CHECK(labels.device() == accelerator.device());
    }
    for (auto& sample : samples) {
      CHECK(sample.image.device() == accelerator.device());
      CHECK(sample.more.at("a")[0].device() == accelerator.device());
    }
  });
}

TEST_CASE("device_placement off leaves everything where it is") {
  accelerate::AcceleratorOptions options;
  options.device_placement = false;
  on_devices(
      1,
      [](Accelerator& accelerator) {
        auto net = made_alike([] { return SmallNet(); });
        auto data = stand_in::small_loader(4, 2);
        auto [model, loader] = accelerator.prepare(net, data);
        for (const auto& tensor : stand_in::state_of(model)) CHECK(tensor.is_cpu());
        for (auto& batch : loader) CHECK(batch.data.is_cpu());
      },
      options);
}

TEST_CASE("an optimizer that stepped on the CPU goes on from there on the device") {
  const auto train = [](bool move) {
    auto net = made_alike([] { return SmallNet(); });
    torch::optim::AdamW adamw(net->parameters(), 1e-2);
    const auto [images, labels] = stand_in::small_data(4);
    const auto step = [&, &x = images, &y = labels](Accelerator& accelerator) {
      auto [model, optimizer] = accelerator.prepare(net, adamw);
      optimizer.zero_grad();
      accelerator.backward(torch::nll_loss(model(x.to(accelerator.device())), y.to(accelerator.device())));
      optimizer.step();
    };
    Accelerator on_cpu({.cpu = true});
    step(on_cpu);
    if (move) {
      Accelerator on_device;
      step(on_device);
    } else {
      step(on_cpu);
    }
    return stand_in::to_cpu(net->parameters());
  };
  const auto moved = train(true);
  const auto stayed = train(false);
  for (size_t i = 0; i < stayed.size(); ++i) CHECK(at::equal(moved[i], stayed[i]));
}

TEST_CASE("a CPU tensor handed in by mistake is an error that names both devices") {
  on_devices(1, [](Accelerator& accelerator) {
    auto net = made_alike([] { return SmallNet(); });
    auto model = accelerator.prepare(net);
    const auto [images, labels] = stand_in::small_data(2);
    const auto of_the_model = refusal([&, &x = images] { model(x); });
    CHECK(of_the_model.find("at least two devices, ") != std::string::npos);
    CHECK(of_the_model.find("standin:0") != std::string::npos);
    CHECK(of_the_model.find("cpu") != std::string::npos);
    const auto outputs = model(images.to(accelerator.device()));
    CHECK(refusal([&, &y = labels] { torch::nll_loss(outputs, y); }).find("standin:0 and cpu") != std::string::npos);
  });
}

TEST_CASE("seeds reach the device, and rank 0's generator states go to all ranks, its device's too") {
  std::vector<at::Tensor> drawn(2);
  on_devices(2, [&](Accelerator& accelerator) {
    made_alike([&] {
      accelerator.set_seed(5, {.device_specific = true});
      return 0;
    });
    static_cast<void>(torch::randn({1 + accelerator.process_index()}, accelerator.device()));
    accelerator.wait_for_everyone();
    accelerator.synchronize_rng_states();
    drawn[static_cast<size_t>(accelerator.process_index())] = torch::randn({8}, accelerator.device()).cpu();
  });
  CHECK(at::equal(drawn[0], drawn[1]));
}
