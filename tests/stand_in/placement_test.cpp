// SPDX-License-Identifier: Apache-2.0
// Devices of all objects after prepare().
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <map>

#include "accelerate/comm/core/backend_table.hpp"
#include "tests/stand_in/ranks.hpp"

using accelerate::Accelerator;
using stand_in::device;
using stand_in::made_equal;
using stand_in::on_devices;
using stand_in::SmallNet;

namespace {

/// A user-defined batch.
struct Placed {
  at::Tensor image;
  std::map<std::string, std::vector<at::Tensor>> more;
  int64_t number = 0;
};
auto tree_members(Placed& sample) { return std::tie(sample.image, sample.more, sample.number); }

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

TEST_CASE("a single process uses the existing accelerator, each rank its own device" * stand_in::needs_stand_in()) {
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

TEST_CASE("a group for the CPU's tensors supports the device's too in an Accelerator on the device") {
  const auto table = accelerate::comm::backend_table();
  const auto gloo = std::ranges::find(table, "gloo", &accelerate::comm::BackendRow::name);
  if ((*gloo)->connect == nullptr) return;
  const auto group = accelerate::comm::connect({}, {.force_group = true});
  CHECK(group.backend() == "gloo");
  CHECK_FALSE(group.device().has_value());
  Accelerator accelerator(group, {});
  CHECK(accelerator.device() == device());
  CHECK(accelerator.group().device() == device());
  CHECK(accelerator.group().backend() == (stand_in::on_gpu() ? "nccl+gloo" : "standin+gloo"));
  const auto sum = torch::ones({2}, accelerator.device());
  accelerator.group().all_reduce(sum);
  CHECK(at::equal(sum.cpu(), torch::ones({2})));
  CHECK(Accelerator(group, {.cpu = true}).group().backend() == "gloo");
}

TEST_CASE("a missing device by number, and more ranks than devices, are refused with both counts" *
          stand_in::needs_stand_in()) {
  CHECK(refusal([] { Accelerator({.device = "standin:9"}); })
            .ends_with("device: standin:9 is requested (device in the code, ACCELERATE_TORCH_DEVICE or torch_device in "
                       "the config file), 4 standin devices are visible; request at most standin:3 or cpu"));
  CHECK(refusal([] { Accelerator({.device = "cuda"}); })
            .ends_with("device: cuda is requested (device in the code, ACCELERATE_TORCH_DEVICE or torch_device in the "
                       "config file), 4 standin devices are visible; request standin or cpu"));
  CHECK(refusal([] { on_devices(5, [](Accelerator&) {}); })
            .ends_with("device: 5 ranks on this machine, 4 standin devices visible; start at most 4, run on the CPU "
                       "(ACCELERATE_USE_CPU=1), or set ACCELERATE_ALLOW_SHARED_GPUS=1, which is also correct if each "
                       "rank sees only its own GPU"));
}

TEST_CASE("the current device of a rank's thread is its own from the start") {
  on_devices(3, [](Accelerator& accelerator) {
    CHECK(c10::impl::VirtualGuardImpl(stand_in::tested_type()).getDevice() == accelerator.device());
    CHECK(torch::ones({1}, at::TensorOptions(c10::Device(stand_in::tested_type()))).device() == accelerator.device());
    c10::impl::VirtualGuardImpl(stand_in::tested_type()).setDevice(device(3));
    const Accelerator again(accelerator.group(), {});
    CHECK(again.device() == accelerator.device());
    CHECK(c10::impl::VirtualGuardImpl(stand_in::tested_type()).getDevice() == accelerator.device());
  });
}

TEST_CASE("prepare() moves parameters and buffers, rank 0's, and batches of any type from both kinds of loaders") {
  const auto [images, labels] = stand_in::small_data(8);
  const auto expected = stand_in::made_equal([] { return SmallNet(); });
  stand_in::at_every_pace([&, &x = images, &y = labels] {
    on_devices(2, [&](Accelerator& accelerator) {
      auto net = made_equal([] { return SmallNet(); });
      const torch::NoGradGuard no_grad;
      const torch::nn::Linear one(torch::nn::LinearOptions(3, 3).bias(false));
      one->weight.fill_(1.5 + static_cast<double>(accelerator.process_index()));
      if (!accelerator.is_main_process()) {
        for (const auto& tensor : stand_in::state_of(net)) tensor.zero_();
      }
      torch::optim::SGD sgd(net->parameters(), 0.1);
      auto own = stand_in::small_loader(8, 2);
      std::vector<Placed> foreign;
      for (int64_t i = 0; i < 4; ++i) foreign.push_back({torch::full({2, 3}, i), {{"a", {torch::full({2}, -i)}}}, i});
      auto [model, optimizer, loader, samples] = accelerator.prepare(net, sgd, own, foreign);
      const auto is_here = [&](const at::Tensor& tensor, const at::Tensor& values) {
        CHECK(tensor.device() == accelerator.device());
        CHECK(at::equal(tensor.cpu(), values));
      };
      is_here(accelerator.prepare(one)->weight, torch::full({3, 3}, 1.5));
      const auto moved = stand_in::state_of(model);
      for (size_t i = 0; i < moved.size(); ++i) is_here(moved[i], stand_in::state_of(expected)[i]);
      for (const auto& tensor : optimizer.param_groups()[0].params()) CHECK(tensor.device() == accelerator.device());
      int64_t row = 2 * accelerator.process_index();
      for (auto& [some_images, some_labels] : loader) {
        is_here(some_images, x.narrow(0, row, 2));
        is_here(some_labels, y.narrow(0, row, 2));
        row += 4;
      }
      for (auto& sample : samples) {
        is_here(sample.image, torch::full({2, 3}, sample.number));
        is_here(sample.more.at("a")[0], torch::full({2}, -sample.number));
      }
    });
  });
}

TEST_CASE("without device_placement nothing is moved") {
  accelerate::AcceleratorOptions options;
  options.device_placement = false;
  on_devices(
      1,
      [](Accelerator& accelerator) {
        auto net = made_equal([] { return SmallNet(); });
        auto data = stand_in::small_loader(4, 2);
        auto [model, loader] = accelerator.prepare(net, data);
        for (const auto& tensor : stand_in::state_of(model)) CHECK(tensor.is_cpu());
        for (auto& batch : loader) CHECK(batch.data.is_cpu());
      },
      options);
}

TEST_CASE("an optimizer that stepped on the CPU continues on the device") {
  const stand_in::DefaultDtype dtype(accelerate::Precision::no);
  const auto train = [](bool move) {
    auto net = made_equal([] { return SmallNet(); });
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
  for (size_t i = 0; i < stayed.size(); ++i) stand_in::check_same(moved[i], stayed[i]);
}

TEST_CASE("a module that moves to or from the device is reduced there once it is prepared again") {
  const stand_in::DefaultDtype dtype(accelerate::Precision::no);
  const auto [images, labels] = stand_in::small_data(4);
  for (const bool from_cpu : {true, false}) {
    CAPTURE(from_cpu);
    auto options = stand_in::with_small_buckets();
    options.device_placement = !from_cpu;
    stand_in::same_as_on_cpu(
        [&, from_cpu, &x = images, &y = labels](Accelerator& accelerator) -> stand_in::Tensors {
          auto net = made_equal([] { return SmallNet(); });
          torch::optim::SGD sgd(net->parameters(), 0.1);
          const auto step = [&] {
            auto [model, optimizer] = accelerator.prepare(net, sgd);
            const auto there = net->parameters()[0].device();
            const auto row = 2 * accelerator.process_index();
            stand_in::backward_on(accelerator, model, optimizer, x.narrow(0, row, 2).to(there),
                                  y.narrow(0, row, 2).to(there));
            optimizer.step();
            optimizer.zero_grad();
            return model;
          };
          const auto first = step();
          net->to(from_cpu ? accelerator.device() : at::Device(at::kCPU));
          const auto again = step();
          const bool same_storage = !from_cpu || accelerator.device().is_cpu();
          CHECK((again == first) == same_storage);
          for (const auto& tensor : stand_in::state_of(net)) CHECK(tensor.device() == accelerator.device());
          return stand_in::state_of(net);
        },
        options);
  }
}

TEST_CASE("a CPU tensor as an input by mistake is an error that names both devices") {
  stand_in::at_every_pace([] {
    on_devices(1, [](Accelerator& accelerator) {
      auto net = made_equal([] { return SmallNet(); });
      auto model = accelerator.prepare(net);
      const auto [images, labels] = stand_in::small_data(2);
      const auto of_the_model = refusal([&, &x = images] { model(x); });
      if (stand_in::on_gpu()) {  // a convolution has another error text there
        CHECK(of_the_model != "no error");
        return;
      }
      CHECK(of_the_model.find("at least two devices, ") != std::string::npos);
      CHECK(of_the_model.find("standin:0") != std::string::npos);
      CHECK(of_the_model.find("cpu") != std::string::npos);
      const auto outputs = model(images.to(accelerator.device()));
      CHECK(refusal([&, &y = labels] { torch::nll_loss(outputs, y); }).find("standin:0 and cpu") != std::string::npos);
    });
  });
}

TEST_CASE("the device is seeded, and all ranks get rank 0's generator states, the device's too" *
          stand_in::needs_stand_in()) {
  std::vector<at::Tensor> drawn(2);
  on_devices(2, [&](Accelerator& accelerator) {
    made_equal([&] {
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

TEST_CASE("two Accelerators of one process train side by side, on one device and on two") {
  const auto train = [](Accelerator& first, Accelerator& second) {
    stand_in::Job<> one(first, torch::optim::SGDOptions(0.1));
    stand_in::Job<SmallNet, torch::optim::AdamW> other(second, torch::optim::AdamWOptions(1e-2));
    auto& [model, optimizer, loader] = one.prepared;
    auto& [other_model, other_optimizer, other_loader] = other.prepared;
    auto others_batch = other_loader.begin();
    for (auto& [images, labels] : loader) {
      stand_in::backward_on(first, model, optimizer, images, labels);
      stand_in::backward_on(second, other_model, other_optimizer, others_batch->data, others_batch->target);
      optimizer.step();
      other_optimizer.step();
      ++others_batch;
    }
    auto all = stand_in::state_of(model);
    for (const auto& tensor : stand_in::state_of(other_model)) all.push_back(tensor);
    return stand_in::to_cpu(all);
  };
  stand_in::same_as_on_cpu([&](Accelerator& accelerator) {
    Accelerator second({.device = accelerator.device().is_cpu() ? "cpu" : stand_in::device_name()});
    return train(accelerator, second);
  });
  if (stand_in::devices() < 3) return;
  Accelerator on_cpu({.cpu = true});
  const auto expected = train(on_cpu, on_cpu);
  stand_in::at_every_pace(
      [&] {
        Accelerator first({.device = "standin:1"});
        Accelerator second({.device = "standin:2"});
        const auto found = train(first, second);
        for (size_t i = 0; i < expected.size(); ++i) CHECK(at::equal(found[i], expected[i]));
      },
      500);
}

TEST_CASE("gradients on two devices are clipped by their common norm" * stand_in::needs_stand_in()) {
  const auto clip = [](const at::Device& one, const at::Device& other) {
    Accelerator accelerator({.device = one.str()});
    stand_in::Tensors parameters;
    for (const auto& device : {one, other, one}) {
      parameters.push_back(torch::zeros({40}, at::TensorOptions(device).requires_grad(true)));
      parameters.back().mutable_grad() = torch::arange(40, at::TensorOptions(device).dtype(at::kFloat));
    }
    stand_in::Tensors all{accelerator.clip_grad_norm_(parameters, 0.5)};
    for (const auto& parameter : parameters) all.push_back(parameter.grad());
    return stand_in::to_cpu(all);
  };
  const auto expected = clip(at::kCPU, at::kCPU);
  stand_in::at_every_pace([&] {
    const auto found = clip(device(0), device(1));
    for (size_t i = 0; i < expected.size(); ++i) CHECK(at::allclose(found[i], expected[i], 1e-6));
  });
}

TEST_CASE("memory() covers the rank's device: it follows tensors, and a peak stays until it is reset") {
  stand_in::on_devices(2, [](accelerate::Accelerator& accelerator) {
    constexpr int64_t kMebibyte = 1 << 20;
    const auto before = accelerator.memory();
    CHECK(before.resident_bytes > kMebibyte);
    {
      const auto tensor = torch::zeros({kMebibyte / 4}, at::TensorOptions(accelerator.device()).dtype(at::kFloat));
      CHECK(accelerator.memory().allocated_bytes == before.allocated_bytes + kMebibyte);
    }
    const auto after = accelerator.memory();
    CHECK(after.allocated_bytes == before.allocated_bytes);
    CHECK(after.peak_allocated_bytes >= before.allocated_bytes + kMebibyte);
    accelerator.reset_peak_memory();
    CHECK(accelerator.memory().peak_allocated_bytes == after.allocated_bytes);
    CHECK(accelerate::profile::memory_text(after).starts_with("allocated "));
  });
}

TEST_CASE("free_memory() and the end of the handles free the memory of prepared objects") {
  stand_in::on_devices(1, [](accelerate::Accelerator& accelerator) {
    const auto emptied = [] {
      return dynamic_cast<c10::DeviceAllocator&>(*c10::GetAllocator(stand_in::tested_type()))
          .getDeviceStats(0)
          .num_device_free;
    };
    const auto before = accelerator.memory().allocated_bytes;
    {
      auto net = made_equal([] { return SmallNet(); });
      auto [model, optimizer] = accelerator.prepare(net, torch::optim::AdamW(net->parameters(), 1e-2));
      const auto [images, labels] = stand_in::small_data(4);
      accelerator.backward(torch::nll_loss(model(images.to(accelerator.device())), labels.to(accelerator.device())));
      optimizer.step();
      CHECK(accelerator.memory().allocated_bytes > before);
    }
    const auto emptied_before = emptied();
    accelerator.free_memory();
    c10::impl::VirtualGuardImpl(stand_in::tested_type())
        .synchronizeDevice(0);  // gradients are freed when the device has finished
    CHECK(accelerator.memory().allocated_bytes == before);
    // The allocator keeps no cache either; CUDA's counts segments, which other tensors may share.
    if (!stand_in::on_gpu()) CHECK(emptied() == emptied_before + 1);
  });
}

TEST_CASE("a profiler records the host's launches, and waits for the device only at its end") {
  stand_in::on_devices(1, [](accelerate::Accelerator& accelerator) {
    const auto matrix = torch::ones({8, 8}, accelerator.device());
    auto profiler = accelerator.profile({.schedule_option = accelerate::ProfileSchedule{.active = 3, .repeat = 1}});
    const auto waits = stand_in::host_waits(0);
    for (int step = 0; step < 3; ++step) {
      static_cast<void>(matrix.mm(matrix));
      if (step == 2) CHECK(stand_in::host_waits(0) == waits);
      profiler.step();
    }
    if (!stand_in::on_gpu()) CHECK(stand_in::host_waits(0) == waits + 1);  // for deferred work of the last step
    profiler.stop();
    CHECK(profiler.summary().steps == 3);
    CHECK(profiler.table(100).find("aten::mm") != std::string::npos);
  });
}
