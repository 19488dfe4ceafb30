// SPDX-License-Identifier: Apache-2.0
// Transfer of batches to the device: copied on a side stream, one ahead, and correct for any loop.
#include <ATen/DeviceAccelerator.h>

#include <atomic>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <mutex>
#include <set>
#include <stdexcept>
#include <thread>

#include "accelerate/data/combinators/cache.hpp"
#include "accelerate/data/sources/image_folder.hpp"
#include "accelerate/data/stream_loader.hpp"
#include "accelerate/data/transforms/to_float.hpp"
#include "accelerate/data/transforms/transform.hpp"
#include "accelerate/tracking/png.hpp"
#include "tests/data/sources/reads_png.hpp"
#include "tests/stand_in/ranks.hpp"
#include "tests/temporary_folder.hpp"

using accelerate::Accelerator;
using stand_in::on_devices;
using stand_in::same_as_on_cpu;
using stand_in::Tensors;
namespace data = accelerate::data;

namespace {

/// A user-defined batch.
struct Sample {
  at::Tensor image;
  std::map<std::string, std::vector<at::Tensor>> more;
  std::vector<std::string> names;
};
auto tree_members(Sample& sample) { return std::tie(sample.image, sample.more, sample.names); }

/// [n, 40]; all elements of row i are i.
at::Tensor rows(int64_t samples) { return torch::arange(samples, at::kFloat).view({samples, 1}).expand({samples, 40}); }

data::Loader numbers(int64_t samples, data::LoaderOptions options = {.batch_size = 3}) {
  return data::from_tensors(rows(samples).contiguous(), torch::arange(samples), options);
}

std::vector<Sample> foreign_samples(int64_t samples, int64_t each) {
  std::vector<Sample> batches;
  for (int64_t i = 0; i < samples; i += each) {
    const int64_t count = std::min(each, samples - i);
    const auto some = rows(samples).narrow(0, i, count);
    batches.push_back({some, {{"a", {some * 2, torch::arange(i, i + count)}}}, {"batch", std::to_string(i)}});
  }
  return batches;
}

auto number_stream(int64_t samples, data::StreamOptions options = {.batch_size = 3}) {
  const auto read = [samples](const data::ReadContext&) {
    return [samples, i = int64_t{0}]() mutable -> std::optional<at::Tensor> {
      return i < samples ? std::optional(torch::full({40}, i++)) : std::nullopt;
    };
  };
  return data::StreamLoader(data::make_stream(read), options);
}

/// Reads the tensor's device memory without modifying it.
void use(Tensors& found, const at::Tensor& tensor) { found.push_back(tensor * 2 + 1); }

template <typename Batch>
void use_all(Tensors& found, const Batch& batch) {
  accelerate::tree::for_each_tensor(batch, [&](const at::Tensor& tensor) { use(found, tensor); });
}

/// Runs two epochs.
template <typename Loader>
void walk(Tensors& found, const Loader& loader) {
  for (int epoch = 0; epoch < 2; ++epoch) {
    for (auto& batch : loader) use_all(found, batch);
  }
}

/// A body for same_as_on_cpu(): the loader's batches.
template <typename Make>
auto batches_of(const Make& make) {
  return [make](Accelerator& accelerator) -> Tensors {
    Tensors found;
    auto loader = make();
    walk(found, accelerator.prepare(loader));
    return found;
  };
}

/// Throws in epoch 0 from sample 6.
struct Broken final : data::SourceOf<at::Tensor> {
  [[nodiscard]] int64_t size() const override { return 12; }
  [[nodiscard]] at::Tensor read(const at::Tensor& indices) const override { return read_in_pass(indices, {}); }
  [[nodiscard]] at::Tensor read_in_pass(const at::Tensor& indices, const data::ReadContext& context) const override {
    if (context.epoch == 0 && indices[0].item<int64_t>() >= 6) throw std::domain_error("broken");
    return indices.to(at::kFloat).view({-1, 1}).expand({indices.size(0), 40}).contiguous();
  }
};

/// Shuffles slowly with LibTorch's generator at the start of a pass.
struct ShufflesSlowly {
  int64_t samples;
  Tensors batches{};
  auto begin() {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    batches = torch::randperm(samples).split(4);
    return batches.begin();
  }
  auto end() { return batches.end(); }
};

}  // namespace

