// SPDX-License-Identifier: Apache-2.0
// Saves the state of a device while its streams continue.
#include <unistd.h>

#include <filesystem>

#include "accelerate/base/remove_tree.hpp"
#include "accelerate/device/download.hpp"
#include "tests/stand_in/ranks.hpp"

using accelerate::Accelerator;
using stand_in::on_devices;
using stand_in::same_as_on_cpu;
using stand_in::Tensors;
namespace fs = std::filesystem;

namespace {

/// A temporary folder for checkpoints, the same for all ranks of a job.
struct Folder {
  ~Folder() { accelerate::base::remove_tree(path); }
  fs::path path = fs::temp_directory_path() / fmt::format("accelerate-stand-in-{}", ::getpid());
};

using Job = stand_in::Job<stand_in::SmallNet, torch::optim::AdamW>;

/// Weights, buffers, moments.
Tensors all_of(const Job& job) {
  Tensors all = stand_in::state_of(job.net);
  for (const auto& parameter : job.net->parameters()) {
    const auto found = job.stock.state().find(parameter.unsafeGetTensorImpl());
    if (found == job.stock.state().end()) continue;
    const auto& state = static_cast<const torch::optim::AdamWParamState&>(*found->second);
    all.push_back(state.exp_avg());
    all.push_back(state.exp_avg_sq());
  }
  return all;
}

void train(Accelerator& accelerator, Job& job) {
  auto& [model, optimizer, loader] = job.prepared;
  for (auto& [images, labels] : loader) {
    stand_in::backward_on(accelerator, model, optimizer, images, labels);
    optimizer.step();
  }
}

/// Saves during a training, which continues, and loads: the loaded state must equal the saved one.
auto saved_and_loaded(const fs::path& place, const accelerate::SaveOptions& options, bool on_a_side_stream) {
  return [=](Accelerator& accelerator) -> Tensors {
    std::optional<stand_in::OnASideStream> side;
    if (on_a_side_stream) side.emplace(accelerator.device());
    Job job(accelerator, torch::optim::AdamWOptions(0.01));
    Tensors kept;
    for (int i = 0; i < 2; ++i) {  // the second save reuses the buffers of the first
      train(accelerator, job);
      accelerator.save_state(place, options);
      kept.clear();
      for (const auto& tensor : all_of(job)) kept.push_back(tensor.detach().clone());
      train(accelerator, job);
    }
    accelerator.wait_for_checkpoint();
    accelerator.load_state(place);
    const Tensors loaded = stand_in::to_cpu(all_of(job)), expected = stand_in::to_cpu(kept);
    REQUIRE(loaded.size() == expected.size());
    // Buffers of other ranks are their own.
    for (size_t i = 0; accelerator.is_main_process() && i < loaded.size(); ++i) {
      CAPTURE(i);
      CHECK(at::equal(loaded[i], expected[i]));
    }
    return loaded;
  };
}

/// Returns temporary tensors.
struct Fleeting {
  at::Device device;
  at::Tensor seen{};
  [[nodiscard]] accelerate::prepared::TensorDict state_dict() const {
    accelerate::prepared::TensorDict dict;
    const stand_in::OnASideStream side(device);  // its memory belongs to a stream for which no other stream waits
    dict.insert("x", torch::full({1000}, 3.0F, device) * 2);
    return dict;
  }
  void load_state_dict(const accelerate::prepared::TensorDict& dict) { seen = dict["x"]; }
};

}  // namespace

TEST_CASE("an asynchronous save contains the values at the time of the call, on every stream") {
  const Folder folder;
  for (const bool side : {false, true}) {
    CAPTURE(side);
    same_as_on_cpu(saved_and_loaded(folder.path / "c", {.async = true, .durable = false}, side));
  }
}

TEST_CASE("a synchronous save contains the values at the time of the call, although writer threads use no stream") {
  const Folder folder;
  for (const bool side : {false, true}) {
    CAPTURE(side);
    same_as_on_cpu(saved_and_loaded(folder.path / "c", {.durable = false}, side), {}, {1});
  }
}

