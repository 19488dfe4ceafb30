// SPDX-License-Identifier: Apache-2.0
#include "accelerate/job/batch_size.hpp"

#include <new>

#include "accelerate/accelerate.hpp"
#include "accelerate/device/out_of_memory_error.hpp"
#include "tests/testing.hpp"

using accelerate::job::is_out_of_memory;

namespace {

c10::OutOfMemoryError of_a_device() {
  return c10::OutOfMemoryError(c10::SourceLocation{"here", "there.cpp", 1},
                               std::string("CUDA out of memory. Tried to allocate 2 GiB. "));
}

}  // namespace

TEST_CASE("out of memory is recognised by type, also on the host, and by LibTorch's texts") {
  CHECK(is_out_of_memory(std::bad_alloc()));
  CHECK(is_out_of_memory(of_a_device()));
  CHECK(is_out_of_memory(std::runtime_error("CUBLAS_STATUS_ALLOC_FAILED when calling cublasCreate")));
  CHECK(is_out_of_memory(std::runtime_error("DefaultCPUAllocator: can't allocate memory: you tried ...")));
  CHECK_FALSE(is_out_of_memory(std::runtime_error("other")));
}

TEST_CASE("a batch size is found if the host runs out of memory") {
  const auto run = [](int64_t size) {
    if (size > 5) throw std::bad_alloc();
  };
  CHECK(accelerate::job::find_executable_batch_size(accelerate::comm::Group(), run, 10) == 5);
}

TEST_CASE("no suitable size, or an invalid first size, is an error with the size; other exceptions propagate") {
  std::vector<int64_t> tried;
  const auto never = [&](int64_t size) {
    tried.push_back(size);
    throw std::bad_alloc();
  };
  const auto find = [&](int64_t start) {
    return accelerate::job::find_executable_batch_size(accelerate::comm::Group(), never, start);
  };
  CHECK_THROWS_WITH(find(16),
                    "find_executable_batch_size: no batch size from 16 down fitted into memory, zero was reached; a "
                    "smaller model is needed");
  CHECK(tried == std::vector<int64_t>{16, 14, 12, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1});
  tried.clear();
  CHECK_THROWS_WITH(find(0), "find_executable_batch_size: starting_batch_size is 0, must be at least 1");
  CHECK_THROWS_WITH(find(-8), "find_executable_batch_size: starting_batch_size is -8, must be at least 1");
  CHECK(tried.empty());
  const auto other = [](int64_t) { throw std::runtime_error("another"); };
  CHECK_THROWS_WITH(accelerate::job::find_executable_batch_size(accelerate::comm::Group(), other, 8), "another");
}

TEST_CASE("out of memory on a device is an Error of kind device with the allocator's text, and is recognised again") {
  const accelerate::RankContext here{.rank = 1, .world_size = 2, .host = "gpu-a"};
  try {
    accelerate::device::with_out_of_memory_report(here, "forward", [] { throw of_a_device(); });
    FAIL_CHECK("no error");
  } catch (const accelerate::Error& error) {
    CHECK((error.kind() == accelerate::ErrorKind::device));
    CHECK(std::string(error.what()) ==
          "[rank 1 of 2, gpu-a] forward: CUDA out of memory. Tried to allocate 2 GiB; use a smaller batch, or call "
          "find_executable_batch_size()");
    CHECK(is_out_of_memory(error));
  }
  CHECK(accelerate::device::with_out_of_memory_report(here, "forward", [] { return 3; }) == 3);
}

TEST_CASE("the error lists the known memory by kind, the largest tensors, and other possible users") {
  const auto known = [] {
    return std::vector<accelerate::device::MemoryEntry>{{"a [1] Float", 4, "parameters"},
                                                        {"b [512, 512] Float", 1 << 20, "optimizer"},
                                                        {"c [2] Float", 8, "parameters"},
                                                        {"d [512] Float", 2048, "optimizer_1"},
                                                        {"e [1] Char", 1}};
  };
  const auto run = [] { throw of_a_device(); };
  CHECK_THROWS_WITH(
      accelerate::device::with_out_of_memory_report({}, "backward", run, known),
      "backward: CUDA out of memory. Tried to allocate 2 GiB; known tensors: 1.0 MiB in 5 tensors "
      "(parameters 12 bytes, optimizer 1.0 MiB, optimizer_1 2.0 KiB), the largest b [512, 512] Float (1.0 MiB), d "
      "[512] Float (2.0 KiB), c [2] Float (8 bytes); the rest is "
      "mostly what forward keeps for backward: mixed_precision and nn::checkpoint() make it smaller; use a smaller "
      "batch, or call find_executable_batch_size()");
}