TEST_CASE("batches of our loaders arrive on the device with the CPU's values: shuffled, by workers, by parts") {
  const auto shuffled = [] { return numbers(23, {.batch_size = 3, .shuffle = true, .seed = 3}); };
  same_as_on_cpu(batches_of(shuffled));
  same_as_on_cpu(batches_of([] { return numbers(23, {.batch_size = 3, .num_workers = 2}); }));
  accelerate::AcceleratorOptions options;
  options.split_batches = true;
  same_as_on_cpu(batches_of([] { return numbers(22, {.batch_size = 4}); }), options);
  options = {};
  options.even_batches = false;
  same_as_on_cpu(batches_of(shuffled), options);
}

TEST_CASE("batches of foreign loaders arrive on the device, of any type, padding included") {
  for (const int64_t samples : {12, 13, 17, 2}) {
    CAPTURE(samples);
    same_as_on_cpu(batches_of([samples] { return foreign_samples(samples, 3); }), {}, {1, 2, 3});
  }
  accelerate::AcceleratorOptions options;
  options.split_batches = true;
  same_as_on_cpu(batches_of([] { return foreign_samples(14, 4); }), options);
}

TEST_CASE("batches of dispatched loaders and streams arrive on the device") {
  accelerate::AcceleratorOptions options;
  for (const bool dispatch : {true, false}) {
    CAPTURE(dispatch);
    options.dispatch_batches = dispatch;
    same_as_on_cpu(batches_of([] { return number_stream(22); }), options);
    same_as_on_cpu(batches_of([] { return foreign_samples(13, 3); }), options);
    same_as_on_cpu(batches_of([] { return numbers(23); }), options);
  }
}

TEST_CASE("tensors arrive unchanged: strides, no elements, no dimension, views, requires_grad") {
  const auto odd = torch::rand({2, 3, 4, 5});
  const Tensors of{
      odd.to(at::MemoryFormat::ChannelsLast),    odd.transpose(0, 2),          odd.select(1, 1),
      torch::rand({1}).expand({4, 3}),           torch::empty({0, 3}),         torch::tensor(4.5, at::kDouble),
      torch::rand({2, 2}, at::kBFloat16),        torch::tensor({true, false}), torch::rand({3}).requires_grad_(),
      torch::rand({2}, at::kComplexFloat).conj()};
  stand_in::at_every_pace([&] {
    on_devices(1, [&](Accelerator& accelerator) {
      std::vector<Tensors> batches{of, of};
      for (auto& batch : accelerator.prepare(batches)) {
        for (size_t i = 0; i < of.size(); ++i) {
          CAPTURE(i);
          CHECK(batch[i].device() == accelerator.device());
          CHECK(batch[i].strides() == of[i].to(accelerator.device()).strides());
          CHECK((batch[i].scalar_type() == of[i].scalar_type()));
          CHECK(at::equal(batch[i].detach().cpu(), of[i].detach().resolve_conj()));
        }
      }
    });
  });
}