TEST_CASE("the second of two downloads contains the values computed between them") {
  stand_in::at_every_pace([] {
    const auto first = torch::empty({1000}).pin_memory(), second = torch::empty({1000}).pin_memory();
    accelerate::device::Download download;
    const auto x = torch::ones({1000}, stand_in::device()) * 2;
    download.begin(first, x);
    const auto y = x * 3;
    download.begin(second, y);
    download.finish();
    download.arrive();
    CHECK(first.sum().item<double>() == 2000);
    CHECK(second.sum().item<double>() == 6000);
  });
}

TEST_CASE("an asynchronous save never waits for the device, and copies on its own stream") {
  const Folder folder;
  on_devices(1, [&](Accelerator& accelerator) {
    Job job(accelerator, torch::optim::AdamWOptions(0.01));
    train(accelerator, job);
    accelerator.save_state(folder.path / "c", {.async = true});
    accelerator.wait_for_checkpoint();
    const auto pinned = stand_in::pinned_allocations();
    auto& [model, optimizer, loader] = job.prepared;
    auto [images, labels] = stand_in::small_data(3);
    stand_in::backward_on(accelerator, model, optimizer, images.to(accelerator.device()),
                          labels.to(accelerator.device()));
    optimizer.step();
    const auto waits = stand_in::host_waits_here();  // the writer thread may already wait
    stand_in::start_trace();
    accelerator.save_state(folder.path / "c", {.async = true});
    const auto trace = stand_in::take_trace();
    CHECK(stand_in::host_waits_here() == waits);
    CHECK(stand_in::pinned_allocations() == pinned);
    if (!stand_in::on_gpu()) CHECK(trace.size() >= all_of(job).size());
    for (const auto& launch : trace) CHECK(launch.side);
    accelerator.wait_for_checkpoint();
  });
}

TEST_CASE("the next save reuses the memory of registered objects and an open window" * stand_in::needs_stand_in()) {
  const Folder folder;
  on_devices(1,
             [&](Accelerator& accelerator) {
               Job job(accelerator, torch::optim::AdamWOptions(0.01));
               accelerate::optim::ExponentialMovingAverage ema(job.net);
               accelerator.register_for_checkpointing(ema);
               auto& [model, optimizer, loader] = job.prepared;
               for (auto& [images, labels] : loader) {
                 auto window = accelerator.accumulate(model);
                 stand_in::backward_on(accelerator, model, optimizer, images, labels);
                 break;
               }
               const auto pinned_by_a_save = [&] {
                 const auto before = stand_in::pinned_allocations();
                 accelerator.save_state(folder.path / "c", {.async = true, .durable = false});
                 accelerator.wait_for_checkpoint();
                 return stand_in::pinned_allocations() - before;
               };
               CHECK(pinned_by_a_save() > 0);
               CHECK(pinned_by_a_save() == 0);
             },
             {.gradient_accumulation_steps = 2});
}

TEST_CASE("tensors that are created for a save and destroyed are saved correctly") {
  const Folder folder;
  stand_in::at_every_pace([&] {
    on_devices(1, [&](Accelerator& accelerator) {
      Fleeting object{accelerator.device()};
      accelerator.register_for_checkpointing(object);
      accelerator.save_state(folder.path / "c", {.async = true, .durable = false});
      const stand_in::OnASideStream side(accelerator.device());
      const auto other = torch::full({1000}, -1.0F, accelerator.device());
      accelerator.wait_for_checkpoint();
      accelerator.load_state(folder.path / "c");
      CHECK(at::equal(object.seen.cpu(), torch::full({1000}, 6.0F)));
      CHECK(at::equal(other.cpu(), torch::full({1000}, -1.0F)));
    });
  });
}

