// SPDX-License-Identifier: Apache-2.0
#include "accelerate/env/backends.hpp"

#include <doctest/doctest.h>

#include "accelerate/env/settings.hpp"
#include "launch/plan/plan.hpp"

using namespace accelerate::env;

TEST_CASE("one table has the names of the backends, and those that support a device's tensors") {
  CHECK(backend_choice() == "mpi, gloo or nccl");
  CHECK(backend_choice("cpu") == "mpi or gloo");
  CHECK(backend_choice("cuda") == "nccl");
  CHECK(is_backend("gloo"));
  CHECK(is_backend("gloo", "cpu"));
  CHECK_FALSE(is_backend("nccl", "cpu"));
  CHECK_FALSE(is_backend("ucx"));
  CHECK_FALSE(is_backend(""));
}

TEST_CASE("a row alone adds a backend's name to settings and launcher") {
  const std::vector<std::string> arguments{"--backend", "carrier_pigeon", "train"};
  CHECK_THROWS_WITH(accelerate::launch::parse_arguments(arguments),
                    "accelerate_launch: --backend is 'carrier_pigeon', must be mpi, gloo or nccl");
  CHECK_THROWS(weigh({.backend = "carrier_pigeon"}, {}, {}));
  add_backend({"carrier_pigeon", "cpu"});
  add_backend({"carrier_pigeon", "cpu"});
  CHECK(accelerate::launch::parse_arguments(arguments).options.settings.backend == "carrier_pigeon");
  CHECK(weigh({.backend = "carrier_pigeon"}, {}, {}).settings.backend == "carrier_pigeon");
  CHECK(weigh({}, {{"ACCELERATE_BACKEND", "carrier_pigeon"}}, {}).settings.backend == "carrier_pigeon");
  CHECK(backend_choice() == "mpi, gloo, nccl or carrier_pigeon");
}

TEST_CASE("the table row, not the name, determines if a backend needs GPUs") {
  add_backend({"semaphore", "cuda"});
  const auto options = accelerate::launch::parse_arguments({"--backend", "semaphore", "train"}).options;
  CHECK(accelerate::launch::needs_gpus(options));
  const auto workers = accelerate::launch::plan(options, {.gpus = 1}, {}, {}).workers;
  CHECK_FALSE(workers.at(0).environment.contains("ACCELERATE_BACKEND"));
  CHECK_THROWS_WITH(accelerate::launch::check_gpus(options, {.gpus = 0}),
                    ("accelerate_launch: --backend semaphore needs GPUs, but 0 are visible; use " +
                     backend_choice("cpu") + ", or look at nvidia-smi and CUDA_VISIBLE_DEVICES")
                        .c_str());
}