TEST_CASE("a steady loop never waits: no copy from pageable memory, no wait of the host") {
  const auto costs = [](Accelerator& accelerator, auto loader) {
    const auto device = accelerator.device().index();
    int64_t steps = 0;
    int64_t waits = 0;
    int64_t pageable = 0;
    Tensors found;
    auto prepared = accelerator.prepare(loader);  // its destructor waits
    for (auto& batch : prepared) {
      if (++steps == 3) {
        waits = stand_in::host_waits(device);
        pageable = stand_in::pageable_uploads(device);
      }
      use_all(found, batch);
    }
    CHECK(steps >= 6);
    return std::pair(stand_in::host_waits(device) - waits, stand_in::pageable_uploads(device) - pageable);
  };
  const std::pair<int64_t, int64_t> none{0, 0};
  for (const int64_t ranks : {1, 2}) {
    stand_in::at_every_pace([&] {
      on_devices(ranks, [&](Accelerator& accelerator) {
        CHECK(costs(accelerator, numbers(24 * ranks)) == none);
        CHECK(costs(accelerator, numbers(24 * ranks, {.batch_size = 3, .num_workers = 1})) == none);
        CHECK(costs(accelerator, foreign_samples(24 * ranks, 3)) == none);
        CHECK(costs(accelerator, number_stream(24 * ranks)) == none);
        const auto waits = stand_in::host_waits(accelerator.device().index());
        std::vector<at::Tensor> with_gradient(4 * static_cast<size_t>(ranks), torch::ones({3}).requires_grad_());
        for (auto& batch : accelerator.prepare(with_gradient)) CHECK(batch.requires_grad());
        CHECK(stand_in::host_waits(accelerator.device().index()) == waits);
      });
    });
  }
}

TEST_CASE("pinned memory is reused, over epochs too" * stand_in::needs_stand_in()) {
  on_devices(1, [](Accelerator& accelerator) {
    const auto allocations = [&accelerator](auto data) {
      auto loader = accelerator.prepare(data);
      const auto before = stand_in::pinned_allocations();
      float sum = 0;
      for (int epoch = 0; epoch < 3; ++epoch) {
        for (auto& batch : loader)
          sum += accelerate::tree::flatten(batch)[0].sum().template item<float>();  // waits for the step
      }
      CHECK(sum == 3 * 40 * 23 * 12);
      return stand_in::pinned_allocations() - before;
    };
    // For 24 batches: the current one, the next one, and one with an incomplete copy.
    CHECK(allocations(numbers(24)) <= 3 * 2);
    CHECK(allocations(foreign_samples(24, 3)) <= 3 * 3);
  });
}

TEST_CASE("data in memory and in a cache are read into pinned memory, except for a loop on the CPU") {
  const auto is_pinned = [](Accelerator& accelerator, data::Loader data) {
    auto loader = accelerator.prepare(data);
    bool all = true;
    for (int epoch = 0; epoch < 2; ++epoch) {
      for (auto& batch : data) all = all && batch.data.is_pinned() && batch.target.is_pinned();
    }
    return all;
  };
  const auto cached = [] { return data::Loader(data::cache(numbers(24).source()), {.batch_size = 3}); };
  on_devices(2, [&](Accelerator& accelerator) {
    CHECK(is_pinned(accelerator, numbers(24)));
    CHECK(is_pinned(accelerator, numbers(24, {.batch_size = 3, .num_workers = 2})));
    CHECK(is_pinned(accelerator, cached()));
    CHECK_FALSE(is_pinned(accelerator, numbers(24, {.batch_size = 3, .pin_memory = false})));
  });
  Accelerator on_cpu({.cpu = true});
  CHECK_FALSE(is_pinned(on_cpu, numbers(24)));
  CHECK_FALSE(is_pinned(on_cpu, cached()));
}

TEST_CASE("bytes converted to floats, and images of a folder, use pinned memory on request") {
  const testing::TemporaryFolder folder;
  std::filesystem::create_directories(folder.path / "x");
  for (int i = 0; i < 6; ++i) {
    std::ofstream(folder.path / "x" / (std::to_string(i) + ".png")) << accelerate::tracking::png_of(
        {.height = 2, .width = 3, .channels = 3, .pixels = std::vector<uint8_t>(18, static_cast<uint8_t>(i))});
  }
  const auto bytes = data::memory_source(torch::ones({6, 5}, torch::kByte), torch::arange(6));
  const auto check = [&](Accelerator& accelerator, bool pinned) {
    const auto walk_one = [&](data::Loader of) {
      auto loader = accelerator.prepare(of);
      for (auto& batch : *loader) {  // before the copy
        CHECK(batch.data.is_pinned() == pinned);
        CHECK(batch.target.is_pinned() == pinned);
      }
    };
    const data::LoaderOptions options{.batch_size = 2, .pin_memory = pinned};
    walk_one({data::transform(bytes, data::ToFloat()), options});
    for (const auto dtype : {torch::kFloat, torch::kByte}) {
      if (!testing::reads_png()) continue;
      walk_one(data::image_folder({.path = folder.path, .dtype = dtype}, options));
    }
  };
  on_devices(2, [&](Accelerator& accelerator) {
    check(accelerator, true);
    check(accelerator, false);
  });
  if (testing::reads_png()) {
    same_as_on_cpu(batches_of([&] { return data::image_folder({.path = folder.path}, {.batch_size = 2}); }));
  }
  same_as_on_cpu(batches_of([&] { return data::Loader(data::transform(bytes, data::ToFloat()), {.batch_size = 2}); }));
}