TEST_CASE("a device draws the same random numbers after a load as after the save") {
  const Folder folder;
  on_devices(1, [&](Accelerator& accelerator) {
    accelerator.set_seed(5);
    torch::nn::Linear net(2, 2);
    auto model = accelerator.prepare(net);
    const auto draw = [&] { return torch::rand({8}, accelerator.device()).cpu(); };
    draw();
    for (const bool async : {false, true}) {
      CAPTURE(async);
      accelerator.save_state(folder.path / "c", {.async = async, .durable = false});
      const auto drawn = draw();
      accelerator.wait_for_checkpoint();
      CHECK_FALSE(at::equal(draw(), drawn));
      accelerator.load_state(folder.path / "c");
      CHECK(at::equal(draw(), drawn));
    }
  });
}

TEST_CASE("skipped fp16 steps do not count, although the host has not read their flags") {
  const Folder folder;
  stand_in::at_every_pace([&] {
    on_devices(
        1,
        [&](Accelerator& accelerator) {
          torch::nn::Linear net(2, 1);
          auto [model, optimizer] = accelerator.prepare(net, torch::optim::SGD(net->parameters(), 0.5));
          const auto step = [&, &model = model, &optimizer = optimizer](double scale) {
            optimizer.zero_grad();
            accelerator.backward(model(torch::ones({1, 2}, accelerator.device())).sum() * scale);
            optimizer.step();
          };
          const double inf = std::numeric_limits<double>::infinity();
          for (const double scale : {1.0, inf, 2.0, inf, 3.0}) step(scale);
          accelerator.save_state(folder.path / "c", {.durable = false});
          CHECK(accelerator.load_state(folder.path / "c").step == 3);
          step(1.0);
          step(inf);
          accelerator.load_state(folder.path / "c");  // pending flags are discarded
          step(inf);
          step(1.0);
          accelerator.save_state(folder.path / "d", {.durable = false});
          CHECK(accelerator.load_state(folder.path / "d").step == 4);
        },
        stand_in::with_precision(accelerate::Precision::fp16));
  });
}

TEST_CASE("skipped fp16 steps do not affect a loaded state at any memory address") {
  const Folder folder;
  on_devices(
      1,
      [&](Accelerator& accelerator) {
        torch::nn::Linear net(torch::nn::LinearOptions(2, 1).bias(false));  // one state: the next one reuses its memory
        torch::optim::AdamW adamw(net->parameters(), 0.01);
        auto [model, optimizer] = accelerator.prepare(net, adamw);
        const auto step = [&, &model = model, &optimizer = optimizer](double scale) {
          optimizer.zero_grad();
          accelerator.backward(model(torch::ones({1, 2}, accelerator.device())).sum() * scale);
          optimizer.step();
        };
        for (int i = 0; i < 5; ++i) step(1.0);
        accelerator.save_state(folder.path / "c", {.durable = false});
        const double inf = std::numeric_limits<double>::infinity();
        for (int i = 0; i < 4; ++i) step(inf);
        accelerator.load_state(folder.path / "c");
        const auto& state =
            static_cast<const torch::optim::AdamWParamState&>(*optimizer.state().at(net->weight.unsafeGetTensorImpl()));
        CHECK(state.step() == 5);
      },
      stand_in::with_precision(accelerate::Precision::fp16));
}

TEST_CASE("loading does not double the memory on the device" * stand_in::needs_stand_in()) {
  const Folder folder;
  on_devices(1, [&](Accelerator& accelerator) {
    torch::nn::Linear net(1000, 100);
    auto [model, optimizer] = accelerator.prepare(net, torch::optim::AdamW(net->parameters(), 0.01));
    accelerator.backward(model(torch::ones({1, 1000}, accelerator.device())).sum());
    optimizer.step();
    optimizer.zero_grad();
    accelerator.save_state(folder.path / "c", {.durable = false});
    at::accelerator::synchronizeDevice(0);
    const auto [free, all] = at::accelerator::getMemoryInfo(0);
    stand_in::set_limit(0, all - free + 100'000);  // a moment of the weights is 400'000 bytes
    CHECK_NOTHROW(accelerator.load_state(folder.path / "c"));
    stand_in::set_limit(0, all);
  });
}
