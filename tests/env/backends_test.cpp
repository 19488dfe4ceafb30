// SPDX-License-Identifier: Apache-2.0
#include "accelerate/env/backends.hpp"

#include <doctest/doctest.h>

#include "accelerate/env/settings.hpp"
#include "launch/plan/options.hpp"

using namespace accelerate::env;

TEST_CASE("the names of the backends are one table; for a device only those that carry its tensors") {
  CHECK(backend_choice() == "mpi, gloo or nccl");
  CHECK(backend_choice("cpu") == "mpi or gloo");
  CHECK(backend_choice("cuda") == "nccl");
  CHECK(is_backend("gloo"));
  CHECK_FALSE(is_backend("ucx"));
  CHECK_FALSE(is_backend(""));
}

TEST_CASE("a row alone makes a backend's name known to settings and launcher") {
  const std::vector<std::string> arguments{"--backend", "carrier_pigeon", "train"};
  CHECK_THROWS_WITH(accelerate::launch::parse(arguments),
                    "accelerate_launch: --backend is 'carrier_pigeon', must be mpi, gloo or nccl");
  CHECK_THROWS(weigh({.backend = "carrier_pigeon"}, {}, {}));
  add_backend({"carrier_pigeon", "cpu"});
  add_backend({"carrier_pigeon", "cpu"});
  CHECK(accelerate::launch::parse(arguments).options.backend == "carrier_pigeon");
  CHECK(weigh({.backend = "carrier_pigeon"}, {}, {}).settings.backend == "carrier_pigeon");
  CHECK(weigh({}, {{"ACCELERATE_BACKEND", "carrier_pigeon"}}, {}).settings.backend == "carrier_pigeon");
  CHECK(backend_choice() == "mpi, gloo, nccl or carrier_pigeon");
}