TEST_CASE("data on the device are gathered there, and only sample indices are copied") {
  const auto walk_resident = [](Accelerator& accelerator) -> Tensors {
    Tensors found;
    const auto numbers = torch::arange(23);
    auto pair = data::Loader(data::memory_source(rows(23), numbers, accelerator.device()),
                             {.batch_size = 3, .shuffle = true, .seed = 3});
    Sample all{rows(23), {{"a", {rows(23) * 2, numbers}}}, std::vector<std::string>(23, "name")};
    auto tree = data::LoaderOf(data::memory_source(all, accelerator.device()), {.batch_size = 4});
    auto [loader, samples] = accelerator.prepare(pair, tree);
    walk(found, loader);
    walk(found, samples);
    for (auto& batch : samples) CHECK(batch.names.size() == static_cast<size_t>(batch.image.size(0)));
    return found;
  };
  same_as_on_cpu(walk_resident);
  on_devices(1, [](Accelerator& accelerator) {
    auto data = data::Loader(data::memory_source(rows(24), torch::arange(24), accelerator.device()), {.batch_size = 3});
    auto loader = accelerator.prepare(data);
    int64_t steps = 0;
    int64_t waits = 0;
    stand_in::start_trace();
    const auto pageable = stand_in::pageable_uploads(0);
    for (auto& batch : loader) {
      if (++steps == 3) waits = stand_in::host_waits(0);
      CHECK(batch.data.device() == accelerator.device());
    }
    CHECK(stand_in::host_waits(0) == waits);
    CHECK(stand_in::pageable_uploads(0) == pageable);
    int64_t copies = 0;
    for (const auto& each : stand_in::take_trace()) copies += each.what == "copy_";
    if (!stand_in::on_gpu()) CHECK(copies == 8);  // the numbers of 8 batches
  });
}

TEST_CASE("data on the device are refused if they do not fit or if workers would read them" *
          stand_in::needs_stand_in()) {
  const std::string read_by_worker =
      "memory_source: the data are on standin:0 and read by a worker; num_workers must be 0 where they are gathered on "
      "the device";
  on_devices(1, [&](Accelerator& accelerator) {
    const auto source = data::memory_source(rows(24), {}, accelerator.device());
    auto loader = data::Loader(source, {.num_workers = 4});
    CHECK_THROWS_WITH((void)loader.begin(), read_by_worker.c_str());
  });
  const size_t all = at::accelerator::getMemoryInfo(0).second;
  stand_in::set_limit(0, 1000);
  std::string message;
  try {
    (void)data::memory_source(rows(24), torch::arange(24), stand_in::device());
  } catch (const accelerate::Error& error) {
    message = error.what();
    CHECK(error.kind() == accelerate::ErrorKind::device);
  }
  stand_in::set_limit(0, all);
  CHECK(message.starts_with(
      "memory_source: 3840 bytes of data do not fit on standin:0 (standin:0 is out of memory: tried "
      "to allocate 3840 bytes, "));
  CHECK(message.ends_with("); keep them on the CPU: prepare() copies each batch one step ahead"));
}

