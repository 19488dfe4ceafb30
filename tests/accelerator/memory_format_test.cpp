// SPDX-License-Identifier: Apache-2.0
// Training, checkpoints and averages with AcceleratorOptions::memory_format.
#include "tests/testing.hpp"
//
#include <filesystem>
#include <fstream>
#include <iterator>
#include <mutex>
#include <string>
#include <vector>

#include "tests/accelerator/ranks.hpp"
#include "tests/checkpoint/folder.hpp"

namespace memory_format_testing {

using accelerate::Accelerator;
using accelerate::AcceleratorOptions;
using accelerate::MemoryFormat;

using Tensors = std::vector<at::Tensor>;

/// Ordinary, 1x1 and depthwise convolutions, a frozen one, a normalisation and a layer without images.
struct ConvNetImpl : torch::nn::Module {
  ConvNetImpl() {
    using torch::nn::Conv2d, torch::nn::Conv2dOptions;
    // A bias before the normalisation would have a gradient of rounding errors, which AdamW scales up.
    wide = register_module("wide", Conv2d(Conv2dOptions(3, 8, 3).padding(1).bias(false)));
    norm = register_module("norm", torch::nn::BatchNorm2d(8));
    frozen = register_module("frozen", Conv2d(Conv2dOptions(8, 8, 3).bias(false)));
    point = register_module("point", Conv2d(8, 4, 1));
    depth = register_module("depth", Conv2d(Conv2dOptions(4, 4, 3).groups(4)));
    last = register_module("last", torch::nn::Linear(4, 5));
    scale = register_buffer("scale", torch::rand({1, 8, 1, 1}) + 0.5);
    frozen->weight.set_requires_grad(false);
    to(at::kDouble);
  }
  at::Tensor forward(at::Tensor x) {
    x = torch::relu(norm(wide(x))) * scale;
    x = torch::relu(point(frozen(x)));
    return last(depth(x).mean({2, 3}));
  }
  torch::nn::Conv2d wide{nullptr}, frozen{nullptr}, point{nullptr}, depth{nullptr};
  torch::nn::BatchNorm2d norm{nullptr};
  torch::nn::Linear last{nullptr};
  at::Tensor scale;
};
TORCH_MODULE(ConvNet);

/// The same net on every rank; ranks as threads share LibTorch's generator.
ConvNet made() {
  static std::mutex mutex;
  const std::lock_guard lock(mutex);
  torch::manual_seed(3);
  return ConvNet();
}

accelerate::data::Loader images() {
  auto generator = at::make_generator<at::CPUGeneratorImpl>(4);
  const auto pixels = torch::rand({16, 3, 9, 9}, generator, at::TensorOptions(at::kDouble));
  return accelerate::data::from_tensors(pixels, torch::arange(16) % 5, {.batch_size = 2});
}

Tensors copies(const torch::nn::Module& module) {
  Tensors list;
  for (const auto& tensor : module.parameters()) list.push_back(tensor.detach().clone(at::MemoryFormat::Contiguous));
  for (const auto& tensor : module.buffers()) list.push_back(tensor.detach().clone(at::MemoryFormat::Contiguous));
  return list;
}

bool close(const Tensors& seen, const Tensors& expected, double tolerance = 1e-12) {
  if (seen.size() != expected.size()) return false;
  for (size_t i = 0; i < seen.size(); ++i) {
    if (!torch::allclose(seen[i], expected[i], tolerance, tolerance)) return false;
  }
  return true;
}

/// True if all tensors of 4 dimensions have C innermost, as LibTorch's convolutions recognise it.
bool all_channels_last(const Tensors& tensors) {
  int64_t images = 0;
  for (const auto& tensor : tensors) {
    if (!tensor.defined() || tensor.dim() != 4) continue;
    ++images;
    if (tensor.suggest_memory_format() != at::MemoryFormat::ChannelsLast) return false;
  }
  return images > 0;
}

Tensors gradients(const torch::nn::Module& module) {
  Tensors list;
  for (const auto& parameter : module.parameters()) list.push_back(parameter.grad());
  return list;
}

torch::optim::SGD sgd(const ConvNet& net) {
  return torch::optim::SGD(net->parameters(), torch::optim::SGDOptions(0.05).momentum(0.9));
}
torch::optim::AdamW adamw(const ConvNet& net) { return torch::optim::AdamW(net->parameters(), 0.01); }

template <typename Model, typename Optimizer, typename Loader>
void train_epoch(Accelerator& accelerator, Model& model, Optimizer& optimizer, Loader& loader) {
  for (auto& batch : loader) {
    auto window = accelerator.accumulate(model);
    accelerator.backward(torch::cross_entropy_loss(model(batch.data), batch.target));
    accelerator.clip_grad_norm_(model, 1.0);
    optimizer.step();
    optimizer.zero_grad();
  }
}

/// Weights and buffers of rank 0 after two epochs.
template <typename MakeOptimizer>
Tensors trained(int64_t ranks, const AcceleratorOptions& options, const MakeOptimizer& optimizer_of) {
  Tensors result;
  on_ranks(
      ranks,
      [&](Accelerator& accelerator) {
        ConvNet net = made();
        auto [model, optimizer, loader] = accelerator.prepare(net, optimizer_of(net), images());
        train_epoch(accelerator, model, optimizer, loader);
        train_epoch(accelerator, model, optimizer, loader);
        if (accelerator.is_main_process()) result = copies(*net);
        accelerator.check_synchronized(model);
      },
      options);
  return result;
}

AcceleratorOptions with(MemoryFormat format) { return {.cpu = true, .memory_format = format}; }

std::string bytes_of(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

TEST_CASE("channels_last trains to the same numbers on 1 and 2 ranks, fused or not, with both optimizers") {
  for (const int64_t ranks : {1, 2}) {
    for (const bool fused : {true, false}) {
      CAPTURE(ranks);
      CAPTURE(fused);
      AcceleratorOptions plain = with(MemoryFormat::contiguous), last = with(MemoryFormat::channels_last);
      plain.fused_optimizer = last.fused_optimizer = fused;
      CHECK(close(trained(ranks, last, sgd), trained(ranks, plain, sgd)));
      CHECK(close(trained(ranks, last, adamw), trained(ranks, plain, adamw)));
    }
  }
}

TEST_CASE("small buckets, accumulation and a compressing hook work in channels_last") {
  AcceleratorOptions plain = with(MemoryFormat::contiguous), last = with(MemoryFormat::channels_last);
  plain.buckets = last.buckets = {.cap_bytes = 1024, .first_cap_bytes = 256};
  plain.gradient_accumulation_steps = last.gradient_accumulation_steps = 2;
  CHECK(close(trained(2, last, sgd), trained(2, plain, sgd)));
  plain.comm_hook = last.comm_hook = accelerate::gradient::power_sgd_hook({.matrix_approximation_rank = 1});
  CHECK(close(trained(2, last, sgd), trained(2, plain, sgd), 1e-9));
}

TEST_CASE("parameters, gradients, momenta, averages and batches have the format and keep their identity") {
  for (const int64_t ranks : {1, 2}) {
    on_ranks(
        ranks,
        [](Accelerator& accelerator) {
          ConvNet net = made();
          const auto before = net->parameters();
          for (auto& parameter : net->parameters()) {
            if (parameter.requires_grad()) parameter.mutable_grad() = torch::ones_like(parameter);
          }
          auto [model, optimizer, loader] = accelerator.prepare(net, sgd(net), images());
          accelerate::optim::ExponentialMovingAverage ema(model, {.decay = 0.5});
          for (size_t i = 0; i < before.size(); ++i) CHECK(net->parameters()[i].is_same(before[i]));
          CHECK(all_channels_last(net->parameters()));
          CHECK(all_channels_last(net->buffers()));
          CHECK(all_channels_last(gradients(*net)));
          CHECK_FALSE(net->frozen->weight.requires_grad());
          optimizer.zero_grad();
          for (auto& batch : loader) {
            CHECK(all_channels_last({batch.data}));
            const auto y = model(batch.data);
            accelerator.backward(torch::cross_entropy_loss(y, batch.target));
            CHECK(all_channels_last(gradients(*net)));
            optimizer.step();
            ema.update();
            optimizer.zero_grad();
          }
          CHECK(all_channels_last(net->parameters()));
          CHECK(all_channels_last(ema.averages()));
          auto& state = *optimizer.state().at(net->wide->weight.unsafeGetTensorImpl());
          CHECK(all_channels_last({static_cast<torch::optim::SGDParamState&>(state).momentum_buffer()}));
          const auto core = accelerator.prepare(net);
          CHECK(core == model);
        },
        with(MemoryFormat::channels_last));
  }
}

TEST_CASE("averaged weights are the same in both formats") {
  const auto averages = [](MemoryFormat format) {
    Accelerator accelerator(with(format));
    ConvNet net = made();
    auto [model, optimizer, loader] = accelerator.prepare(net, adamw(net), images());
    accelerate::optim::ExponentialMovingAverage ema(model, {.decay = 0.9, .use_buffers = true});
    for (auto& batch : loader) {
      accelerator.backward(torch::cross_entropy_loss(model(batch.data), batch.target));
      optimizer.step();
      ema.update();
      optimizer.zero_grad();
    }
    const auto guard = ema.average_parameters();
    return copies(*net);
  };
  CHECK(close(averages(MemoryFormat::channels_last), averages(MemoryFormat::contiguous)));
}

TEST_CASE("files are the same in both formats, and load into either") {
  const testing::SharedFolder folder;
  const auto save = [&](MemoryFormat format, const std::string& name) {
    Accelerator accelerator(with(format));
    ConvNet net = made();
    auto model = accelerator.prepare(net);
    accelerator.save_model(model, folder.path / name);
    torch::OrderedDict<std::string, at::Tensor> tensors;
    tensors.insert("w", net->wide->weight);
    accelerator.save(tensors, folder.path / (name + ".bin"));
  };
  save(MemoryFormat::contiguous, "plain");
  save(MemoryFormat::channels_last, "last");
  const std::string plain = bytes_of(folder.path / "plain" / "model.safetensors");
  CHECK(plain.size() > 1000);
  CHECK(plain == bytes_of(folder.path / "last" / "model.safetensors"));
  CHECK(bytes_of(folder.path / "plain.bin") == bytes_of(folder.path / "last.bin"));
  for (const auto format : {MemoryFormat::contiguous, MemoryFormat::channels_last}) {
    Accelerator accelerator(with(format));
    ConvNet net = made();
    const auto expected = copies(*net);
    {
      const torch::NoGradGuard no_grad;
      for (auto& parameter : net->parameters()) parameter.fill_(7);
    }
    auto model = accelerator.prepare(net);
    accelerator.load_model(model, folder.path / "last");
    CHECK(close(copies(*net), expected, 0));
    CHECK(all_channels_last(net->parameters()) == (format == MemoryFormat::channels_last));
  }
}

TEST_CASE("a run resumes from a checkpoint of the other format, on 1 and 2 ranks") {
  const auto run = [](int64_t ranks, MemoryFormat first, MemoryFormat second) {
    const testing::SharedFolder folder;
    Tensors result;
    for (const bool resumes : {false, true}) {
      AcceleratorOptions options = with(resumes ? second : first);
      options.gradient_accumulation_steps = 2;
      on_ranks(
          ranks,
          [&](Accelerator& accelerator) {
            ConvNet net = made();
            auto [model, optimizer, loader] = accelerator.prepare(net, adamw(net), images());
            if (resumes) accelerator.load_state(folder.path / "state");
            if (resumes) train_epoch(accelerator, model, optimizer, loader);
            if (resumes && accelerator.is_main_process()) result = copies(*net);
            if (resumes) return;
            train_epoch(accelerator, model, optimizer, loader);
            int64_t batches = 0;
            for (auto& batch : loader) {  // ends within an accumulation window, so gradients are saved, too
              auto window = accelerator.accumulate(model);
              accelerator.backward(torch::cross_entropy_loss(model(batch.data), batch.target));
              optimizer.step();
              optimizer.zero_grad();
              if (++batches == 3) break;
            }
            accelerator.save_state(folder.path / "state");
          },
          options);
    }
    return result;
  };
  for (const int64_t ranks : {1, 2}) {
    CAPTURE(ranks);
    const auto expected = run(ranks, MemoryFormat::contiguous, MemoryFormat::contiguous);
    CHECK(close(run(ranks, MemoryFormat::contiguous, MemoryFormat::channels_last), expected));
    CHECK(close(run(ranks, MemoryFormat::channels_last, MemoryFormat::contiguous), expected));
    CHECK(close(run(ranks, MemoryFormat::channels_last, MemoryFormat::channels_last), expected));
  }
}

TEST_CASE("master weights have the format of their bfloat16 parameters") {
  AcceleratorOptions options = with(MemoryFormat::channels_last);
  options.precision_policy = accelerate::precision::pure_bf16();
  Accelerator accelerator(options);
  ConvNet net = made();
  net->to(at::kFloat);
  auto [model, optimizer] = accelerator.prepare(net, sgd(net));
  accelerator.backward(model(torch::rand({2, 3, 9, 9}).to(at::kBFloat16)).sum());
  optimizer.step();
  Tensors masters;
  for (const auto& shard : model.parameter_shards()) masters.push_back(shard.master);
  CHECK((net->wide->weight.scalar_type() == at::kBFloat16));
  CHECK(all_channels_last(net->parameters()));
  CHECK(all_channels_last(masters));
}

TEST_CASE("without the option a module keeps its own format") {
  Accelerator accelerator({.cpu = true});
  ConvNet net = made();
  Tensors before;
  for (const auto& parameter : net->parameters()) before.push_back(parameter.detach());
  auto [model, loader] = accelerator.prepare(net, images());
  for (size_t i = 0; i < before.size(); ++i) {
    CHECK(net->parameters()[i].const_data_ptr() == before[i].const_data_ptr());
    CHECK(net->parameters()[i].strides() == before[i].strides());
  }
  for (auto& batch : loader) CHECK(batch.data.is_contiguous());
}

TEST_CASE("evaluation-only models and TorchScript modules get the format") {
  Accelerator accelerator(with(MemoryFormat::channels_last));
  ConvNet net = made();
  auto model = accelerator.prepare_model(net, /*evaluation_mode=*/true);
  CHECK(all_channels_last(net->parameters()));
  torch::jit::Module script("net");
  script.register_parameter("w", torch::rand({4, 3, 3, 3}), false);
  script.define("def forward(self, x):\n  return torch.conv2d(x, self.w)\n");
  auto scripted = accelerator.prepare(script);
  const at::Tensor y = scripted({torch::rand({1, 3, 5, 5})}).toTensor();
  CHECK(all_channels_last({script.attr("w").toTensor()}));
  CHECK(all_channels_last({y}));
}

TEST_CASE("channels_last_3d reorders tensors of 5 dimensions only, with the same numbers") {
  const auto run = [](MemoryFormat format) {
    Accelerator accelerator(with(format));
    static std::mutex mutex;
    const std::lock_guard lock(mutex);
    torch::manual_seed(9);
    torch::nn::Sequential net(torch::nn::Conv3d(2, 4, 3), torch::nn::ReLU(), torch::nn::Conv3d(4, 2, 1));
    net->to(at::kDouble);
    const auto videos = torch::rand({4, 2, 5, 5, 5}, at::kDouble);
    auto [model, optimizer, loader] =
        accelerator.prepare(net, torch::optim::SGD(net->parameters(), 0.1),
                            accelerate::data::from_tensors(videos, torch::rand({4, 2, 3}), {.batch_size = 2}));
    for (auto& batch : loader) {
      const bool last = format == MemoryFormat::channels_last_3d;
      CHECK(batch.data.is_contiguous(at::MemoryFormat::ChannelsLast3d) == last);
      CHECK(batch.target.is_contiguous());
      accelerator.backward(model(batch.data).pow(2).sum());
      optimizer.step();
      optimizer.zero_grad();
    }
    CHECK(net->parameters()[0].is_contiguous(at::MemoryFormat::ChannelsLast3d) ==
          (format == MemoryFormat::channels_last_3d));
    return copies(*net);
  };
  const auto expected = run(MemoryFormat::contiguous);
  CHECK(close(run(MemoryFormat::channels_last_3d), expected));
  CHECK(close(run(MemoryFormat::channels_last), expected, 0));
}

TEST_CASE("an unknown memory format is refused") {
  const accelerate::AcceleratorOptions options{.cpu = true, .memory_format = static_cast<MemoryFormat>(5)};
  CHECK_THROWS_WITH_AS(Accelerator accelerator(options),
                       "settings: memory_format is 5, must be contiguous, channels_last or "
                       "channels_last_3d",
                       accelerate::Error);
}

}  // namespace memory_format_testing