TEST_CASE("the error says how much all ranks have together, if this one has a part") {
  const auto known = [] {
    return std::vector<accelerate::device::MemoryEntry>{{"a [2] Float", 8, "parameters"},
                                                        {"b [4] Float, 1 of 4 elements", 4, "parameters", 16},
                                                        {"c [1] Float", 4, "gradients"}};
  };
  CHECK_THROWS_WITH(accelerate::device::with_out_of_memory_report(
                        {}, "forward", [] { throw of_a_device(); }, known),
                    doctest::Contains("(parameters 12 bytes of 24 bytes on all ranks, gradients 4 bytes)"));
}

namespace {

// The address sanitizer aborts a program that allocates this much.
#ifdef __SANITIZE_ADDRESS__
constexpr bool kAllocatorGivesUp = true;
#else
constexpr bool kAllocatorGivesUp = false;
#endif

/// More than a process can address.
at::Tensor more_than_there_is(int64_t rows = 1) { return torch::empty({rows, int64_t{1} << 50}, at::kChar); }

struct GreedyImpl : torch::nn::Module {
  at::Tensor forward(const at::Tensor& x) { return more_than_there_is() * (x * weight).sum(); }
  at::Tensor weight = register_parameter("weight", torch::ones({3}));
};
TORCH_MODULE(Greedy);

/// Runs out of memory in backward.
struct GreedyBackward : torch::autograd::Function<GreedyBackward> {
  static at::Tensor forward(torch::autograd::AutogradContext*, const at::Tensor& x) { return x.clone(); }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext*,
                                                 const torch::autograd::variable_list&) {
    return {more_than_there_is()};
  }
};

std::string text_of_error(const std::function<void()>& run) {
  try {
    run();
  } catch (const accelerate::Error& error) {
    CHECK((error.kind() == accelerate::ErrorKind::device));
    return error.what();
  }
  return "";
}

}  // namespace

TEST_CASE("out of memory on the CPU in forward or backward is an Error with the largest tensors and the remedy" *
          doctest::skip(kAllocatorGivesUp)) {
  accelerate::Accelerator accelerator({.cpu = true});
  auto model = accelerator.prepare(Greedy());
  const std::string allocator =
      "DefaultCPUAllocator: can't allocate memory: you tried to allocate 1125899906842624 bytes. Error code 12 (Cannot "
      "allocate memory)";
  const std::string advice = "; use a smaller batch, or call find_executable_batch_size()";
  const std::string forward = text_of_error([&] { model(torch::ones({3})); });
  CHECK(forward.find("forward: " + allocator +
                     "; known tensors: 12 bytes in 1 tensor (parameters 12 bytes), the largest weight [3] Float "
                     "(12 bytes); ") != std::string::npos);
  CHECK(forward.ends_with(advice));
  const std::string backward = text_of_error([&] { accelerator.backward(GreedyBackward::apply(model->weight).sum()); });
  CHECK(backward.find("backward: " + allocator) != std::string::npos);
  CHECK(backward.ends_with(advice));
}

TEST_CASE("the state of each optimizer is summed separately" * doctest::skip(kAllocatorGivesUp)) {
  accelerate::Accelerator accelerator({.cpu = true});
  torch::nn::Linear first(2, 2), second(3, 3);
  torch::optim::Adam adam(first->parameters(), 0.1);
  torch::optim::SGD sgd(second->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
  auto [greedy, one, other, step_one, step_other] = accelerator.prepare(Greedy(), first, second, adam, sgd);
  accelerator.backward(one(torch::ones({1, 2})).sum() + other(torch::ones({1, 3})).sum());
  step_one.step();
  step_other.step();
  step_one.zero_grad();
  step_other.zero_grad();
  const std::string text = text_of_error([&, &model = greedy] { model(torch::ones({3})); });
  CAPTURE(text);
  CHECK(text.find("; known tensors: 180 bytes in 11 tensors (parameters 84 bytes, optimizer 48 bytes, optimizer_1 "
                  "48 bytes), the largest ") != std::string::npos);
}

TEST_CASE("a batch size is found if a CPU allocation fails" * doctest::skip(kAllocatorGivesUp)) {
  const auto run = [](int64_t size) {
    if (size > 5) static_cast<void>(more_than_there_is(size));
  };
  CHECK(accelerate::job::find_executable_batch_size(accelerate::comm::Group(), run, 10) == 5);
}