TEST_CASE("the next batch is copied before this batch's step is launched, and concurrently" *
          stand_in::needs_stand_in()) {
  on_devices(1, [](Accelerator& accelerator) {
    auto data = data::from_tensors(rows(24).contiguous(), {}, {.batch_size = 3});
    auto loader = accelerator.prepare(data);
    Tensors found;
    stand_in::start_trace();
    for (auto& batch : loader) found.push_back(batch.data.neg());
    std::vector<stand_in::Launch> copies;
    std::vector<stand_in::Launch> steps;
    std::vector<size_t> copies_before;
    for (const auto& each : stand_in::take_trace()) {
      if (each.what == "copy_") copies.push_back(each);
      if (!each.what.starts_with("aten::neg")) continue;
      steps.push_back(each);
      copies_before.push_back(copies.size());
    }
    REQUIRE(steps.size() == 8);
    REQUIRE(copies.size() == 8);
    CHECK(copies_before == std::vector<size_t>{2, 3, 4, 5, 6, 7, 8, 8});
    for (size_t i = 0; i < 8; ++i) {
      CAPTURE(i);
      CHECK(copies[i].side);
      CHECK(stand_in::ordered(copies[i], steps[i]));
      if (i > 0) CHECK_FALSE(stand_in::ordered(steps[i - 1], copies[i]));
    }
  });
}

TEST_CASE("a loop that ends early, by break or by an exception, does not affect loader and memory") {
  same_as_on_cpu(
      [](Accelerator& accelerator) -> Tensors {
        Tensors found;
        auto data = numbers(24 * accelerator.num_processes());
        auto foreign = foreign_samples(24 * accelerator.num_processes(), 3);
        auto [loader, other] = accelerator.prepare(data, foreign);
        const auto leave = [&found](auto& from) {
          for (auto& batch : from) {
            use_all(found, batch);
            break;
          }
          // in the memory of the batch that is being copied
          found.push_back(torch::ones({3, 40}, found.back().options()));
          int64_t steps = 0;
          try {
            for (auto& batch : from) {
              use_all(found, batch);
              if (++steps == 3) throw std::runtime_error("of the step");
            }
          } catch (const std::runtime_error&) {
          }
          walk(found, from);
        };
        leave(loader);
        leave(other);
        return found;
      },
      {}, {1, 2}, 2000);
}

TEST_CASE("loops nest, over one loader and over two, and two loaders run at once") {
  same_as_on_cpu([](Accelerator& accelerator) -> Tensors {
    Tensors found;
    auto data = numbers(12 * accelerator.num_processes());
    auto more = numbers(7 * accelerator.num_processes(), {.batch_size = 2});
    auto [loader, other] = accelerator.prepare(data, more);
    for (auto& batch : loader) {
      for (auto& inner : other) use_all(found, inner);
      for (auto& inner : loader) use_all(found, inner);
      use_all(found, batch);
    }
    auto second = other.begin();
    for (auto& batch : loader) {
      use_all(found, batch);
      use_all(found, *second);
      ++second;
    }
    return found;
  });
}

TEST_CASE("an exception of a source is thrown at its batch, not at the one before") {
  same_as_on_cpu([](Accelerator& accelerator) -> Tensors {
    data::LoaderOf<at::Tensor> data(std::make_shared<Broken>(), {.batch_size = 1});
    auto loader = accelerator.prepare(data);
    Tensors found;
    CHECK_THROWS_AS(
        [&] {
          for (auto& batch : loader) use(found, batch);
        }(),
        std::domain_error);
    CHECK(static_cast<int64_t>(found.size()) == 6 / accelerator.num_processes());
    walk(found, loader);
    return found;
  });
}

