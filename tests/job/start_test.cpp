// SPDX-License-Identifier: Apache-2.0
#include "tests/testing.hpp"
//
#include <cstdlib>

#include "accelerate/accelerate.hpp"
#include "accelerate/device/cpu_threads.hpp"
#include "accelerate/device/device_selection.hpp"

using accelerate::Accelerator;
using accelerate::AcceleratorOptions;
using accelerate::ErrorKind;

namespace {

/// Sets an environment variable during its lifetime.
struct Variable {
  Variable(const char* name, const char* value) : name_(name) { setenv(name, value, 1); }
  ~Variable() { unsetenv(name_); }
  Variable(const Variable&) = delete;
  Variable& operator=(const Variable&) = delete;

 private:
  const char* name_;
};

/// "kind: message" without the place
std::string refusal_of_start(const AcceleratorOptions& options) {
  try {
    Accelerator accelerator(options);
  } catch (const accelerate::Error& error) {
    const std::string text = error.what();
    const auto place = text.find("] ");
    return fmt::format("{}: {}", accelerate::base::error_kind_name(error.kind()),
                       place == std::string::npos ? text : text.substr(place + 2));
  }
  return "no error";
}

struct KeepThreads {
  ~KeepThreads() { at::set_num_threads(before); }
  int before = at::get_num_threads();
};

}  // namespace

TEST_CASE("an invalid backend or device is refused for one process too, under the name in its source") {
  {
    const Variable backend("ACCELERATE_BACKEND", "nonsense");
    CHECK(refusal_of_start({}) == "environment: settings: ACCELERATE_BACKEND is 'nonsense', must be mpi, gloo or nccl");
  }
  {
    const Variable name("ACCELERATE_TORCH_DEVICE", "mps");
    CHECK(refusal_of_start({}).starts_with("device: device: mps is requested ("));
  }
  CHECK(refusal_of_start({.device = "gpu0"}) ==
        "usage: settings: device is 'gpu0', must be cpu, cuda, cuda:N or another device "
        "of LibTorch's");
  const std::string missing = refusal_of_start({.device = "cuda:1000"});
  CHECK(missing.starts_with("device: device: cuda:1000 is requested ("));
  CHECK(missing.ends_with("look at nvidia-smi and CUDA_VISIBLE_DEVICES"));
}

TEST_CASE("cpu in the code overrides a GPU in the environment") {
  const Variable name("ACCELERATE_TORCH_DEVICE", "cuda:1000");
  CHECK(Accelerator({.cpu = true}).device() == torch::kCPU);
}

TEST_CASE("the code's number of threads is set in a process and in thread ranks") {
  const KeepThreads keep;
  Accelerator alone({.cpu = true, .threads_per_rank = 3});
  CHECK(at::get_num_threads() == 3);
  accelerate::simulate(2, [] {
    Accelerator accelerator({.threads_per_rank = 2});
    CHECK(at::get_num_threads() == 2);
  });
}

TEST_CASE("a single rank keeps its cores and does not increase the program's number of threads") {
  const KeepThreads keep;
  unsetenv("OMP_NUM_THREADS");  // from the environment of the test run
  const auto share = accelerate::device::threads_per_rank(accelerate::device::physical_cores(), 1, {});
  at::set_num_threads(static_cast<int>(share) + 5);
  {
    Accelerator accelerator({.cpu = true});
    CHECK(at::get_num_threads() == share);
  }
  at::set_num_threads(1);
  {
    Accelerator accelerator({.cpu = true});
    CHECK(at::get_num_threads() == 1);
  }
}

TEST_CASE("thread ranks compute on the CPU unless an existing accelerator is requested by name") {
  accelerate::simulate(2, [] {
    CHECK(Accelerator().device() == torch::kCPU);
    CHECK(Accelerator({.device = "cpu"}).device() == torch::kCPU);
    CHECK(refusal_of_start({.device = "cuda:1000"}).starts_with("device: device: cuda:1000 is requested ("));
  });
}
