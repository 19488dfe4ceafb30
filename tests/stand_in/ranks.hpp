// SPDX-License-Identifier: Apache-2.0
// Jobs on the stand-in: ranks are threads, rank r uses device r. Results are compared with the same job on the CPU.
#pragma once

#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <mutex>

#include "accelerate/accelerate.hpp"
#include "tests/stand_in/support.hpp"

namespace stand_in {

using Tensors = std::vector<at::Tensor>;

inline void make_wait(const c10::Stream& waiting, const c10::Stream& other) {
  c10::Event event(other.device_type());
  event.record(other);
  event.block(waiting);
}

/// On an accelerator, runs work during its lifetime on a stream other than the default one.
class OnASideStream {
 public:
  explicit OnASideStream(at::Device device) {
    if (device.is_cpu()) return;
    const c10::impl::VirtualGuardImpl guard(device.type());
    const auto side = guard.getNewStream(device);
    make_wait(side, guard.getStream(device));
    guard_.emplace(side);
  }
  ~OnASideStream() {
    if (guard_) make_wait(guard_->original_stream(), guard_->current_stream());
  }
  OnASideStream(const OnASideStream&) = delete;
  OnASideStream& operator=(const OnASideStream&) = delete;

 private:
  std::optional<c10::StreamGuard> guard_;
};

/// For AcceleratorOptions::device.
inline std::string device_name() { return c10::DeviceTypeName(tested_type(), /*lower_case=*/true); }

/// During its lifetime LibTorch's default dtype on a GPU is float64, so that comparisons with the CPU show more than
/// rounding; float32 for jobs of mixed precision, which requires it.
class DefaultDtype {
 public:
  explicit DefaultDtype(accelerate::Precision precision) {
    if (on_gpu() && precision == accelerate::Precision::no) torch::set_default_dtype(caffe2::TypeMeta::Make<double>());
  }
  explicit DefaultDtype(const accelerate::AcceleratorOptions& options)
      : DefaultDtype(options.precision_policy ? accelerate::Precision::bf16
                                              : options.mixed_precision.value_or(accelerate::Precision::no)) {}
  ~DefaultDtype() { torch::set_default_dtype(before_); }
  DefaultDtype(const DefaultDtype&) = delete;
  DefaultDtype& operator=(const DefaultDtype&) = delete;