TEST_CASE("out of memory on a worker is thrown at its batch, and no batch is lost or replaced") {
  struct Short final : data::SourceOf<at::Tensor> {
    [[nodiscard]] int64_t size() const override { return 10; }
    [[nodiscard]] at::Tensor read(const at::Tensor& indices) const override {
      if (indices[0].item<int64_t>() == 4 && !thrown.exchange(true)) TORCH_CHECK_WITH(OutOfMemoryError, false, "short");
      return indices.to(at::kFloat);
    }
    mutable std::atomic<bool> thrown = false;
  };
  on_devices(1, [](Accelerator& accelerator) {
    data::LoaderOf<at::Tensor> data(std::make_shared<Short>(), {.batch_size = 1, .num_workers = 1});
    auto loader = accelerator.prepare(data);
    std::vector<float> found;
    auto position = loader.begin();
    const auto walk = [&] {
      for (; position != loader.end(); ++position) {
        found.push_back(position->item<float>());
        std::this_thread::sleep_for(std::chrono::milliseconds(5));  // the next batch is read ahead and checked
      }
    };
    CHECK_THROWS_AS(walk(), c10::OutOfMemoryError);
    CHECK(found == std::vector<float>{0, 1, 2, 3});
    ++position;
    walk();
    CHECK(found == std::vector<float>{0, 1, 2, 3, 5, 6, 7, 8, 9});
  });
}

TEST_CASE("batches that are kept, or changed in place, retain their values") {
  same_as_on_cpu([](Accelerator& accelerator) -> Tensors {
    auto data = numbers(24 * accelerator.num_processes());
    auto loader = accelerator.prepare(data);
    Tensors kept;
    for (auto& batch : loader) {
      batch.data.add_(1);
      kept.push_back(batch.data);
      kept.push_back(batch.target);
    }
    for (auto& batch : loader) kept.push_back(batch.data);
    return kept;
  });
}

TEST_CASE("a loop may change its stream: each batch is ready on the stream that uses it") {
  const auto walk_on_both = [](Accelerator& accelerator, const std::shared_ptr<const data::Source>& source) -> Tensors {
    const auto here = accelerator.device();
    const c10::impl::VirtualGuardImpl streams(here.is_cpu() ? stand_in::tested_type() : here.type());
    std::optional<c10::Stream> side;
    if (!here.is_cpu()) side = streams.getNewStream(here);
    Tensors found;
    auto data = data::Loader(source, {.batch_size = 3});
    auto loader = accelerator.prepare(data);
    auto position = loader.begin();
    while (position != loader.end()) {
      use_all(found, *position);
      {
        const c10::OptionalStreamGuard guard(side);  // nothing else orders the two
        if (++position != loader.end()) use_all(found, *position);
      }
      if (position != loader.end()) ++position;
    }
    if (side) stand_in::make_wait(streams.getStream(here), *side);
    return found;
  };
  const auto numbers = torch::arange(24);
  same_as_on_cpu([&](auto& on) { return walk_on_both(on, data::memory_source(rows(24), numbers)); }, {}, {1}, 2000);
  same_as_on_cpu([&](auto& on) { return walk_on_both(on, data::memory_source(rows(24), numbers, on.device())); }, {},
                 {1}, 2000);
}

TEST_CASE("a loader's position is that of the current batch, although the next one is being copied") {
  for (const bool dispatch : {true, false}) {
    accelerate::AcceleratorOptions options;
    options.dispatch_batches = dispatch;
    same_as_on_cpu(
        [dispatch](Accelerator& accelerator) -> Tensors {
          Tensors found;
          const auto tell = [&found, dispatch](const auto& loader) {
            for (auto position = loader.begin(); position != loader.end(); ++position) {
              const auto state = loader.state();
              const auto info = loader.info();
              CHECK(position.info() == info);
              found.push_back(torch::tensor({state.epoch, state.consumed, state.origin, dispatch ? 0 : loader->epoch(),
                                             info.index, static_cast<int64_t>(info.last), info.remainder}));
              if (info.index == 3 && state.epoch == 1) break;
            }
            const auto state = loader.state();
            found.push_back(torch::tensor({state.epoch, state.consumed, dispatch ? 0 : loader->epoch()}));
          };
          auto data = numbers(25, {.batch_size = 2});
          auto stream = number_stream(25, {.batch_size = 2});
          auto [loader, streamed] = accelerator.prepare(data, stream);
          for (int epoch = 0; epoch < 3; ++epoch) {
            tell(loader);
            tell(streamed);
          }
          return found;
        },
        options);
  }
}

TEST_CASE("without pin_memory batches are copied on demand on the current stream") {
  same_as_on_cpu(batches_of([] { return numbers(12, {.batch_size = 3, .pin_memory = false}); }));
  same_as_on_cpu(batches_of([] { return number_stream(12, {.batch_size = 3, .pin_memory = false}); }));
  on_devices(1, [](Accelerator& accelerator) {
    auto data = numbers(12, {.batch_size = 3, .pin_memory = false});
    const auto before = stand_in::pinned_allocations();
    const auto waits = stand_in::host_waits(0);
    stand_in::start_trace();
    for (auto& batch : accelerator.prepare(data)) CHECK(batch.data.device() == accelerator.device());
    CHECK(stand_in::host_waits(0) == waits);
    for (const auto& each : stand_in::take_trace()) CHECK_FALSE(each.side);
    CHECK(stand_in::pinned_allocations() == before);
  });
}

TEST_CASE("the user's pinned batches are read directly") {
  on_devices(1, [](Accelerator& accelerator) {
    std::vector<at::Tensor> batches;
    for (int64_t i = 0; i < 4; ++i) batches.push_back(torch::full({3}, i).pin_memory());
    const auto before = stand_in::pinned_allocations();
    const auto pageable = stand_in::pageable_uploads(0);
    int64_t i = 0;
    for (auto& batch : accelerator.prepare(batches)) CHECK(at::equal(batch.cpu(), torch::full({3}, i++)));
    CHECK(i == 4);
    CHECK(stand_in::pinned_allocations() == before);
    CHECK(stand_in::pageable_uploads(0) == pageable);
  });
}

TEST_CASE("a batch may outlive its loader, even if other copies are pending") {
  stand_in::at_every_pace([] {
    on_devices(1, [](Accelerator& accelerator) {
      Tensors kept;
      {
        auto data = numbers(6);
        auto loader = accelerator.prepare(data);
        kept.push_back(loader.begin()->data);
        auto foreign = foreign_samples(6, 3);
        kept.push_back(accelerator.prepare(foreign).begin()->image);
      }
      for (const auto& batch : kept) CHECK(at::equal(batch.cpu(), rows(3)));
    });
  });
}

TEST_CASE("a device with memory for one batch but not for two gets one at a time" * stand_in::needs_stand_in()) {
  stand_in::at_every_pace([] {
    on_devices(1, [](Accelerator& accelerator) {
      auto data = data::from_tensors(torch::arange(4, at::kFloat).view({4, 1}).expand({4, 100000}).contiguous(), {});
      auto loader = accelerator.prepare(data);
      const auto free = at::accelerator::getMemoryInfo(0).first;
      const size_t all = at::accelerator::getMemoryInfo(0).second;
      stand_in::set_limit(0, all - free + 600000);  // a batch is 400000 bytes
      float sum = 0;
      for (auto& batch : loader) sum += batch.data.sum().item<float>();
      stand_in::set_limit(0, all);
      CHECK(sum == 600000);
    });
  });
}

TEST_CASE("a loader that shuffles with LibTorch's generator has one order on all ranks, for any other draws" *
          stand_in::needs_stand_in()) {
  std::mutex mutex;
  std::vector<std::multiset<int64_t>> passes(4);
  on_devices(3, [&](Accelerator& accelerator) {
    auto loader = accelerator.prepare(ShufflesSlowly{48});
    for (auto& pass : passes) {
      for (auto& batch : loader) {
        static_cast<void>(torch::rand({3}));  // draws from the generator that all threads share
        const at::Tensor numbers = batch.cpu();
        const std::lock_guard lock(mutex);
        pass.insert(numbers.const_data_ptr<int64_t>(), numbers.const_data_ptr<int64_t>() + numbers.numel());
      }
      static_cast<void>(torch::rand({1 + accelerator.process_index()}));
    }
  });
  for (const auto& pass : passes) {
    CHECK(pass.size() == 48);
    CHECK(std::set<int64_t>(pass.begin(), pass.end()).size() == 48);
  }
}