 private:
  caffe2::TypeMeta before_ = torch::get_default_dtype();
};

/// Runs `body` on several ranks, each with its own accelerator; on a machine with GPUs, with at most as many ranks.
inline void on_devices(int64_t ranks, const std::function<void(accelerate::Accelerator&)>& body,
                       accelerate::AcceleratorOptions options = {}) {
  if (on_gpu() && ranks > devices()) {
    MESSAGE("left out: ", ranks, " ranks, the machine has ", devices(), " GPU(s)");
    return;
  }
  options.device = device_name();
  const DefaultDtype dtype(options);
  accelerate::simulate(ranks, [&] {
    accelerate::Accelerator accelerator(options);
    body(accelerator);
  });
}

/// Ranks share the host's generator: they create their models one after another, each from the same seed.
inline std::mutex one_at_a_time;
template <typename Make>
auto made_equal(const Make& make) {
  const std::lock_guard lock(one_at_a_time);
  torch::manual_seed(7);
  return make();
}

inline Tensors to_cpu(const Tensors& tensors) {
  Tensors all;
  for (const auto& tensor : tensors) all.push_back(tensor.detach().to(at::kCPU, tensor.scalar_type(), false, true));
  return all;
}

/// Results of each rank's body.
inline std::vector<Tensors> results(int64_t ranks, const std::function<Tensors(accelerate::Accelerator&)>& body,
                                    const accelerate::AcceleratorOptions& options) {
  const DefaultDtype dtype(options);
  std::vector<Tensors> all(static_cast<size_t>(ranks));
  accelerate::simulate(ranks, [&] {
    accelerate::Accelerator accelerator(options);
    auto mine = to_cpu(body(accelerator));
    all[static_cast<size_t>(accelerator.process_index())] = std::move(mine);
  });
  return all;
}

/// Bit-equal on the stand-in, because its kernels are the CPU's; equal up to rounding on a GPU.
inline void check_same(const at::Tensor& found, const at::Tensor& expected) {
  if (!on_gpu() || !expected.is_floating_point()) {
    CHECK(at::equal(found, expected));
    return;
  }
  const double tolerance = expected.scalar_type() == at::kDouble ? 1e-7 : 3e-2;
  const bool close = at::allclose(found, expected, tolerance, tolerance, /*equal_nan=*/true);
  const double off = close ? 0 : (found - expected).abs().max().item<double>();
  CAPTURE(off);
  CHECK(close);
}

/// Checks that body gives the same bits on the device as on the CPU, on 1 and 2 ranks, at every pace, without a race.
inline void same_as_on_cpu(const std::function<Tensors(accelerate::Accelerator&)>& body,
                           accelerate::AcceleratorOptions options = {}, const std::vector<int64_t>& counts = {1, 2},
                           int microseconds = 500) {
  for (const int64_t ranks : counts) {
    CAPTURE(ranks);
    if (on_gpu() && ranks > devices()) continue;
    options.device = "cpu";
    const auto expected = results(ranks, body, options);
    options.device = device_name();
    at_every_pace(
        [&] {
          const auto found = results(ranks, body, options);
          for (size_t r = 0; r < expected.size(); ++r) {
            REQUIRE(found[r].size() == expected[r].size());
            for (size_t i = 0; i < expected[r].size(); ++i) {
              CAPTURE(r);
              CAPTURE(i);
              check_same(found[r][i], expected[r][i]);
            }
          }
        },
        microseconds);
  }
}

/// The network of these tests: convolution, BatchNorm, two linear layers.
struct SmallNetImpl : torch::nn::Module {
  SmallNetImpl() {
    convolution = register_module("convolution", torch::nn::Conv2d(torch::nn::Conv2dOptions(1, 3, 3).padding(1)));
    norm = register_module("norm", torch::nn::BatchNorm2d(3));
    hidden = register_module("hidden", torch::nn::Linear(3 * 6 * 6, 16));
    last = register_module("last", torch::nn::Linear(16, 5));
  }
  at::Tensor forward(const at::Tensor& images) {
    const auto x = torch::relu(norm(convolution(images))).flatten(1);
    return torch::log_softmax(last(torch::relu(hidden(x))), 1);
  }
  torch::nn::Conv2d convolution{nullptr};
  torch::nn::BatchNorm2d norm{nullptr};
  torch::nn::Linear hidden{nullptr}, last{nullptr};
};
TORCH_MODULE(SmallNet);

/// Images [n, 1, 6, 6] and labels [n], the same in every call.
inline std::pair<at::Tensor, at::Tensor> small_data(int64_t samples) {
  auto generator = at::make_generator<at::CPUGeneratorImpl>(uint64_t{11});
  return {at::randn({samples, 1, 6, 6}, generator), at::randint(5, {samples}, generator, at::kLong)};
}

inline accelerate::data::Loader small_loader(int64_t samples, int64_t batch_size) {
  auto [images, labels] = small_data(samples);
  return accelerate::data::from_tensors(images, labels, {.batch_size = batch_size});
}

/// Small buckets, so that several are reduced in one backward.
inline accelerate::AcceleratorOptions with_small_buckets() {
  accelerate::AcceleratorOptions options;
  options.buckets = {.cap_bytes = 1024, .first_cap_bytes = 256};
  return options;
}

inline accelerate::AcceleratorOptions with_precision(accelerate::Precision precision) {
  auto options = with_small_buckets();
  options.mixed_precision = precision;
  options.grad_scaler.init_scale = 1024;
  options.grad_scaler.growth_interval = 2;
  return options;
}

inline at::Tensor loss_of(const at::Tensor& logits, const at::Tensor& labels) {
  return torch::nll_loss(torch::log_softmax(logits, 1), labels);
}

inline const auto kMomentum = torch::optim::SGDOptions(0.1).momentum(0.9);

template <typename Model>
Tensors state_of(const Model& model) {
  Tensors all = model->parameters();
  for (const auto& buffer : model->buffers()) all.push_back(buffer);
  return all;
}

/// Prepared objects of a loop: a net that is equal on all ranks, an optimizer and small data.
template <typename Net = SmallNet, typename Optimizer = torch::optim::SGD>
struct Job {
  template <typename Options>
  Job(accelerate::Accelerator& accelerator, const Options& options, int64_t samples = 24, int64_t batch_size = 3)
      : net(made_equal([] { return Net(); })),
        stock(net->parameters(), options),
        data(small_loader(samples, batch_size)),
        prepared(accelerator.prepare(net, stock, data)) {}

  Net net;
  Optimizer stock;
  accelerate::data::Loader data;
  decltype(std::declval<accelerate::Accelerator&>().prepare(std::declval<Net&>(), std::declval<Optimizer&>(),
                                                            std::declval<accelerate::data::Loader&>())) prepared;
};

/// Zeroes the gradients, and computes new ones.
template <typename Model, typename Optimizer>
void backward_on(accelerate::Accelerator& accelerator, const Model& model, const Optimizer& optimizer,
                 const at::Tensor& images, const at::Tensor& labels) {
  optimizer.zero_grad();
  accelerator.backward(torch::nll_loss(model(images), labels));
}

/// Number of host waits for this rank's device from the third step of an epoch to its last.
template <typename Loader, typename Step>
int64_t waits_when_steady(accelerate::Accelerator& accelerator, Loader& loader, const Step& step) {
  const auto device = accelerator.device().index();
  int64_t steps = 0;
  int64_t before = 0;
  for (auto& batch : loader) {
    if (++steps == 3) before = host_waits(device);
    step(batch);
  }
  CHECK(steps >= 6);
  return host_waits(device) - before;
}

/// A loop without anything special, as a body for same_as_on_cpu().
template <typename Optimizer, typename Net = SmallNet, typename Options>
auto trains_with(const Options& options) {
  return [options](accelerate::Accelerator& accelerator) -> Tensors {
    Job<Net, Optimizer> job(accelerator, options);
    auto& [model, optimizer, loader] = job.prepared;
    for (auto& [images, labels] : loader) {
      backward_on(accelerator, model, optimizer, images, labels);
      optimizer.step();
    }
    return state_of(model);
  };
}

}  // namespace stand_in
